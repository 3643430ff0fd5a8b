"""The wall clock, and waiting for it across suspend and clock changes.

Trio's own clock stands still in suspend and does not see the wall clock being set.
On Linux a timerfd on CLOCK_REALTIME does both, and costs nothing while it waits.
Elsewhere the wait is cut into naps of at most `NAP_S`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import TYPE_CHECKING, Final

import trio

from klbr_trio.domain.clock import wall_now_ms

if TYPE_CHECKING:
    from collections.abc import Generator

NAP_S: Final = 30.0

# <sys/timerfd.h>
_CLOCK_REALTIME: Final = 0
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_ABSTIME_CANCEL_ON_SET: Final = 1 | 2


class WallClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return wall_now_ms()

    async def sleep_until_ms(self, wake_at_ms: int) -> None:
        """Return at `wake_at_ms`, or earlier when the wall clock was set.

        Cancellation: returns at once; nothing is left behind.
        """
        if not sys.platform.startswith("linux"):
            await trio.sleep(min(NAP_S, max(0, wake_at_ms - wall_now_ms()) / 1000))
            return
        with _timer(max(1, wake_at_ms)) as fd:
            await trio.lowlevel.wait_readable(fd)


@contextlib.contextmanager
def _timer(wake_at_ms: int) -> Generator[int]:
    """A descriptor that is readable from `wake_at_ms` on, or once the clock was set."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.timerfd_create(_CLOCK_REALTIME, _NONBLOCK_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    try:
        # struct itimerspec: interval and value, each seconds and nanoseconds.
        timer = (ctypes.c_long * 4)(0, 0, wake_at_ms // 1000, wake_at_ms % 1000 * 1_000_000)
        if libc.timerfd_settime(fd, _ABSTIME_CANCEL_ON_SET, ctypes.byref(timer), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        yield fd
    finally:
        trio.lowlevel.notify_closing(fd)
        os.close(fd)
