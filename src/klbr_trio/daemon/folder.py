"""The state folder: where a service keeps everything, for this user alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import attrs

from klbr_trio.errors import ConfigError

_DATABASE: Final = "klbr.sqlite"
_OUR_NAMES: Final = frozenset(
    {
        _DATABASE,
        f"{_DATABASE}-wal",
        f"{_DATABASE}-shm",
        "klbr.sock",
        "klbr.toml",
        "lock",
        "read-tokens",
        "releases",
        "sandbox",
        "service.json",
        "token",
        "workspaces",
    }
)
_READ_ALONE: Final = frozenset({"klbr.toml", "read-tokens", "token"})
"""The user's own settings, and secrets: who reads these decides what is wrong with them."""


@attrs.frozen
class StateFolder:
    """The names in a state folder; nothing is said about what is there."""

    path: Path

    @property
    def database(self) -> Path:
        """The store's file."""
        return self.path / _DATABASE

    @property
    def lock(self) -> Path:
        """Held for the service's life."""
        return self.path / "lock"

    @property
    def token(self) -> Path:
        """The service's token."""
        return self.path / "token"

    @property
    def read_tokens(self) -> Path:
        """The tokens that only let one look."""
        return self.path / "read-tokens"

    @property
    def socket(self) -> Path:
        """The unix socket."""
        return self.path / "klbr.sock"

    @property
    def releases(self) -> Path:
        """The published behaviours."""
        return self.path / "releases"

    @property
    def workspaces(self) -> Path:
        """The folders that cells run in."""
        return self.path / "workspaces"

    @property
    def announcement(self) -> Path:
        """Where the service says that it is ready, and at which address."""
        return self.path / "service.json"

    @property
    def sandbox(self) -> Path:
        """What stands around the kernels of the ready service, in words."""
        return self.path / "sandbox"

    @property
    def config(self) -> Path:
        """The settings file."""
        return self.path / "klbr.toml"


def prepare(path: Path) -> StateFolder:
    """The folder at `path` is there, this user's alone, and can be written.

    A missing one is made with mode 0700. One that others can look into is closed to
    them when it holds nothing but our own files.

    Raises:
        ConfigError: It can't be so; the message says what to do.
    """
    path = path.absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as exc:
        raise ConfigError(
            f"the state folder {path} can't be made: {exc.strerror}; name another with --state"
        ) from exc
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(
            f"the state folder {path} is a symbolic link; name the folder itself with --state"
        )
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"the state folder {path} belongs to another user; name another with --state"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        _close_to_others(path, stat.S_IMODE(found.st_mode))
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"the state folder {path} can't be written; name another with --state, "
            "or mend its permissions"
        )
    for name in sorted(_OUR_NAMES - _READ_ALONE):
        _check_own(path / name)
    return StateFolder(path)


def _check_own(path: Path) -> None:
    """What lies at one of our names is this user's, no link, and closed to others."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(f"{path}: is a symbolic link; move it away")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{path}: belongs to another user; move it away")
    if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o600)


def _close_to_others(path: Path, mode: int) -> None:
    others_write = mode & 0o022
    foreign = sorted({entry.name for entry in path.iterdir()} - _OUR_NAMES)
    if foreign or (others_write and any(path.iterdir())):
        raise ConfigError(
            f"the state folder {path} is open to other users (mode {mode:04o}); "
            "run chmod 700 on it, or name another with --state"
        )
    path.chmod(0o700)
