"""Files that are this user's alone, whole or absent."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from typing import TYPE_CHECKING

from klbr_trio.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """`path` holds `content`, with mode 0600; a reader sees the old file or the new one.

    Durability: on the disk when this returns.

    Raises:
        OSError: It can't be written; what was there is untouched.
    """
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor has no path
            file.write(content)
            file.flush()
            os.fsync(fd)
        os.replace(name, path)  # noqa: PTH105 - what mkstemp gives is a str
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_private(path: Path, limit: int) -> bytes:
    """At most `limit` bytes of the plain file at `path`, which is this user's alone.

    Raises:
        FileNotFoundError: There is none.
        ConfigError: It is a link or no plain file, another user's, or open to others.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as exc:
        why = "is a symbolic link" if path.is_symlink() else f"can't be read: {exc.strerror}"
        raise ConfigError(f"{path}: {why}; move it away") from exc
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path}: is not a plain file; move it away")
        if found.st_uid != os.geteuid():
            raise ConfigError(f"{path}: belongs to another user; move it away")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigError(
                f"{path}: is open to other users, who may know it by now; delete it, "
                "or run chmod 600 on it if they can't have read it"
            )
        return os.read(fd, limit)
    finally:
        os.close(fd)
