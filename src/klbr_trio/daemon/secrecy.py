"""What this process shows of itself to others on the machine: nothing."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def hide_process() -> None:
    """No other process of this user may read our memory, and no core is dumped.

    Files and folders made from here on are this user's alone.
    """
    os.umask(0o077)
    # Without procfs secrets there is nothing to lose where this is not Linux.
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def forget_variable(name: str) -> None:
    """The environment variable is gone, also from what `/proc/PID/environ` shows."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    # The first block of the environment is what procfs shows, and only its bytes
    # count there: unsetting the variable moves pointers and leaves them.
    address = libc.getenv(os.fsencode(name))
    if address:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    os.environ.pop(name, None)
