"""Finding a kernel's processes when its warden can't: by a mark that they all inherit.

Every process of a kernel has the kernel's number as a resource limit that has no effect (file
locks), and in the environment that it was started with. Both survive fork and setsid, the limit
also an exec with an empty environment, and the limit can be read of a process that is dead but
not yet reaped.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
from pathlib import Path
from typing import Final

import trio

MARK_VARIABLE: Final = "KLBR_KERNEL"
_PR_SET_CHILD_SUBREAPER: Final = 36
_PASS_S: Final = 0.002


def fresh_mark() -> int:
    """A number that no other kernel has."""
    return secrets.randbits(61) | 1 << 61


def adopt_orphans() -> None:
    """This process becomes the parent of what a dead warden leaves behind.

    Raises:
        OSError: The operating system can't do that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def marked(mark: int) -> list[int]:
    """Every process that carries `mark`, dead ones that nobody has reaped too."""
    in_limits = str(mark).encode()
    in_environment = f"{MARK_VARIABLE}={mark}".encode()
    return [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit()
        and (
            _limit_line(path).find(in_limits) >= 0
            or in_environment in _contents(path / "environ").split(b"\0")
        )
    ]


async def sweep(mark: int, *, deadline: float) -> tuple[int, tuple[int, ...]]:
    """Kills and reaps what carries `mark`, until nothing does or `deadline` has passed.

    Returns:
        How many processes were killed, and those that were still there at the end.
    """
    killed: set[int] = set()
    while left := [pid for pid in marked(mark) if not _reaped(pid)]:
        if trio.current_time() > deadline:
            return len(killed), tuple(left)
        for pid in left:
            killed.add(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await trio.sleep(_PASS_S)
    return len(killed), ()


def _reaped(pid: int) -> bool:
    """Reaps `pid` if it is dead and a child of this process."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _limit_line(process: Path) -> bytes:
    limits = _contents(process / "limits")
    start = limits.find(b"Max file locks")
    return limits[start : limits.find(b"\n", start)] if start >= 0 else b""


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended, or belongs to somebody else
