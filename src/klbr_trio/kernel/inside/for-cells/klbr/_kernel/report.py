"""Texts about values and exceptions, bounded, whatever the objects do when they are asked."""

from __future__ import annotations

import reprlib
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

LONGEST_VALUE = 64 * 1024
LONGEST_ERROR = 64 * 1024
_MANY = 20_000  # objects; the repr of more is built from parts of them
_NO_NETWORK = (
    "this kernel reaches nothing outside, or only what the proxy in http_proxy lets through: "
    "HTTP and HTTPS to public addresses"
)
_HINTS = (
    ("_multiprocessing.SemLock(", "there are no locks of multiprocessing here: use subprocess"),
    ("Temporary failure in name resolution", _NO_NETWORK),
    ("Network is unreachable", _NO_NETWORK),
    ("asyncio.run() cannot be called", "this cell already runs in an event loop: use `await`"),
    (
        "no running event loop",
        "a cell runs in the event loop if it has a top-level `await`; add `await asyncio.sleep(0)`",
    ),
    ("This event loop is already running", "use `await` instead of running the loop"),
)


class _Sketch(reprlib.Repr):
    """A repr of the first part of everything that is long."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 6
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 200
        self.maxdict = self.maxdeque = self.maxarray = 200
        self.maxstring = self.maxother = 4000
        self.maxlong = 1000


def value_text(value: object) -> str:
    """The repr of `value`, of bounded length and cost.

    Raises:
        BaseException: Whatever the object's own `__repr__` raises.
    """
    if isinstance(value, str | bytes | bytearray) and len(value) > LONGEST_VALUE:
        half = LONGEST_VALUE // 2
        omitted = f"[... {len(value) - 2 * half:,} left out ...]"
        return cut(f"{value[:half]!r} {omitted} {value[-half:]!r}", LONGEST_VALUE)
    text = _Sketch().repr(value) if _is_big(value) else repr(value)
    return cut(text, LONGEST_VALUE)


def _is_big(value: object) -> bool:
    """Whether built-in containers under `value` hold more than can be shown."""
    left = _MANY
    waiting = [value]
    while waiting:
        item = waiting.pop()
        left -= 1
        if type(item) in (str, bytes):
            left -= len(item) // 64  # type: ignore[arg-type]
        elif type(item) in (list, tuple, set, frozenset):
            left -= len(item)  # type: ignore[arg-type]
            if left > 0:
                waiting.extend(item)  # type: ignore[arg-type]
        elif type(item) is dict:
            left -= 2 * len(item)
            if left > 0:
                waiting.extend(item)
                waiting.extend(item.values())
        if left <= 0:
            return True
    return False


def cut(text: str, limit: int) -> str:
    """`text`, or its two ends with a mark between them if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}[... {len(text) - 2 * half:,} characters left out ...]{text[-half:]}"


def error_text(error: BaseException, *, inside: str) -> str:
    """The traceback of `error` with the cell's own lines and without this package's frames."""
    try:
        report = traceback.TracebackException.from_exception(_own(error, inside), compact=True)
        _drop_frames(report, inside)
        text = "".join(report.format()).rstrip("\n")
        hints = [f"\nHint: {hint}." for sign, hint in _HINTS if sign in text]
        return cut(text, LONGEST_ERROR) + "".join(hints)
    except BaseException as problem:  # noqa: BLE001  # the exception's own methods may do anything
        return f"{_name(error)} (its traceback can't be shown: {_name(problem)})"


def _name(error: BaseException) -> str:
    return type.__getattribute__(type(error), "__name__")  # type: ignore[no-any-return]


def _own(error: BaseException, inside: str) -> BaseException:
    return error.with_traceback(_from_cell(error.__traceback__, inside))


def _from_cell(trace: TracebackType | None, inside: str) -> TracebackType | None:
    """`trace` without the frames that lead from the worker to the cell."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(inside):
        trace = trace.tb_next
    return trace


def _drop_frames(report: traceback.TracebackException, inside: str) -> None:
    waiting: list[traceback.TracebackException | None] = [report]
    seen: set[int] = set()
    while waiting:
        item = waiting.pop()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        item.stack[:] = [frame for frame in item.stack if not frame.filename.startswith(inside)]
        waiting += [item.__cause__, item.__context__, *(item.exceptions or ())]
