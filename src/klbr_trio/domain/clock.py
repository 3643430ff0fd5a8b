"""Time as the rest of the program sees it: the wall clock in integer milliseconds."""

from __future__ import annotations

import time
from typing import Final, Protocol

FARTHEST_MS: Final = 2**53
"""Times lie within ±this, where every JSON reader keeps integers exact: 285,000 years."""


class Clock(Protocol):
    """One injected value that tells the time and waits for it."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    async def sleep_until_ms(self, wake_at_ms: int) -> None:
        """Return at `wake_at_ms` or soon after, also across suspend and clock changes.

        It may return early when the wall clock was set; callers ask `now_ms` again.
        """
        ...


def within_reach(time_ms: int) -> int:
    """The nearest time to `time_ms` that can be stored and sent."""
    return max(-FARTHEST_MS, min(FARTHEST_MS, time_ms))


def wall_now_ms() -> int:
    """The wall clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
