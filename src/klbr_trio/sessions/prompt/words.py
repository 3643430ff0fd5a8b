"""The service's own words to the model: short notes in brackets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

NUDGE: Final = (
    "[note: nobody has heard anything from you. What you write here is a private scratchpad. "
    "To answer, call the python tool with `from klbr import local` and `await local.send(...)`; "
    "to end without an answer, reply with a short text and no call.]"
)

_RESET_WHY: Final = {
    "operator": "the operator reset it",
    "release": "the behaviour changed",
    "died": "its process died",
    "idle": "it was idle for long",
    "restart": "the service was restarted",
}

_INTERRUPTED_WHY: Final = {
    "stopped": "the operator stopped the session",
    "shutdown": "the service was shut down",
    "aborted": "it was aborted",
    "crash": "the service crashed",
}


def moment(ms: int) -> str:
    """A time as the model reads it; a number where no calendar reaches."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms after 1970"


def span(ms: int) -> str:
    """A duration as the model reads it."""
    seconds = ms / 1000
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def an_input(source: str, text: str, created_ms: int) -> str:
    """An input with who sent it and when."""
    return f"[input from {source}, {moment(created_ms)}]\n{text}"


def woken(wake_at_ms: int, late_ms: int | None, reason: str | None) -> str:
    """A deadline has come."""
    late = "" if not late_ms or late_ms < 1000 else f", {span(late_ms)} late"
    why = f" You were waiting for: {reason}." if reason else ""
    return f"[note: you are awake; your deadline of {moment(wake_at_ms)} has come{late}.{why}]"


def failed(payload: Mapping[str, Any]) -> str:
    """A turn failed."""
    return (
        f"[note: the turn before this failed ({payload['code']}): {payload['message']} "
        "What it was to answer counts as tried. If something is still owed, do it now.]"
    )


def interrupted(payload: Mapping[str, Any]) -> str:
    """A turn was broken off."""
    why = _INTERRUPTED_WHY.get(payload["why"], payload["why"])
    given_up = ""
    if payload["failed"]:
        count = len(payload["failed"])
        given_up = (
            f" {count} of its reasons to run were broken off too often and are given up; "
            "say so to whoever waits."
        )
    return (
        f"[note: the turn above was broken off: {why}. Look what was done before you do it "
        f"again.{given_up}]"
    )


def kernel_reset(payload: Mapping[str, Any]) -> str:
    """The kernel is a new one."""
    why = _RESET_WHY.get(payload["why"], payload["why"])
    return (
        f"[note: your Python kernel is a fresh one ({why}): every variable, import and running "
        "task is gone; files in the working directory remain.]"
    )


def recovery(attempt_id: str) -> str:
    """A turn of its own, to tell of broken-off work."""
    return (
        f"[note: an earlier turn ({attempt_id}) was broken off by a crash. "
        "Check what was done and tell whoever needs to know.]"
    )


def maintenance(item_id: str, purpose: str) -> str:
    """A reason of somebody else's making."""
    return f"[note: maintenance is due: {purpose} (item {item_id}). Do it in this turn.]"


def summary(through_seq: int, text: str) -> str:
    """What a fold stands for."""
    return f"[summary of everything up to record {through_seq}]\n{text}"


def left_out(count: int) -> str:
    """Older steps do not fit."""
    return f"[note: {count} earlier parts of this conversation are left out here.]"


def said_plainly() -> str:
    """A note of somebody else's in the log."""
    return "[note]"


def result(payload: Mapping[str, Any]) -> str:
    """A call's result."""
    parts = []
    if payload["output"]:
        parts.append(payload["output"].rstrip("\n"))
    if payload["value"] is not None:
        parts.append(f"=> {payload['value']}")
    if payload["error"] is not None:
        parts.append(f"[error] {payload['error']}")
    return "\n".join(parts) or "(no output)"
