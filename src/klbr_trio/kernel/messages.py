"""The channel's frames and what may be in them.

A frame is a u32 length (big endian) and that many bytes of UTF-8 JSON. The process at the other
end runs code that nobody has read, and it can write to the socket past the worker: a frame from
it is untrusted input that gives its session's authority and no more. What does not have exactly
the stated shape is a `ProtocolViolation`, which ends the kernel.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import attrs

from klbr_trio.errors import KernelError

LARGEST_FRAME: Final = 1024 * 1024
"""Bytes of JSON in a frame from the kernel."""
_DEEPEST: Final = 16
_LONGEST_WAIT_MS: Final = 2**53
_LONGEST_REASON: Final = 1000
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class ProtocolViolation(KernelError):
    """A frame from the kernel does not have a shape that a worker sends."""


@attrs.frozen
class Hello:
    """The kernel is ready: its interpreter's version, and the release that it found."""

    python: str
    digest: str


@attrs.frozen
class StartFailed:
    """The kernel can't run cells."""

    error: str


@attrs.frozen
class Call:
    """The running cell asks the host for something."""

    rid: int
    cell: int
    target: str
    args: Mapping[str, object]


@attrs.frozen(kw_only=True)
class Done:
    """A cell has ended."""

    cell: int
    ok: bool
    value: str | None
    error: str | None
    interrupted: bool
    threads: int
    tasks: int


Message: TypeAlias = Hello | StartFailed | Call | Done
Fields: TypeAlias = Mapping[str, object]


def encode(message: Mapping[str, object]) -> bytes:
    """One frame for the kernel; raises TypeError or ValueError for what JSON has no form for."""
    body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    return len(body).to_bytes(4, "big") + body


def decode(body: bytes) -> Message:
    """The message in a frame's body.

    Raises:
        ProtocolViolation: It is none.
    """
    try:
        fields = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation(f"a frame is not JSON ({type(error).__name__})") from error
    if not isinstance(fields, dict):
        raise ProtocolViolation("a frame is not an object")
    cleaned = _clean(fields)
    assert isinstance(cleaned, dict)
    op = cleaned.pop("op", None)
    parse = _PARSERS.get(op) if isinstance(op, str) else None
    if parse is None:
        raise ProtocolViolation(f"unknown frame {str(op)[:40]!r}")
    return parse(cleaned)


def printable(text: str) -> str:
    """`text` with every lone surrogate replaced, so that it has a UTF-8 form."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("out of range")
    return number


def _clean(value: object, depth: int = 0) -> object:
    """`value` without lone surrogates; ProtocolViolation if it is nested too deeply."""
    if depth > _DEEPEST:
        raise ProtocolViolation("a frame is nested too deeply")
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {printable(key): _clean(item, depth + 1) for key, item in value.items()}
    return value


def _exactly(fields: Fields, *names: str) -> None:
    if set(fields) != set(names):
        raise ProtocolViolation(f"a frame has not the fields {', '.join(names)}")


def _text(fields: Fields, name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise ProtocolViolation(f"{name} is no text")
    return value


def _text_or_null(fields: Fields, name: str) -> str | None:
    return None if fields[name] is None else _text(fields, name)


def _count(fields: Fields, name: str) -> int:
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2**53:
        raise ProtocolViolation(f"{name} is no count")
    return value


def _flag(fields: Fields, name: str) -> bool:
    value = fields[name]
    if not isinstance(value, bool):
        raise ProtocolViolation(f"{name} is neither true nor false")
    return value


def _hello(fields: Fields) -> Hello:
    _exactly(fields, "protocol", "python", "digest")
    if fields["protocol"] != 1:
        raise ProtocolViolation("the kernel speaks another version of the protocol")
    return Hello(_text(fields, "python"), _text(fields, "digest"))


def _failed(fields: Fields) -> StartFailed:
    _exactly(fields, "error")
    return StartFailed(_text(fields, "error"))


def _call(fields: Fields) -> Call:
    _exactly(fields, "rid", "cell", "target", "args")
    target = _text(fields, "target")
    args = fields["args"]
    check = _TARGETS.get(target)
    if check is None or not isinstance(args, dict):
        raise ProtocolViolation(f"unknown call {target[:40]!r}")
    check(args)
    return Call(_count(fields, "rid"), _count(fields, "cell"), target, args)


def _done(fields: Fields) -> Done:
    _exactly(fields, "cell", "ok", "value", "error", "interrupted", "threads", "tasks")
    done = Done(
        cell=_count(fields, "cell"),
        ok=_flag(fields, "ok"),
        value=_text_or_null(fields, "value"),
        error=_text_or_null(fields, "error"),
        interrupted=_flag(fields, "interrupted"),
        threads=_count(fields, "threads"),
        tasks=_count(fields, "tasks"),
    )
    if done.ok != (done.error is None):
        raise ProtocolViolation("a cell is either ok or has an error")
    return done


def _send_args(args: Fields) -> None:
    _exactly(args, "text")
    if not _text(args, "text"):
        raise ProtocolViolation("text is empty")


def _wait_args(args: Fields) -> None:
    _exactly(args, "seconds", "until_ms", "reason")
    reason = _text_or_null(args, "reason")
    if reason is not None and len(reason) > _LONGEST_REASON:
        raise ProtocolViolation("reason is too long")
    seconds = args["seconds"]
    if (seconds is None) == (args["until_ms"] is None):
        raise ProtocolViolation("a wait has one of seconds and until_ms")
    if seconds is None:
        _count(args, "until_ms")
    elif not isinstance(seconds, float) or not 0 <= seconds * 1000 <= _LONGEST_WAIT_MS:
        raise ProtocolViolation("seconds is no duration")


_PARSERS: Final[Mapping[str, Callable[[Fields], Message]]] = {
    "hello": _hello,
    "failed": _failed,
    "call": _call,
    "done": _done,
}
_TARGETS: Final[Mapping[str, Callable[[Fields], None]]] = {
    "local.send": _send_args,
    "runtime.wait": _wait_args,
    "runtime.done": _exactly,
}
