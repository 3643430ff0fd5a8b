"""What an error of SQLite means: the one place where its codes become ours."""

from __future__ import annotations

import sqlite3
from typing import Final

from klbr_trio.errors import StoreBroken, StoreUnavailable

_BROKEN: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_UNAVAILABLE: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_PERM,
    }
)


def code(exc: sqlite3.Error) -> int:
    """The primary result code; 0 for an error that Python's module made itself."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF


def is_broken(exc: Exception) -> bool:
    """Whether the file is corrupt."""
    return isinstance(exc, sqlite3.Error) and code(exc) in _BROKEN


def translate(exc: Exception) -> Exception:
    """What a caller is told of `exc`; what is no error of the file goes as it is."""
    if not isinstance(exc, sqlite3.Error):
        return exc
    if is_broken(exc):
        return StoreBroken(f"the store's file is corrupt: {exc}; restore a backup")
    if code(exc) in _UNAVAILABLE:
        return StoreUnavailable(f"the store's file can't be used now: {exc}")
    return exc
