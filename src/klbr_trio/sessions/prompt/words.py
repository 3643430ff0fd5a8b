"""The service's own words to the model: short notes in brackets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_NAMES: Final = 40
"""Names that are told; a model that is told more reads less."""

NUDGE: Final = (
    "[note: nobody has heard anything from you in this turn. What you write outside a call is a "
    "private scratchpad. To answer, call the tool with code such as "
    '`from klbr import local, runtime; await local.send("…"); await runtime.done()`. '
    "To leave it unanswered, reply once more without a call.]"
)

GO_ON: Final = "[note: a turn begins; go on with what is still to be done.]"

RECOVERY: Final = (
    "[note: earlier work was broken off by crashes, again and again, and is given up. Look at "
    "what was done of it, and tell whoever waits for it.]"
)

REOPENED: Final = (
    "[note: here the operator stopped the session, and later reopened it. Your Python kernel is a "
    "fresh one: every variable, import and running task is gone; files in the working directory "
    "remain. No wake time is set.]"
)

LEFT_OUT: Final = "[note: earlier parts of this conversation are left out here, for want of room.]"

_LATE_MS: Final = 1_000
"""Lateness below this is none."""

_RESET_WHY: Final = {
    "operator": "the operator reset it",
    "release": "the behaviour changed",
    "died": "the old one is dead",
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
    late = "" if not late_ms or late_ms < _LATE_MS else f", {span(late_ms)} late"
    why = f" Your reason: {reason.rstrip('.')}." if reason else ""
    return (
        f"[note: you are awake: the wake time you set, {moment(wake_at_ms)}, has come{late}.{why}]"
    )


def failed(payload: Mapping[str, Any]) -> str:
    """A turn failed."""
    return (
        f"[note: the turn above failed ({payload['code']}): {payload['message'].rstrip('. ')}. "
        "It is not repeated by itself; what you still owe somebody from it, do now.]"
    )


def interrupted(payload: Mapping[str, Any], *, goes_on: bool) -> str:
    """A turn was broken off; if it goes on, its reasons to run are still there."""
    why = _INTERRUPTED_WHY.get(payload["why"], payload["why"])
    if payload["why"] == "stopped":
        then = "What it was for is cancelled."
    elif not goes_on:
        then = (
            "That has happened too often: what it was for is given up. Tell whoever waits for it."
        )
    else:
        then = "What it was for is still to be done: look at what was done already, then go on."
        if payload["failed"]:
            then += (
                f" But {len(payload['failed'])} of its reasons to run are given up, since this has "
                "happened too often; tell whoever waits for them."
            )
    return f"[note: the turn above was broken off: {why}. {then}]"


def _gone(names: Sequence[str]) -> str:
    """The names that are gone, as far as the window shows how they were made."""
    if not names:
        return ""
    more = len(names) - MOST_NAMES
    listed = ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f" Gone are: {listed}."


def reopened(names: Sequence[str] = ()) -> str:
    """The operator has reset a stopped session."""
    return REOPENED.removesuffix("]") + _gone(names) + "]"


def kernel_reset(payload: Mapping[str, Any], names: Sequence[str] = ()) -> str:
    """The kernel is a new one."""
    why = _RESET_WHY.get(payload["why"], payload["why"])
    return (
        f"[note: your Python kernel is a fresh one ({why}): every variable, import and running "
        f"task is gone; files in the working directory remain.{_gone(names)}]"
    )


def maintenance(item_id: str, purpose: str) -> str:
    """A reason of somebody else's making."""
    return f"[note: maintenance is due: {purpose} (item {item_id}). Do it in this turn.]"


def summary(through_seq: int, text: str) -> str:
    """What a fold stands for."""
    return f"[summary of everything up to record {through_seq}]\n{text}"


def plain_note(text: str) -> str:
    """A note of somebody else's in the log."""
    return f"[note: {text}]"


def hint(text: str) -> str:
    """What the model should be told since no call arrived."""
    return f"[note: {text}]"


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
