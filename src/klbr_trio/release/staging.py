"""Putting a release in its place: whole, on the disk, or not at all.

A release is written into a folder of its own beside its final place, synced, and
renamed there. A process that dies on the way leaves a `.publish-…` folder, whose
name is no digest and which therefore never opens; a later publication clears it.
Two publishers write two such folders, and the second to rename finds the work done.
Only what is damaged is ever moved out, by one publisher at a time.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klbr_trio.errors import ReleaseRefused

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from klbr_trio.release.folder import FolderFile

_PREFIX: Final = ".publish-"
# A publication takes seconds. One that was stopped for this long and goes on
# then fails with a plain error, and can be repeated.
_STALE_S: Final = 3600.0
_FILE_MODE: Final = 0o400
_FOLDER_MODE: Final = 0o500
_RELEASES_MODE: Final = 0o700


def prepare(releases: Path) -> None:
    """The releases folder exists, is a real folder, and is the owner's alone.

    Raises:
        ReleaseRefused: It is something else, or can't be made.
    """
    try:
        releases.mkdir(mode=_RELEASES_MODE, parents=True, exist_ok=True)
        if releases.is_symlink():
            raise ReleaseRefused(f"{releases}: is a symbolic link; name the folder itself")
        _seal(releases, mode=_RELEASES_MODE)
    except OSError as exc:
        raise ReleaseRefused(
            f"{releases}: can't be used for releases ({exc.strerror}); name a folder of your own"
        ) from exc


@contextmanager
def staged(files: Iterable[FolderFile], releases: Path) -> Generator[Path]:
    """A synced, read-only folder with `files`, beside its final place.

    Whatever of it is still there at the end is removed.
    """
    # The folder itself is renamed, not one inside it: moving a read-only folder
    # to another parent is refused to everybody but root.
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=releases))
    try:
        _clear_stale(releases, now=folder.stat().st_mtime)
        _write(files, folder)
        yield folder
    finally:
        discard(folder)


def move_in(folder: Path, target: Path) -> bool:
    """The staged `folder` is at `target`, durably; False if something else is there."""
    try:
        folder.rename(target)
    except OSError:
        if not os.path.lexists(target):
            raise
        return False
    _seal(target.parent, mode=_RELEASES_MODE)
    return True


def move_out(target: Path) -> None:
    """What was at `target` is gone."""
    aside = target.with_name(f"{_PREFIX}{secrets.token_hex(8)}")
    try:
        target.rename(aside)
    except FileNotFoundError:
        return
    discard(aside)


@contextmanager
def alone(releases: Path) -> Generator[None]:
    """No other process is in such a block for the same folder."""
    fd = os.open(releases, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def discard(path: Path) -> None:
    """`path` is gone, with all its read-only folders; nothing happens if it is not there."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        path.unlink(missing_ok=True)
        return
    for folder, _folders, _files in os.walk(path):
        with suppress(OSError):  # another publisher clears the same
            Path(folder).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def _write(files: Iterable[FolderFile], root: Path) -> None:
    folders = {root}
    for file in files:
        path = root / file.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folders.update(parent for parent in path.parents if parent.is_relative_to(root))
        _write_file(path, file.data)
    for folder in folders:
        _seal(folder, mode=_FOLDER_MODE)


def _write_file(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)
        stream.flush()
        # Set, not asked for at creation: the umask has no say in it.
        os.fchmod(fd, _FILE_MODE)
        os.fsync(fd)


def _seal(folder: Path, *, mode: int) -> None:
    """The folder has this mode, and its entries are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchmod(fd, mode)
        os.fsync(fd)
    finally:
        os.close(fd)


def _clear_stale(releases: Path, *, now: float) -> None:
    """What dead publishers left is gone. `now` is the file system's own time."""
    for entry in releases.iterdir():
        if not entry.name.startswith(_PREFIX):
            continue
        try:
            old = now - entry.lstat().st_mtime > _STALE_S
        except FileNotFoundError:
            continue  # its publisher has just finished
        if old:
            discard(entry)
