"""Reading: on a read-only connection of its own, which never checkpoints.

Small reads run where they are called; none here takes more than a page.
"""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import attrs

from klbr_trio.domain.frontier import Frontier
from klbr_trio.store.rows import (
    SESSION_COLUMNS,
    WORK_COLUMNS,
    EventRow,
    SessionRow,
    session_row,
    work_row,
)

if TYPE_CHECKING:
    from pathlib import Path

    from klbr_trio.domain.work import WorkItem

PAGE: Final = 250
"""Rows read at a time: about 0.2 ms."""

_SESSION: Final = f"SELECT {SESSION_COLUMNS} FROM session"
_WORK: Final = f"SELECT {WORK_COLUMNS} FROM work_item"
_OPEN: Final = "status IN ('pending', 'claimed')"


def connect_readonly(path: Path) -> sqlite3.Connection:
    """A connection that reads `path` and can't write or checkpoint it."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )


@attrs.frozen
class OpenAttempt:
    """An attempt that nobody has ended."""

    session_id: str
    attempt_id: str
    boot: int


@attrs.frozen
class Status:
    """A session's facts, as clients are shown them."""

    row: SessionRow
    pending: int
    release: str | None


@attrs.define(eq=False)
class Reader:
    """Questions to the tables."""

    _conn: sqlite3.Connection

    def session(self, session_id: str) -> SessionRow | None:
        """The session's facts, or None."""
        found = self._conn.execute(f"{_SESSION} WHERE session_id = ?", (session_id,)).fetchall()
        return session_row(found[0]) if found else None

    def status(self, session_id: str) -> Status | None:
        """The session's facts with what is pending, or None."""
        row = self.session(session_id)
        return None if row is None else self._status(row)

    def statuses(self, after: str, limit: int) -> list[Status]:
        """The facts of the sessions after `after`, ascending by id."""
        found = self._conn.execute(
            f"{_SESSION} WHERE session_id > ? ORDER BY session_id LIMIT ?", (after, limit)
        ).fetchall()
        return [self._status(session_row(values)) for values in found]

    def _status(self, row: SessionRow) -> Status:
        pending = self._conn.execute(
            f"SELECT count(*) FROM work_item WHERE session_id = ? AND {_OPEN} "
            "AND input_seq IS NOT NULL",
            (row.session_id,),
        ).fetchall()[0][0]
        release = self._conn.execute(
            "SELECT release FROM attempt WHERE session_id = ? ORDER BY started_seq DESC LIMIT 1",
            (row.session_id,),
        ).fetchall()
        return Status(row, pending, release[0][0] if release else None)

    def events(self, session_id: str, after_seq: int, limit: int) -> list[EventRow]:
        """The events after `after_seq`, oldest first."""
        found = self._conn.execute(
            "SELECT seq, session_id, kind, payload, created_ms FROM event "
            "WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?",
            (session_id, after_seq, limit),
        ).fetchall()
        return [EventRow(*values) for values in found]

    def earliest_seq(self, session_id: str) -> int | None:
        """The seq of the earliest event that is still there."""
        found = self._conn.execute(
            "SELECT seq FROM event WHERE session_id = ? ORDER BY seq LIMIT 1", (session_id,)
        ).fetchall()
        return found[0][0] if found else None

    def head(self, session_id: str) -> int:
        """The newest event's seq; 0 for none."""
        found = self._conn.execute(
            "SELECT head_seq FROM session WHERE session_id = ?", (session_id,)
        ).fetchall()
        return int(found[0][0]) if found else 0

    def pending_inputs(self, session_id: str, limit: int) -> list[int]:
        """The seqs of inputs that wait for their turn's end, ascending."""
        found = self._conn.execute(
            f"SELECT input_seq FROM work_item WHERE session_id = ? AND {_OPEN} "
            "AND input_seq IS NOT NULL ORDER BY n LIMIT ?",
            (session_id, limit),
        ).fetchall()
        return [seq for (seq,) in found]

    def work(self, item_id: str) -> WorkItem | None:
        """The item of that id, or None."""
        found = self._conn.execute(f"{_WORK} WHERE id = ?", (item_id,)).fetchall()
        return work_row(found[0]).item if found else None

    def pending_work(self, session_id: str | None) -> list[WorkItem]:
        """The pending items of one session, or of all, oldest first."""
        where, values = ("", ()) if session_id is None else ("AND session_id = ?", (session_id,))
        found = self._conn.execute(
            f"{_WORK} WHERE {_OPEN} AND status = 'pending' {where} ORDER BY n", values
        ).fetchall()
        return [work_row(row).item for row in found]

    def is_runnable(self, session_id: str) -> bool:
        """Not stopped, no open attempt, and a pending item."""
        row = self.session(session_id)
        if row is None or row.stopped or row.attempt_id is not None:
            return False
        found = self._conn.execute(
            f"SELECT 1 FROM work_item WHERE session_id = ? AND {_OPEN} "
            "AND status = 'pending' LIMIT 1",
            (session_id,),
        ).fetchall()
        return bool(found)

    def runnable(self, after: str, limit: int) -> list[str]:
        """The runnable sessions after `after`, ascending by id."""
        found = self._conn.execute(
            "SELECT session_id FROM session AS s WHERE session_id > ? "
            "AND state IN ('ready', 'waiting') AND EXISTS (SELECT 1 FROM work_item AS w "
            f"WHERE w.session_id = s.session_id AND {_OPEN} AND status = 'pending') "
            "ORDER BY session_id LIMIT ?",
            (after, limit),
        ).fetchall()
        return [session_id for (session_id,) in found]

    def next_deadline(self) -> int | None:
        """When the earliest deadline comes."""
        found = self._conn.execute(
            "SELECT wake_at_ms FROM deadline ORDER BY wake_at_ms LIMIT 1"
        ).fetchall()
        return found[0][0] if found else None

    def open_attempts(self, before_boot: int) -> list[OpenAttempt]:
        """The attempts of earlier services that nobody has ended."""
        found = self._conn.execute(
            "SELECT session_id, id, boot FROM attempt WHERE ended_ms IS NULL AND boot < ? "
            "ORDER BY session_id",
            (before_boot,),
        ).fetchall()
        return [OpenAttempt(*values) for values in found]

    def attempt_boot(self, attempt_id: str) -> int | None:
        """The service that began the attempt."""
        found = self._conn.execute(
            "SELECT boot FROM attempt WHERE id = ?", (attempt_id,)
        ).fetchall()
        return found[0][0] if found else None

    def frontier(self, session_id: str) -> Frontier | None:
        """The newest fold, or None."""
        found = self._conn.execute(
            "SELECT epoch, drained_through_seq, summary, derived_by, created_ms, source_children, "
            "actor_testimony, actor_testimony_source FROM frontier WHERE session_id = ? "
            "ORDER BY epoch DESC LIMIT 1",
            (session_id,),
        ).fetchall()
        if not found:
            return None
        epoch, drained, summary, by, created, children, testimony, source = found[0]
        return Frontier(
            epoch, drained, summary, by, created, tuple(json.loads(children)), testimony, source
        )

    def close(self) -> None:
        """The connection is closed."""
        self._conn.close()
