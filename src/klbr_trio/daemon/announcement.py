"""`service.json`: a ready service says where it is. The lock says whether it lives."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import attrs

from klbr_trio.daemon.private import read_private, write_private
from klbr_trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_LONGEST: Final = 65_536


@attrs.frozen(kw_only=True)
class Announcement:
    """What a ready service says of itself.

    Attributes:
        url: `http://HOST:PORT`.
        socket: The path of the unix socket.
    """

    pid: int
    url: str
    socket: str
    started_ms: int
    version: str


@contextlib.contextmanager
def announced(path: Path, announcement: Announcement) -> Generator[None]:
    """Inside the block the file at `path` says `announcement`.

    Raises:
        ConfigError: It can't be written.
    """
    try:
        write_private(path, json.dumps(attrs.asdict(announcement)).encode() + b"\n")
    except OSError as exc:
        raise ConfigError(f"{path}: can't be written: {exc.strerror}") from exc
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def read_announcement(path: Path) -> Announcement | None:
    """What the file at `path` says; None if it is missing or says nothing sensible.

    Raises:
        ConfigError: The file is not this user's alone.
    """
    try:
        values = json.loads(read_private(path, _LONGEST))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return _structured(values)


def _structured(values: Any) -> Announcement | None:  # noqa: ANN401 - JSON
    if not isinstance(values, dict):
        return None
    kinds = {"pid": int, "url": str, "socket": str, "started_ms": int, "version": str}
    if any(not isinstance(values.get(name), kind) for name, kind in kinds.items()):
        return None
    return Announcement(**{name: values[name] for name in kinds})
