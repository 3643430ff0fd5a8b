"""Opening a store's file: ours or refused, migrated, and counted as one more boot."""

from __future__ import annotations

import os
import secrets
import sqlite3
from typing import TYPE_CHECKING, Final

from sqlite_utils import Database

from klbr_trio.errors import StoreForeign, StoreTooNew, StoreUnavailable
from klbr_trio.store.schema import APPLICATION_ID, KNOWN, MIGRATIONS

if TYPE_CHECKING:
    from pathlib import Path

_HEADER: Final = b"SQLite format 3\x00"


def open_writing(path: Path, now_ms: int) -> tuple[sqlite3.Connection, int]:
    """The writing connection, migrated, and the number of this opening.

    Raises:
        StoreForeign: The file is not a store, or can't be opened for writing.
        StoreTooNew: A newer version has changed it.
        StoreUnavailable: It can't be written at the moment.
    """
    _check_file(path)
    try:
        conn = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=0
        )
    except sqlite3.Error as exc:
        raise StoreForeign(f"{path} can't be opened: {exc}") from exc
    try:
        return conn, _prepare(conn, path, now_ms)
    except sqlite3.OperationalError as exc:
        conn.close()
        raise StoreUnavailable(f"{path} can't be written: {exc}") from exc
    except sqlite3.DatabaseError as exc:
        conn.close()
        raise StoreForeign(f"{path} is not a readable database: {exc}") from exc
    except BaseException:
        conn.close()
        raise


def _check_file(path: Path) -> None:
    """The file exists, is plain, ours by its header, and was made with mode 0600."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise StoreForeign(f"{path} can't be opened for writing: {exc.strerror}") from exc
    try:
        head = os.pread(fd, len(_HEADER), 0)
    except OSError as exc:
        raise StoreForeign(f"{path} can't be read: {exc.strerror}") from exc
    finally:
        os.close(fd)
    if head and head != _HEADER:
        raise StoreForeign(f"{path} is not a klbr_trio store; nothing in it was changed")


def _prepare(conn: sqlite3.Connection, path: Path, now_ms: int) -> int:
    _check_owner(conn, path)
    db = Database(conn, execute_plugins=False)
    _check_version(conn, db, path)
    conn.execute("PRAGMA busy_timeout = 5000")
    conn.execute("PRAGMA journal_mode = WAL").fetchall()
    conn.execute("PRAGMA synchronous = FULL")
    conn.execute("PRAGMA foreign_keys = ON")
    conn.execute("PRAGMA recursive_triggers = OFF")
    conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    MIGRATIONS.apply(db)
    conn.execute(f"PRAGMA user_version = {len(KNOWN)}")
    conn.execute("PRAGMA busy_timeout = 0")
    return _count_boot(conn, now_ms)


def _check_owner(conn: sqlite3.Connection, path: Path) -> None:
    (application_id,) = conn.execute("PRAGMA application_id").fetchall()[0]
    (tables,) = conn.execute("SELECT count(*) FROM sqlite_master").fetchall()[0]
    if application_id != APPLICATION_ID and tables:
        raise StoreForeign(
            f"{path} is a database of another program; nothing in it was changed. "
            "Name another state folder"
        )


def _check_version(conn: sqlite3.Connection, db: Database, path: Path) -> None:
    """Refuse a store that a newer version has migrated or stamped."""
    (version,) = conn.execute("PRAGMA user_version").fetchall()[0]
    unknown = {migration.name for migration in MIGRATIONS.applied(db)} - set(KNOWN)
    if unknown or version > len(KNOWN):
        raise StoreTooNew(
            f"{path} was made by a newer version of klbr_trio; use that version. "
            "Nothing in it was changed"
        )


def _count_boot(conn: sqlite3.Connection, now_ms: int) -> int:
    conn.execute("BEGIN IMMEDIATE")
    conn.execute(
        "INSERT OR IGNORE INTO meta (name, value) VALUES ('generation', ?)",
        (secrets.token_hex(16),),
    )
    conn.execute("INSERT INTO service (started_ms) VALUES (?)", (now_ms,))
    (boot,) = conn.execute("SELECT max(boot) FROM service").fetchall()[0]
    conn.execute("COMMIT")
    return int(boot)
