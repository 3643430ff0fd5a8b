"""A session's records as lines for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from klbr_trio.cli.terminal import to_json

Payload: TypeAlias = Mapping[str, Any]


def moment(ms: int) -> str:
    """A time on this machine's clock; the number itself where no calendar reaches."""
    try:
        there = datetime.fromtimestamp(ms / 1000, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return there.isoformat(sep=" ", timespec="seconds")


def span(ms: int) -> str:
    """A duration."""
    seconds = ms / 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def record_text(record: Mapping[str, Any]) -> str:
    """The record as one line or more; an unknown kind is shown as it is."""
    kind, payload = record["kind"], record["payload"]
    known = _KNOWN.get(kind)
    try:
        words = None if known is None else known(payload)
    except (KeyError, TypeError):  # a later service may say it otherwise
        words = None
    return f"#{record['seq']} {kind}  {to_json(payload) if words is None else words}".rstrip()


def _input(payload: Payload) -> str:
    return f"from {payload['source']}: {_block(payload['text'])}"


def _started(payload: Payload) -> str:
    causes = ", ".join(_cause(cause) for cause in payload["causes"])
    release = (payload["release"] or "no release")[:12]
    return f"because of {causes}; {payload['model'] or 'no model'}, {release}"


def _cause(cause: Payload) -> str:
    match cause["type"]:
        case "input_ready":
            return f"input #{cause['seq']}"
        case "deadline_wake":
            return f"the wake of {moment(cause['wake_at_ms'])}"
        case "repair":
            return "a failed turn's repair"
        case "recovery":
            return "a crash"
        case "maintenance_ready":
            return f"maintenance: {cause['purpose']}"
        case _:
            return to_json(cause)


def _reply(payload: Payload) -> str:
    usage = payload["usage"] or {}
    tokens = usage.get("total_tokens")
    return f"{payload['model']}, {payload['finish']}" + (f", {tokens} tokens" if tokens else "")


def _requested(payload: Payload) -> str:
    code = payload["code"]
    return _block(payload.get("raw") or "" if code is None else code)


def _finished(payload: Payload) -> str:
    took = payload["duration_ms"]
    parts = ["ok" if payload["ok"] else "failed"]
    if took is not None:
        parts[0] += f" in {span(took)}"
    parts.extend(
        _block(part.rstrip("\n"))
        for part in (payload["output"], payload["value"], payload["error"])
        if part
    )
    return " ".join(parts)


def _failed(payload: Payload) -> str:
    return f"{payload['code']}: {payload['message']}"


def _waiting(payload: Payload) -> str:
    when = "a receipt" if payload["wake_at_ms"] is None else moment(payload["wake_at_ms"])
    reason = payload["reason"]
    retry = "" if payload["retry"] is None else " (to try again)"
    return f"until {when}{retry}" + (f": {reason}" if reason else "")


def _woken(payload: Payload) -> str:
    return f"for {moment(payload['wake_at_ms'])}, {span(payload['late_ms'])} late"


def _folded(payload: Payload) -> str:
    return f"up to #{payload['drained_through_seq']}: {_block(payload['summary'])}"


def _block(text: str) -> str:
    """A text of several lines stands below its label, set in."""
    if "\n" not in text:
        return text
    return "\n" + "\n".join(f"    {line}" for line in text.split("\n"))


_KNOWN: Final[Mapping[str, Callable[[Payload], str]]] = {
    "input.admitted": _input,
    "turn.started": _started,
    "reply.received": _reply,
    "scratchpad": lambda payload: _block(payload["text"]),
    "cell.requested": _requested,
    "cell.finished": _finished,
    "local.sent": lambda payload: _block(payload["text"]),
    "turn.completed": lambda payload: str(payload["outcome"]),
    "turn.failed": _failed,
    "turn.interrupted": lambda payload: str(payload["why"]),
    "session.waiting": _waiting,
    "session.woken": _woken,
    "session.stopped": lambda _: "",
    "session.reopened": lambda _: "",
    "kernel.reset": lambda payload: str(payload["why"]),
    "frontier.installed": _folded,
}
