"""The service's tokens: 32 random bytes each, in files of mode 0600.

The one that may do everything is made at the first start. Those that only let one look
are made on request, and stand in a file of their own, one a line.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from typing import TYPE_CHECKING, Final

from klbr_trio.daemon.private import read_private, write_private
from klbr_trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_BYTES: Final = 32
_LONGEST: Final = 4096
MOST_READ_TOKENS: Final = 100
_LONGEST_LIST: Final = 65_536
_FORM: Final = re.compile(r"[A-Za-z0-9_-]{32,512}")
"""At least 128 random bits, and nothing that a header or a subprotocol can't carry."""


def read_token(path: Path) -> str:
    """The token in the file at `path`.

    Raises:
        FileNotFoundError: There is none.
        ConfigError: The file is not this user's alone, or holds no token.
    """
    text = read_private(path, _LONGEST).decode("ascii", "replace").strip()
    if not _FORM.fullmatch(text):
        raise ConfigError(
            f"{path}: does not hold a token (32 to 512 of A-Z a-z 0-9 _ -); "
            "delete it, and the next start makes a new one"
        )
    return text


def keep_token(path: Path) -> str:
    """The token in the file at `path`, made if there is none.

    Raises:
        ConfigError: The file is not this user's alone, holds no token, or can't be made.

    Durability: the token survives a power cut.
    """
    try:
        return read_token(path)
    except FileNotFoundError:
        pass
    return rotate_token(path)


def rotate_token(path: Path) -> str:
    """A new token in the file at `path`, whatever was there.

    Raises:
        ConfigError: It can't be written; the old one still counts.

    Durability: the token survives a power cut.
    """
    token = secrets.token_hex(_BYTES)
    _write(path, [token])
    return token


def load_read_tokens(path: Path) -> tuple[str, ...]:
    """The read-only tokens in the file at `path`; none if there is no file.

    Raises:
        ConfigError: The file is not this user's alone, or holds something else.
    """
    try:
        lines = read_private(path, _LONGEST_LIST).decode("ascii", "replace").split()
    except FileNotFoundError:
        return ()
    if not all(_FORM.fullmatch(line) for line in lines):
        raise ConfigError(
            f"{path}: does not hold tokens, one a line; delete it, and make new ones with "
            "klbr token new --read-only"
        )
    return tuple(lines)


def add_read_token(path: Path, *, alone: bool = False) -> str:
    """A new read-only token, beside those in the file at `path` or instead of them all.

    Raises:
        ConfigError: The file is not as it must be, is full, or can't be written.

    Durability: the token survives a power cut.
    """
    token = secrets.token_hex(_BYTES)
    with _nobody_else(path.parent):
        others = () if alone else load_read_tokens(path)
        if len(others) >= MOST_READ_TOKENS:
            raise ConfigError(
                f"{path}: holds {len(others)} tokens; replace them all by one with "
                "klbr token rotate --read-only"
            )
        _write(path, [*others, token])
    return token


@contextlib.contextmanager
def _nobody_else(folder: Path) -> Generator[None]:
    """Two who add a token at the same time both succeed."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _write(path: Path, tokens: list[str]) -> None:
    try:
        write_private(path, "".join(f"{token}\n" for token in tokens).encode())
    except OSError as exc:
        raise ConfigError(f"{path}: the token can't be written: {exc.strerror}") from exc
