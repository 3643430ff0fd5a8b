"""Reading: on a read-only connection of its own, which never checkpoints.

Small reads run where they are called; none here takes more than a page.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import attrs

from klbr_trio.domain.frontier import Frontier
from klbr_trio.domain.work import WorkItem
from klbr_trio.errors import StoreForeign
from klbr_trio.store.faults import translate
from klbr_trio.store.rows import (
    SESSION_COLUMNS,
    WORK_COLUMNS,
    EventRow,
    SessionRow,
    session_row,
    work_row,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

PAGE: Final = 250
"""Rows read at a time: about 0.2 ms."""

PAGE_BYTES: Final = 1024 * 1024
"""Payload read at a time, so that large texts don't hold the loop either."""

_SESSION: Final = f"SELECT {SESSION_COLUMNS} FROM session"
_WORK: Final = f"SELECT {WORK_COLUMNS} FROM work_item"
_NUMBERED: Final = f"SELECT {WORK_COLUMNS}, n FROM work_item"
# As the partial index has it, or SQLite would not use the index.
_OPEN: Final = "status IN ('pending', 'claimed')"
_EVENTS: Final = (
    "SELECT seq, session_id, kind, payload, created_ms FROM event "
    "WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?"
)


def connect_readonly(path: Path) -> sqlite3.Connection:
    """A connection that reads `path` and can't write or checkpoint it.

    Raises:
        StoreForeign: There is no such file, or it can't be opened.
    """
    name = quote(os.fsencode(path.absolute()))
    try:
        return sqlite3.connect(
            f"file://{name}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as exc:
        raise StoreForeign(f"{path} can't be read: {exc}") from exc


@attrs.frozen
class NumberedWork:
    """A work item and its number in the store: the lower, the older."""

    n: int
    item: WorkItem


@attrs.frozen
class OpenAttempt:
    """An attempt that nobody has ended."""

    session_id: str
    attempt_id: str
    boot: int


@attrs.frozen
class Status:
    """A session's facts, as clients are shown them.

    Attributes:
        usage: What its replies cost together: tokens, and dollars where a price is known.
    """

    row: SessionRow
    pending: int
    release: str | None
    usage: dict[str, float]


@attrs.define(eq=False)
class Reader:
    """Questions to the tables.

    Every one raises StoreBroken when it meets a corrupt page, and StoreUnavailable
    when the file can't be read at the moment.
    """

    _conn: sqlite3.Connection

    def session(self, session_id: str) -> SessionRow | None:
        """The session's facts, or None."""
        found = self._rows(f"{_SESSION} WHERE session_id = ?", (session_id,))
        return session_row(found[0]) if found else None

    def status(self, session_id: str) -> Status | None:
        """The session's facts with what is pending, or None."""
        row = self.session(session_id)
        return None if row is None else self._status(row)

    def statuses(self, after: str, limit: int) -> list[Status]:
        """The facts of the sessions after `after`, ascending by id."""
        found = self._rows(
            f"{_SESSION} WHERE session_id > ? ORDER BY session_id LIMIT ?", (after, limit)
        )
        return [self._status(session_row(values)) for values in found]

    def _status(self, row: SessionRow) -> Status:
        [(pending,)] = self._rows(
            f"SELECT count(*) FROM work_item WHERE session_id = ? AND {_OPEN} "
            "AND input_seq IS NOT NULL",
            (row.session_id,),
        )
        release = self._rows(
            "SELECT release FROM attempt WHERE session_id = ? ORDER BY started_seq DESC LIMIT 1",
            (row.session_id,),
        )
        usage = self._usage(row.session_id)
        return Status(row, pending, release[0][0] if release else None, usage)

    def _usage(self, session_id: str) -> dict[str, float]:
        """What the session's replies cost together, by name."""
        found = self._rows(
            "SELECT name, amount FROM usage WHERE session_id = ? ORDER BY name", (session_id,)
        )
        return {name: int(amount) if amount.is_integer() else amount for name, amount in found}

    def states(self) -> dict[str, int]:
        """How many sessions are in each state."""
        return dict(self._rows("SELECT state, count(*) FROM session GROUP BY state"))

    def events(self, session_id: str, after_seq: int, limit: int) -> list[EventRow]:
        """The events after `after_seq`, oldest first."""
        found = self._rows(_EVENTS, (session_id, after_seq, limit))
        return [EventRow(*values) for values in found]

    def page(self, session_id: str, after_seq: int, limit: int, max_bytes: int) -> list[EventRow]:
        """As `events`, but the page ends with the event that brings it to `max_bytes`."""
        found = []
        size = 0
        # The cursor is closed half-read, or it would hold back checkpoints.
        with _translated(), closing(self._conn.cursor()) as cursor:
            for values in cursor.execute(_EVENTS, (session_id, after_seq, limit)):
                row = EventRow(*values)
                found.append(row)
                size += len(row.payload)
                if size >= max_bytes:
                    break
        return found

    def earliest_seq(self, session_id: str) -> int | None:
        """The seq of the earliest event that is still there."""
        found = self._rows(
            "SELECT seq FROM event WHERE session_id = ? ORDER BY seq LIMIT 1", (session_id,)
        )
        return found[0][0] if found else None

    def head(self, session_id: str) -> int:
        """The newest event's seq; 0 for none."""
        found = self._rows("SELECT head_seq FROM session WHERE session_id = ?", (session_id,))
        return int(found[0][0]) if found else 0

    def pending_inputs(self, session_id: str, limit: int) -> list[int]:
        """The seqs of inputs that wait for their turn's end, ascending."""
        found = self._rows(
            f"SELECT input_seq FROM work_item WHERE session_id = ? AND {_OPEN} "
            "AND input_seq IS NOT NULL ORDER BY n LIMIT ?",
            (session_id, limit),
        )
        return [seq for (seq,) in found]

    def work(self, item_id: str) -> WorkItem | None:
        """The item of that id, or None."""
        found = self._rows(f"{_WORK} WHERE id = ?", (item_id,))
        return work_row(found[0]).item if found else None

    def pending_work(self, session_id: str, after: int, limit: int) -> list[NumberedWork]:
        """The session's pending items numbered above `after`, oldest first."""
        found = self._rows(
            f"{_NUMBERED} WHERE {_OPEN} AND status = 'pending' AND session_id = ? AND n > ? "
            "ORDER BY n LIMIT ?",
            (session_id, after, limit),
        )
        return [NumberedWork(values[-1], work_row(values[:-1]).item) for values in found]

    def all_pending_work(self, after: tuple[str, int], limit: int) -> list[NumberedWork]:
        """Every session's pending items after (session, number), in that order."""
        found = self._rows(
            f"{_NUMBERED} WHERE {_OPEN} AND status = 'pending' AND (session_id, n) > (?, ?) "
            "ORDER BY session_id, n LIMIT ?",
            (*after, limit),
        )
        return [NumberedWork(values[-1], work_row(values[:-1]).item) for values in found]

    def is_runnable(self, session_id: str) -> bool:
        """Not stopped, no open attempt, and a pending item."""
        row = self.session(session_id)
        if row is None or row.stopped or row.attempt_id is not None:
            return False
        found = self._rows(
            f"SELECT 1 FROM work_item WHERE session_id = ? AND {_OPEN} "
            "AND status = 'pending' LIMIT 1",
            (session_id,),
        )
        return bool(found)

    def runnable(self, after: str, limit: int) -> list[str]:
        """The runnable sessions after `after`, ascending by id."""
        # From the pending items, not from the sessions: most have nothing to do.
        found = self._rows(
            "SELECT DISTINCT w.session_id FROM work_item AS w CROSS JOIN session AS s "
            f"WHERE w.session_id > ? AND w.{_OPEN} AND w.status = 'pending' "
            "AND s.session_id = w.session_id AND s.state IN ('ready', 'waiting') "
            "ORDER BY w.session_id LIMIT ?",
            (after, limit),
        )
        return [session_id for (session_id,) in found]

    def next_deadline(self) -> int | None:
        """When the earliest deadline comes."""
        found = self._rows("SELECT wake_at_ms FROM deadline ORDER BY wake_at_ms LIMIT 1")
        return found[0][0] if found else None

    def open_attempts(self, before_boot: int) -> list[OpenAttempt]:
        """The attempts of earlier services that nobody has ended."""
        found = self._rows(
            "SELECT session_id, id, boot FROM attempt WHERE ended_ms IS NULL AND boot < ? "
            "ORDER BY session_id",
            (before_boot,),
        )
        return [OpenAttempt(*values) for values in found]

    def attempt_boot(self, attempt_id: str) -> int | None:
        """The service that began the attempt."""
        found = self._rows("SELECT boot FROM attempt WHERE id = ?", (attempt_id,))
        return found[0][0] if found else None

    def frontier(self, session_id: str) -> Frontier | None:
        """The newest fold, or None."""
        found = self._rows(
            "SELECT epoch, drained_through_seq, summary, derived_by, created_ms, source_children, "
            "actor_testimony, actor_testimony_source FROM frontier WHERE session_id = ? "
            "ORDER BY epoch DESC LIMIT 1",
            (session_id,),
        )
        if not found:
            return None
        epoch, drained, summary, by, created, children, testimony, source = found[0]
        return Frontier(
            epoch, drained, summary, by, created, tuple(json.loads(children)), testimony, source
        )

    def close(self) -> None:
        """The connection is closed."""
        self._conn.close()

    def _rows(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        with _translated():
            return self._conn.execute(sql, values).fetchall()


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise translate(exc) from exc
