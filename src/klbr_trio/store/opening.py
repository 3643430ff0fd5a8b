"""Opening a store's file: ours or refused, migrated, and counted as one more boot."""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
import stat
from typing import TYPE_CHECKING, Final

from sqlite_utils import Database

from klbr_trio.errors import StoreForeign, StoreTooNew
from klbr_trio.store.faults import is_broken, translate
from klbr_trio.store.schema import APPLICATION_ID, KNOWN, MIGRATIONS

if TYPE_CHECKING:
    from pathlib import Path

_HEADER: Final = b"SQLite format 3\x00"
_OWNER_AT: Final = slice(68, 72)  # where SQLite's header has the application id
_HEAD_BYTES: Final = 100


def refuse_foreign(path: Path) -> None:
    """Refuse what plainly is no store, before anything is made beside it.

    Raises:
        StoreForeign: It is a link, a folder, a device or another program's file.
    """
    if not (path.exists() or path.is_symlink()):
        return
    _check_head(path, _read_head(path, os.O_RDONLY))


def open_writing(path: Path, now_ms: int, *, busy_s: float) -> tuple[sqlite3.Connection, int]:
    """The writing connection, migrated, and the number of this opening.

    Args:
        path: The database file; made with mode 0600 if it is missing.
        now_ms: The time of this opening.
        busy_s: How long another process that holds the file is waited for.

    Raises:
        StoreForeign: The file is not a store, or can't be opened for writing.
        StoreTooNew: A newer version has changed it.
        StoreBroken: It is a store, and corrupt.
        StoreUnavailable: It can't be written at the moment.
    """
    head = _read_head(path, os.O_RDWR | os.O_CREAT)
    _check_head(path, head)
    try:
        conn = sqlite3.connect(
            path,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            timeout=busy_s,
        )
    except sqlite3.Error as exc:
        raise StoreForeign(f"{path} can't be opened: {exc}") from exc
    try:
        return conn, _prepare(conn, path, now_ms)
    except sqlite3.Error as exc:
        conn.close()
        raise _opening_failed(path, head, exc) from exc
    except BaseException:
        conn.close()
        raise


def _opening_failed(path: Path, head: bytes, exc: sqlite3.Error) -> Exception:
    if is_broken(exc) and _owner(head) != APPLICATION_ID:
        return StoreForeign(f"{path} is not a readable database: {exc}; nothing was changed")
    return translate(exc)


def _read_head(path: Path, flags: int) -> bytes:
    """The file's first bytes; it is a plain file."""
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StoreForeign(f"{path} is not a plain file")
            return os.pread(fd, _HEAD_BYTES, 0)
        finally:
            os.close(fd)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise StoreForeign(f"{path} is a symbolic link; name the file itself") from exc
        raise StoreForeign(f"{path} can't be opened: {exc.strerror}") from exc


def _check_head(path: Path, head: bytes) -> None:
    if head and not head.startswith(_HEADER):
        raise StoreForeign(f"{path} is not a klbr_trio store; nothing in it was changed")


def _owner(head: bytes) -> int:
    return int.from_bytes(head[_OWNER_AT], "big")


def _prepare(conn: sqlite3.Connection, path: Path, now_ms: int) -> int:
    _check_owner(conn, path)
    db = Database(conn, execute_plugins=False)
    _check_version(conn, db, path)
    (mode,) = conn.execute("PRAGMA journal_mode = WAL").fetchall()[0]
    if mode != "wal":
        raise StoreForeign(f"{path} lies where SQLite can't keep a write-ahead log ({mode})")
    conn.execute("PRAGMA synchronous = FULL")
    conn.execute("PRAGMA foreign_keys = ON")
    # On, or REPLACE would get around the triggers that keep rows from going.
    conn.execute("PRAGMA recursive_triggers = ON")
    conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    MIGRATIONS.apply(db)
    conn.execute(f"PRAGMA user_version = {len(KNOWN)}")
    boot = _count_boot(conn, now_ms)
    conn.execute("PRAGMA busy_timeout = 0")  # from here on the writer waits, in the loop
    return boot


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
