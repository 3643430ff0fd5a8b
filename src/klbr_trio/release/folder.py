"""Reading a folder whole, and refusing what has no place in a behaviour.

What is read is what is hashed and written: the bytes are held in memory (16 MiB
at most), never read a second time from a folder that may change meanwhile. The
walk goes down by directory descriptors and follows no link, so nothing outside
the folder can enter, whatever is swapped in while it runs.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from pathlib import Path
from typing import Final

import attrs

from klbr_trio.errors import ReleaseRefused
from klbr_trio.release.noise import is_noise

MAX_BYTES: Final = 16 * 1024 * 1024
MAX_FILES: Final = 2_000
MAX_FOLDERS: Final = 1_000
MAX_DEPTH: Final = 16
# Reading twice and comparing takes milliseconds; a folder that still changes
# after this many looks is being written to by something.
MAX_LOOKS: Final = 5

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNPRINTABLE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_KINDS: Final = {
    stat.S_IFLNK: ("a symbolic link", "put the file itself in its place"),
    stat.S_IFIFO: ("a pipe", "remove it"),
    stat.S_IFSOCK: ("a socket", "remove it"),
    stat.S_IFCHR: ("a device", "remove it"),
    stat.S_IFBLK: ("a device", "remove it"),
}


@attrs.frozen
class FolderFile:
    """One regular file: its path below the folder, with `/`, and its bytes."""

    path: str
    data: bytes = attrs.field(repr=lambda data: f"<{len(data)} bytes>")


@attrs.frozen
class FolderImage:
    """All that a folder held at one look."""

    files: tuple[FolderFile, ...]
    """Sorted by path."""
    empty: tuple[str, ...]
    """Folders without any file below them; they are no part of the content."""

    def get(self, path: str) -> bytes | None:
        """The bytes of the file at `path`, or None."""
        return next((file.data for file in self.files if file.path == path), None)


def read_source(root: Path) -> FolderImage:
    """The content of a behaviour folder, noise left out, seen twice the same.

    Raises:
        ReleaseRefused: Something has no place in a behaviour, is too much, can't
            be read, or the folder went on changing.
    """
    before = _read(root, with_noise=False)
    for _ in range(MAX_LOOKS):
        after = _read(root, with_noise=False)
        if after == before:
            return after
        before = after
    raise ReleaseRefused(f"{root}: changes while it is read; publish when nothing writes to it")


def read_published(root: Path) -> FolderImage:
    """The content of a published release, with everything that was not published.

    Raises:
        ReleaseRefused: As for a source; here it means that the release is damaged.
    """
    return _read(root, with_noise=True)


def _read(root: Path, *, with_noise: bool) -> FolderImage:
    walk = _Walk(root, with_noise=with_noise)
    try:
        top = os.open(root, _FLAGS | os.O_DIRECTORY)
    except OSError as exc:
        raise ReleaseRefused(f"{root}: can't be read as a folder ({exc.strerror})") from exc
    try:
        walk.folder(top, ())
    finally:
        os.close(top)
    files = tuple(sorted(walk.files, key=lambda file: file.path))
    return FolderImage(files=files, empty=tuple(sorted(walk.empty)))


@attrs.define(eq=False)
class _Walk:
    """One look at a folder; collects files and keeps the bounds."""

    root: Path
    with_noise: bool = attrs.field(kw_only=True)
    files: list[FolderFile] = attrs.field(factory=list, init=False)
    empty: list[str] = attrs.field(factory=list, init=False)
    _left: int = attrs.field(default=MAX_BYTES, init=False)
    _folders: int = attrs.field(default=0, init=False)
    _spelt: dict[str, str] = attrs.field(factory=dict, init=False)

    def folder(self, fd: int, parts: tuple[str, ...]) -> None:
        """Everything below the open folder `fd` is collected, or refused."""
        self._folders += 1
        if self._folders > MAX_FOLDERS or len(parts) > MAX_DEPTH:
            raise self._refused(
                parts, f"more than {MAX_FOLDERS} folders or {MAX_DEPTH} levels", "make it flatter"
            )
        count = len(self.files)
        try:
            with os.scandir(fd) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError as exc:
            raise self._unreadable(parts, exc) from exc
        for name in names:
            if self.with_noise or not is_noise(name):
                self._entry(fd, (*parts, name))
        if parts and len(self.files) == count:
            self.empty.append("/".join(parts))

    def _entry(self, fd: int, parts: tuple[str, ...]) -> None:
        self._check_name(parts)
        try:
            # Asked before it is opened, since opening alone can do something: a
            # pipe waits for its writer, a device acts.
            mode = os.stat(parts[-1], dir_fd=fd, follow_symlinks=False).st_mode
            self._check_kind(parts, mode)
            child = os.open(parts[-1], _FLAGS | os.O_NONBLOCK, dir_fd=fd)
        except OSError as exc:
            raise self._unreadable(parts, exc) from exc
        try:
            mode = os.fstat(child).st_mode
            self._check_kind(parts, mode)
            if stat.S_ISDIR(mode):
                self.folder(child, parts)
            else:
                self._file(child, parts)
        finally:
            os.close(child)

    def _file(self, fd: int, parts: tuple[str, ...]) -> None:
        if len(self.files) == MAX_FILES:
            raise self._refused(parts, f"more than {MAX_FILES} files", "keep only what cells need")
        try:
            with os.fdopen(fd, "rb", closefd=False) as stream:
                data = stream.read(self._left + 1)
        except OSError as exc:
            raise self._unreadable(parts, exc) from exc
        self._left -= len(data)
        if self._left < 0:
            raise self._too_much("/".join(parts), os.fstat(fd).st_size)
        self.files.append(FolderFile("/".join(parts), data))

    def _too_much(self, path: str, size: int) -> ReleaseRefused:
        """The file at hand only tips the scale; the largest is the one to look at."""
        sizes = {file.path: len(file.data) for file in self.files} | {path: size}
        largest = max(sizes, key=lambda name: sizes[name])
        return self._refused(
            (),
            f"holds more than {MAX_BYTES // 2**20} MiB, the largest file being {largest}",
            "keep large data outside the behaviour",
        )

    def _check_name(self, parts: tuple[str, ...]) -> None:
        name = parts[-1]
        if "\\" in name or any(unicodedata.category(char) in _UNPRINTABLE for char in name):
            raise self._refused(
                parts, "a name with a backslash, control character or bytes not UTF-8", "rename it"
            )
        path = "/".join(parts)
        # Two such names are one file on macOS and Windows.
        other = self._spelt.setdefault(unicodedata.normalize("NFC", path).casefold(), path)
        if other != path:
            raise self._refused(parts, f"differs from {other!a} only in spelling", "rename one")

    def _check_kind(self, parts: tuple[str, ...], mode: int) -> None:
        kind = stat.S_IFMT(mode)
        if kind not in {stat.S_IFDIR, stat.S_IFREG}:
            what, advice = _KINDS.get(kind, ("no plain file", "remove it"))
            raise self._refused(parts, f"is {what}", advice)

    def _unreadable(self, parts: tuple[str, ...], exc: OSError) -> ReleaseRefused:
        return self._refused(parts, f"can't be read ({exc.strerror})", "make it readable")

    def _refused(self, parts: tuple[str, ...], what: str, advice: str) -> ReleaseRefused:
        shown = "/".join((str(self.root), *parts))
        # Quoted only when it must be: most messages then read as a plain path.
        shown = shown if shown.isprintable() else ascii(shown)
        return ReleaseRefused(f"{shown}: {what}; {advice}")
