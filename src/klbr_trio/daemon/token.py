"""The service's token: 32 random bytes, made at the first start, in a file of mode 0600."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Final

from klbr_trio.daemon.private import read_private, write_private
from klbr_trio.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_BYTES: Final = 32
_LONGEST: Final = 4096
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
    token = secrets.token_hex(_BYTES)
    try:
        write_private(path, token.encode() + b"\n")
    except OSError as exc:
        raise ConfigError(f"{path}: the token can't be written: {exc.strerror}") from exc
    return token
