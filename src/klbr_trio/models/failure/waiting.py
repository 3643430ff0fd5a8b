"""How long a provider asks to be left alone: headers in all their spellings, or its own words."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = (
    r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)(?:econds?|ecs?|illiseconds?|in(?:ute)?s?|ours?|ays?)?"
)
_PARTS: Final = re.compile(_PART)
_DURATION: Final = re.compile(rf"(?:{_PART}\s*)+")
_IN_WORDS: Final = re.compile(
    rf"(?:again|retry|reset\w*|wait)\b[^.\d]{{0,30}}?((?:{_PART}\s*)+)", re.IGNORECASE
)
_RESETS: Final = (
    "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens", "x-ratelimit-reset",
    "ratelimit-reset", "anthropic-ratelimit-requests-reset", "anthropic-ratelimit-tokens-reset",
)  # fmt: skip
_EPOCH_S: Final = 1e9  # a number beyond it is a date, not a duration
_EPOCH_MS: Final = 1e11


def asked_to_wait(headers: Mapping[str, str], words: str, *, limited: bool = True) -> float | None:
    """The seconds that the provider names, None if it names none.

    `Retry-After` counts before reset headers; of those the one whose budget is used up, else the
    shortest; then what the words say. Dates are measured against the answer's own `Date`, so that
    two clocks need not agree; without one they say nothing.

    Args:
        headers: The answer's headers, names in lower case.
        words: The provider's sentence.
        limited: Whether a limit was hit; without one, reset headers and words mean nothing.
    """
    now = _date(headers.get("date", ""))
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    after = _seconds(headers.get("retry-after"), now)
    if after is not None or not limited:
        return after
    resets = {
        name: seconds
        for name in _RESETS
        if (seconds := _seconds(headers.get(name), now)) is not None
    }
    used_up = [
        seconds
        for name, seconds in resets.items()
        if headers.get(name.replace("reset", "remaining")) == "0"
    ]
    if resets:
        return max(used_up) if used_up else min(resets.values())
    found = _IN_WORDS.search(words)
    return duration(found[1]) if found else None


def duration(text: str) -> float | None:
    """`1.2s`, `6m0s`, `150ms`, `2 minutes` in seconds; None if it is no duration."""
    if not _DURATION.fullmatch(text.strip().lower()):
        return None
    return sum(float(value) * _UNITS[unit] for value, unit in _PARTS.findall(text.lower()))


def _seconds(value: str | None, now: datetime | None) -> float | None:
    if value is None:
        return None
    number = _number(value)
    if number is not None and number < _EPOCH_S:
        return number
    length = duration(value)
    if length is not None:
        return length
    until = _date(value) if number is None else _epoch(number)
    if until is None or now is None:
        return None
    return max(0.0, (until - now).total_seconds())


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < _EPOCH_MS * 1000 else None


def _epoch(number: float) -> datetime:
    return datetime.fromtimestamp(number / 1000 if number >= _EPOCH_MS else number, UTC)


def _date(value: str) -> datetime | None:
    """A date, as HTTP or ISO 8601 spells it."""
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
