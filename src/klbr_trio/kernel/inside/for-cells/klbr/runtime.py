"""How the turn that runs this cell is to end. The last of these calls counts."""

from __future__ import annotations

import datetime as dt
import math
import numbers

from klbr._kernel import calls

_FURTHEST_MS = 2**53
_REASON_CHARACTERS = 1000


async def wait(
    *, seconds: float | None = None, until: object = None, reason: str | None = None
) -> None:
    """The session sleeps when this cell has ended, and is woken at the time given.

    Args:
        seconds: How long from now.
        until: Instead of `seconds`: a datetime (local time if it is naive), an ISO 8601 text, or
            seconds since the epoch.
        reason: Shown to people and to the agent when it wakes.

    Raises:
        ValueError: Neither or both times were given, or it isn't one that can be waited for.
        RuntimeError: No cell is running.
    """
    if (seconds is None) == (until is None):
        raise ValueError("runtime.wait takes one of `seconds` and `until`")
    if reason is not None and not isinstance(reason, str):
        raise ValueError(f"`reason` is a str or None, not {type(reason).__name__}")
    args: dict[str, object] = {
        "seconds": None if seconds is None else duration(seconds),
        "until_ms": None if until is None else moment_ms(until),
        "reason": None if reason is None else reason[:_REASON_CHARACTERS],
    }
    await calls.call("runtime.wait", args)


async def done() -> None:
    """The turn is over when this cell has ended; nothing wakes the session by itself.

    Raises:
        RuntimeError: No cell is running.
    """
    await calls.call("runtime.done", {})


def duration(seconds: object) -> float:
    """`seconds` as a float; ValueError unless it is a time that can be waited for."""
    return _number(seconds, name="seconds")


def moment_ms(until: object) -> int:
    """`until` as milliseconds since the epoch; ValueError unless it names such a time."""
    if isinstance(until, str):
        return moment_ms(_parsed(until))
    if isinstance(until, dt.datetime):
        try:
            return moment_ms(until.timestamp())
        except (OverflowError, OSError) as error:
            raise ValueError("`until` is out of range") from error
    return int(_number(until, name="until") * 1000)


def _parsed(text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"`until` is not an ISO 8601 time: {text[:80]!r}") from error


def _number(value: object, *, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"`{name}` can't be a {type(value).__name__}")  # noqa: TRY004  # as stated
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"`{name}` is too far away") from error
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"`{name}` is finite and not negative, not {number}")
    if number * 1000 > _FURTHEST_MS:
        raise ValueError(f"`{name}` is too far away")
    return number
