"""The unix socket in the state folder: who can open the folder can speak to the service."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from klbr_trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

BACKLOG: Final = 128
_LONGEST_ADDRESS: Final = 107  # bytes that sun_path holds before its terminating NUL


@contextmanager
def socket_address(path: Path) -> Generator[str]:
    """An address for `path` that `bind` and `connect` take, however long the path is."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def open_unix_listener(path: Path) -> trio.SocketListener:
    """Listen at `path`, which only this user can reach.

    The folder is made with mode 0700 if it is missing, the socket has mode 0600 from
    its first moment, whatever the umask. The socket of a dead service is replaced.

    Raises:
        ConfigError: The folder is not this user's alone, something else than a socket
            of this user lies at the path, or somebody listens there.
    """
    _own_folder(path.parent)
    _clear(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # bind gives the file the mode of the unbound socket, less the umask, so there
        # is no moment at which it is open to others.
        os.fchmod(sock.fileno(), 0o600)
        with socket_address(path) as address:
            sock.bind(address)
        sock.listen(BACKLOG)
        return trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    except OSError as exc:
        sock.close()
        raise ConfigError(f"{path}: can't listen here: {exc.strerror}") from exc


def _own_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as exc:
        raise ConfigError(f"{folder}: can't be made: {exc.strerror}") from exc
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{folder}: belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(f"{folder}: is open to other users; run chmod 700 on it")


def _clear(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigError(f"{path}: is not a socket of this user; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            with socket_address(path) as address:
                probe.connect(address)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise ConfigError(f"{path}: another process listens here")
