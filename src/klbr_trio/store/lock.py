"""One owner a store: an open-file-description lock whose file names its holder.

The kernel drops the lock with its holder, however that ends, so a lock is never
stale. It can be asked for without being taken.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.errors import StoreForeign, StoreLocked, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

# struct flock of Linux on 64 bits: type, whence, start, length, pid.
_FLOCK: Final = "hhqqi4x"


@attrs.frozen
class Holder:
    """Who holds a store.

    Attributes:
        pid: None when the file does not say.
    """

    pid: int | None


@contextlib.contextmanager
def hold(path: Path) -> Generator[None]:
    """The lock at `path` is ours inside the block.

    Raises:
        StoreLocked: Somebody else holds it; the message names them.
        StoreForeign: The file can't be opened or locked.
        StoreUnavailable: The disk has no room for our name.
    """
    fd = _open(path, os.O_RDWR | os.O_CREAT)
    try:
        _take(fd, path)
        yield
    finally:
        os.close(fd)


def _take(fd: int, path: Path) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
    except OSError as exc:
        if exc.errno not in (errno.EAGAIN, errno.EACCES):
            raise StoreForeign(f"{path} can't be locked: {exc.strerror}") from exc
        holder = _holder(fd)
        who = f"process {holder.pid}" if holder.pid else "another process"
        raise StoreLocked(
            f"the store is in use by {who} (lock {path}); stop that service first"
        ) from exc
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"pid": os.getpid()}).encode(), 0)
    except OSError as exc:
        raise StoreUnavailable(f"{path} can't be written: {exc.strerror}") from exc


def holder(path: Path) -> Holder | None:
    """Who holds the lock at `path`, or None; takes nothing and writes nothing."""
    try:
        fd = _open(path, os.O_RDWR)
    except StoreForeign:
        return None
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
        kind = struct.unpack(_FLOCK, answer)[0]
        return None if kind == fcntl.F_UNLCK else _holder(fd)
    finally:
        os.close(fd)


def _flock(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def _holder(fd: int) -> Holder:
    try:
        pid = json.loads(os.pread(fd, 4096, 0))["pid"]
    except (ValueError, KeyError, TypeError):
        return Holder(None)
    return Holder(pid if isinstance(pid, int) else None)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise StoreForeign(f"{path} can't be opened: {exc.strerror}") from exc
