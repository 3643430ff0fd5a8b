"""What must hold of a store at rest: every invariant that its tables and logs can show.

`check` reads the whole store and says what is wrong with it, one line a finding; a
sound store has none. It writes nothing, so it may run beside the service.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

import trio
from sqlite_utils import Database

from klbr_trio.errors import StoreBroken, StoreForeign, StoreTooNew
from klbr_trio.store.check_session import check_session
from klbr_trio.store.faults import is_broken, translate
from klbr_trio.store.reader import Reader, connect_readonly
from klbr_trio.store.schema import APPLICATION_ID, KNOWN, MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from klbr_trio.store.store import Store


async def check(store: Store) -> list[str]:
    """What is wrong with an open store; [] if nothing is."""
    return await trio.to_thread.run_sync(check_file, store.path, abandon_on_cancel=True)


def check_file(path: Path) -> list[str]:
    """What is wrong with the store at `path`; [] if nothing is.

    Raises:
        StoreForeign: It is no store of ours, or can't be opened.
        StoreTooNew: A newer version has made it.
        StoreUnavailable: It can't be read at the moment.
    """
    with closing(connect_readonly(path)) as conn:
        try:
            _identify(conn, path)
            conn.execute("BEGIN")  # one view of the store, whatever is written meanwhile
            return check_connection(conn)
        except sqlite3.Error as exc:
            raise translate(exc) from exc


def _identify(conn: sqlite3.Connection, path: Path) -> None:
    try:
        [(owner,)] = conn.execute("PRAGMA application_id").fetchall()
        [(version,)] = conn.execute("PRAGMA user_version").fetchall()
    except sqlite3.DatabaseError as exc:
        if not is_broken(exc):
            raise
        raise StoreForeign(f"{path} is not a readable database: {exc}") from exc
    if owner != APPLICATION_ID:
        raise StoreForeign(f"{path} is not a klbr_trio store")
    if version > len(KNOWN):
        raise StoreTooNew(f"{path} was made by a newer version of klbr_trio; use that version")


def check_connection(conn: sqlite3.Connection) -> list[str]:
    """What is wrong with the store that `conn` sees; [] if nothing is."""
    found: list[str] = []
    try:
        found.extend(_findings(conn))
    except StoreBroken as exc:
        found.append(f"the file: {exc}")
    except sqlite3.DatabaseError as exc:
        if not is_broken(exc):
            raise
        found.append(f"the file: {exc}")
    return found


def _findings(conn: sqlite3.Connection) -> Iterator[str]:
    yield from _schema(conn)
    yield from _integrity(conn)
    yield from _attempts(conn)
    yield from _work(conn)
    yield from _deadlines(conn)
    yield from _keys(conn)
    reader = Reader(conn)
    for (session_id,) in conn.execute("SELECT session_id FROM session").fetchall():
        for line in check_session(conn, reader, session_id):
            yield f"session {session_id}: {line}"


@cache
def _wanted_schema() -> dict[tuple[str, str], str]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as conn:
        MIGRATIONS.apply(Database(conn, execute_plugins=False))
        return _stored_schema(conn)


def _stored_schema(conn: sqlite3.Connection) -> dict[tuple[str, str], str]:
    rows = conn.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    ).fetchall()
    return {(kind, name): sql for kind, name, sql in rows}


def _schema(conn: sqlite3.Connection) -> Iterator[str]:
    stored = _stored_schema(conn)
    for (kind, name), sql in _wanted_schema().items():
        if stored.get((kind, name)) != sql:
            yield f"schema: {kind} {name} is missing or not as it should be"


def _integrity(conn: sqlite3.Connection) -> Iterator[str]:
    for (line,) in conn.execute("PRAGMA integrity_check").fetchall():
        if line != "ok":
            yield f"the file: {line}"
    for table, *_ in conn.execute("PRAGMA foreign_key_check").fetchall():
        yield f"table {table}: a row points at nothing"


def _attempts(conn: sqlite3.Connection) -> Iterator[str]:
    services = conn.execute(
        "SELECT boot, recovered_ms FROM service ORDER BY boot DESC LIMIT 1"
    ).fetchall()
    if not services:
        yield "no service is said to have opened the store"
        return
    [(latest, recovered)] = services
    rows = conn.execute(
        "SELECT a.id, a.session_id, a.boot, s.attempt_id FROM attempt AS a "
        "JOIN session AS s USING (session_id) WHERE a.ended_ms IS NULL"
    ).fetchall()
    for attempt_id, session_id, boot, shown in rows:
        if shown != attempt_id:
            yield f"attempt {attempt_id} is open, but session {session_id} shows {shown}"
        if boot < latest and recovered is not None:
            yield f"attempt {attempt_id} of boot {boot} is open after recovery"
    rows = conn.execute(
        "SELECT session_id, attempt_id FROM session WHERE attempt_id IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM attempt WHERE id = session.attempt_id AND ended_ms IS NULL)"
    ).fetchall()
    for session_id, attempt_id in rows:
        yield f"session {session_id} shows attempt {attempt_id}, which is not open"


def _work(conn: sqlite3.Connection) -> Iterator[str]:
    rows = conn.execute(
        "SELECT id FROM work_item AS w WHERE status = 'claimed' AND NOT EXISTS "
        "(SELECT 1 FROM attempt AS a WHERE a.id = w.attempt_id AND a.ended_ms IS NULL "
        "AND a.session_id = w.session_id)"
    ).fetchall()
    for (item_id,) in rows:
        yield f"work item {item_id} is claimed by no open attempt"


def _deadlines(conn: sqlite3.Connection) -> Iterator[str]:
    rows = conn.execute(
        "SELECT s.session_id, s.wake_at_ms, d.wake_at_ms FROM session AS s "
        "LEFT JOIN deadline AS d USING (session_id) WHERE s.wake_at_ms IS NOT d.wake_at_ms"
    ).fetchall()
    for session_id, shown, armed in rows:
        yield f"session {session_id} shows deadline {shown}, armed is {armed}"


def _keys(conn: sqlite3.Connection) -> Iterator[str]:
    rows = conn.execute(
        "SELECT session_id, seq FROM event WHERE kind = 'input.admitted' AND json_valid(payload) "
        "AND (source IS NOT json_extract(payload, '$.source') OR client_request_id IS NOT "
        "json_extract(payload, '$.client_request_id'))"
    ).fetchall()
    for session_id, seq in rows:
        yield f"session {session_id}: the source key of input {seq} is not the stored one"


def describe(lines: list[str]) -> str:
    """The findings as one text, for an assertion or a terminal."""
    return json.dumps(lines, ensure_ascii=False, indent=1)
