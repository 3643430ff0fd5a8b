"""Reading a session's workspace from the host: never out of it, never for ever.

Cells write there what they like: links to the host's files, pipes that nobody fills, devices,
folders that are exchanged for links while somebody looks. So nothing here opens a path by name;
the operating system is told to stay beneath the folder, and what opens is looked at before it is
read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from typing import TYPE_CHECKING, Final

from klbr_trio.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_OPENAT2: Final = 437  # the same on every architecture
_RESOLVE_NO_XDEV: Final = 0x01
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_BENEATH: Final = 0x08
_CHUNK: Final = 1 << 20


class WorkspaceRefused(KernelError):
    """That is no plain file of the workspace; the message says why."""


def read_file(workspace: Path, name: str, *, most: int) -> bytes:
    """The first `most` bytes of the file `name` of the workspace.

    Links are followed as long as they stay inside. Blocks for a plain file's reading, no longer.

    Raises:
        WorkspaceRefused: It isn't there, is no plain file, or leads out of the workspace.
    """
    with _opened(workspace, name) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise WorkspaceRefused(f"{name!r} is no plain file")
        data = bytearray()
        while len(data) < most:
            part = os.read(fd, min(_CHUNK, most - len(data)))
            if not part:
                break
            data += part
        return bytes(data)


@contextlib.contextmanager
def _opened(workspace: Path, name: str) -> Generator[int]:
    try:
        top = os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise WorkspaceRefused(f"the workspace can't be opened: {error.strerror}") from error
    try:
        fd = _open_beneath(top, name)
    finally:
        os.close(top)
    try:
        yield fd
    finally:
        os.close(fd)


def _open_beneath(top: int, name: str) -> int:
    # Not to wait for a pipe's other end, and not to become the owner of a terminal.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    how = struct.pack(
        "=QQQ", flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_XDEV
    )
    try:
        path = os.fsencode(name)
    except UnicodeEncodeError as error:
        raise WorkspaceRefused(f"{name!r} is no name of a file") from error
    if b"\0" in path or not path:
        raise WorkspaceRefused(f"{name!r} is no name of a file")
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(8):  # EAGAIN: something was moved meanwhile
        fd = int(libc.syscall(_OPENAT2, top, path, how, ctypes.c_size_t(len(how))))
        if fd >= 0:
            return fd
        if ctypes.get_errno() != errno.EAGAIN:
            break
    raise WorkspaceRefused(f"{name!r}: {os.strerror(ctypes.get_errno())}")
