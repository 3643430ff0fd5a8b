"""What an operation may do to the tables: the only SQL that writes.

An operation is a function of (Tx, arguments) that reads facts, decides, and writes
through the methods here. Every write is fenced: a session's row is saved only if its
head is still the one that was read, so an operation can't work on stale facts.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.domain import work
from klbr_trio.domain.events import Body, InputAdmitted
from klbr_trio.domain.text import PAYLOAD_BYTES
from klbr_trio.domain.usage import amounts
from klbr_trio.errors import ClaimLost, TooLarge, UnknownSession
from klbr_trio.store.points import CommitPoint
from klbr_trio.store.rows import (
    SESSION_COLUMNS,
    WORK_COLUMNS,
    SessionRow,
    WorkRow,
    children_to_json,
    session_row,
    status_columns,
    work_row,
)
from klbr_trio.wire.codec import CONVERTER, dumps
from klbr_trio.wire.records import encode_payload

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from klbr_trio.domain.events import Retry
    from klbr_trio.domain.frontier import Frontier

_SELECT_SESSION: Final = f"SELECT {SESSION_COLUMNS} FROM session WHERE session_id = ?"
_INSERT_SESSION: Final = (
    f"INSERT INTO session ({SESSION_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
_UPDATE_SESSION: Final = (
    "UPDATE session SET state=?, head_seq=?, hook_epoch=?, attempt_id=?, wait_seq=?, wake_at_ms=?, "
    "receipt=?, reason=?, retry_of_ms=?, retry_n=?, fold_epoch=?, fold_seq=?, "
    "recovered_attempt=?, kernel_boot=?, open_calls=? WHERE session_id=? AND head_seq=?"
)
_INSERT_EVENT: Final = (
    "INSERT INTO event (session_id, seq, kind, payload, created_ms, source, client_request_id) "
    "VALUES (?,?,?,?,?,?,?)"
)
_INSERT_WORK: Final = (
    "INSERT INTO work_item (n, id, session_id, purpose, cause_type, cause, input_seq, impact, "
    "maker_kind, maker, made_ms, created_ms, status, retry_of_ms, retry_n) "
    "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,'pending',?,?)"
)
_SELECT_WORK: Final = f"SELECT {WORK_COLUMNS} FROM work_item"


@attrs.define(eq=False)
class Tx:
    """One operation's view of the tables, inside the writer's transaction.

    Attributes:
        now_ms: The one time of everything that the operation writes.
        boot: This opening of the store.
        touched: The sessions that the operation saved, for those who follow them.
        bodies: The events that it appended, for those who count them.
        point: Which durable step this turned out to be.
    """

    _conn: sqlite3.Connection
    now_ms: int
    boot: int
    point: CommitPoint
    touched: dict[str, SessionRow] = attrs.field(factory=dict)
    bodies: list[Body] = attrs.field(factory=list)

    # Sessions and their logs

    def session(self, session_id: str) -> SessionRow | None:
        """The session's facts, or None."""
        found = self._conn.execute(_SELECT_SESSION, (session_id,)).fetchall()
        return session_row(found[0]) if found else None

    def known(self, session_id: str) -> SessionRow:
        """The session's facts.

        Raises:
            UnknownSession: No such session was ever made.
        """
        row = self.session(session_id)
        if row is None:
            raise UnknownSession(f"no session {session_id!r}; the first input makes one")
        return row

    def held(self, session_id: str, attempt_id: str) -> SessionRow:
        """The facts of a session whose open attempt is `attempt_id`.

        Raises:
            ClaimLost: The attempt has ended, or never was.
        """
        row = self.session(session_id)
        if row is None or row.attempt_id != attempt_id:
            raise ClaimLost(f"attempt {attempt_id} no longer holds session {session_id!r}")
        return row

    def make_session(self, session_id: str) -> SessionRow:
        """A new session's facts; its row is there."""
        row = SessionRow(session_id, self.now_ms)
        self._conn.execute(_INSERT_SESSION, (row.session_id, row.created_ms, *row.columns()))
        row.saved_head = 0
        self.touched[session_id] = row
        return row

    def append(self, row: SessionRow, body: Body) -> int:
        """The next event of the session's log; returns its seq. `save` comes after.

        Raises:
            TooLarge: The payload would not fit a server frame, or is nested too deeply.
        """
        payload = encode_payload(body)
        if len(payload) * 4 > PAYLOAD_BYTES and len(payload.encode()) > PAYLOAD_BYTES:
            raise TooLarge(f"the payload of {body.kind} has over {PAYLOAD_BYTES} bytes of JSON")
        seq = row.head_seq + 1
        source, key = (
            (body.source, body.client_request_id)
            if isinstance(body, InputAdmitted)
            else (None, None)
        )
        self._conn.execute(
            _INSERT_EVENT, (row.session_id, seq, body.kind, payload, self.now_ms, source, key)
        )
        row.head_seq = seq
        self.bodies.append(body)
        return seq

    def save(self, row: SessionRow) -> None:
        """The session's row and deadline are as `row` says.

        Raises:
            ClaimLost: The row changed since it was read.
        """
        fence = (row.session_id, row.saved_head)
        if self._conn.execute(_UPDATE_SESSION, (*row.columns(), *fence)).rowcount != 1:
            raise ClaimLost(f"session {row.session_id!r} changed while it was being written")
        row.saved_head = row.head_seq
        self.touched[row.session_id] = row

    def arm(self, row: SessionRow) -> None:
        """The deadline table holds the session's deadline, and only that."""
        self._conn.execute("DELETE FROM deadline WHERE session_id = ?", (row.session_id,))
        if row.wake_at_ms is not None:
            self._conn.execute(
                "INSERT INTO deadline (wake_at_ms, session_id) VALUES (?,?)",
                (row.wake_at_ms, row.session_id),
            )

    def input_by_key(
        self, session_id: str, source: str, client_request_id: str
    ) -> tuple[int, str] | None:
        """Seq and payload of the input that has this source key."""
        found: list[tuple[int, str]] = self._conn.execute(
            "SELECT seq, payload FROM event "
            "WHERE session_id = ? AND source = ? AND client_request_id = ?",
            (session_id, source, client_request_id),
        ).fetchall()
        return found[0] if found else None

    def payloads(self, session_id: str, after_seq: int, kind: str) -> list[str]:
        """The payloads of the events of this kind after `after_seq`, in order."""
        found = self._conn.execute(
            "SELECT payload FROM event WHERE session_id = ? AND seq > ? AND kind = ? ORDER BY seq",
            (session_id, after_seq, kind),
        ).fetchall()
        return [payload for (payload,) in found]

    def count_usage(self, session_id: str, usage: Mapping[str, Any] | None) -> None:
        """What a reply cost is part of what the session's replies cost together."""
        self._conn.executemany(
            "INSERT INTO usage (session_id, name, amount) VALUES (?,?,?) "
            "ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
            [(session_id, name, amount) for name, amount in amounts(usage).items()],
        )

    # Work items

    def next_work(self) -> int:
        """The number of the next work item of the store."""
        found = self._conn.execute("SELECT n FROM work_item ORDER BY n DESC LIMIT 1").fetchall()
        return int(found[0][0]) + 1 if found else 1

    def free_work_id(self, wanted: str) -> str:
        """`wanted`, or a name like it if somebody has inserted an item of that name."""
        free, count = wanted, 1
        while self._conn.execute("SELECT 1 FROM work_item WHERE id = ?", (free,)).fetchall():
            count += 1
            free = f"{wanted}~{count}"
        return free

    def add_work(self, n: int, item: work.WorkItem, *, retry: Retry | None = None) -> None:
        """The item is pending."""
        cause = CONVERTER.unstructure(item.cause)
        made = item.provenance
        self._conn.execute(
            _INSERT_WORK,
            (
                n,
                item.id,
                item.session_id,
                item.purpose,
                cause["type"],
                dumps(cause),
                item.cause.seq if isinstance(item.cause, work.InputReady) else None,
                item.consequence.impact.value,
                made.kind,
                made.name,
                made.created_ms,
                item.created_ms,
                None if retry is None else retry.of_ms,
                None if retry is None else retry.n,
            ),
        )

    def work_item(self, item_id: str) -> WorkRow | None:
        """The item of that id."""
        found = self._conn.execute(f"{_SELECT_WORK} WHERE id = ?", (item_id,)).fetchall()
        return work_row(found[0]) if found else None

    def pending_work(self, session_id: str, limit: int) -> list[WorkRow]:
        """The session's pending items, oldest first."""
        return self._work(
            "WHERE session_id = ? AND status IN ('pending', 'claimed') AND status = 'pending' "
            "ORDER BY n LIMIT ?",
            (session_id, limit),
        )

    def pending_not_inputs(self, session_id: str, limit: int) -> list[WorkRow]:
        """Pending items of the session that are no inputs."""
        return self._work(
            "WHERE session_id = ? AND status IN ('pending', 'claimed') AND status = 'pending' "
            "AND input_seq IS NULL ORDER BY n LIMIT ?",
            (session_id, limit),
        )

    def work_of(self, attempt_id: str) -> list[WorkRow]:
        """The items that the attempt holds or ended, oldest first."""
        return self._work("WHERE attempt_id = ? ORDER BY n", (attempt_id,))

    def _work(self, rest: str, values: tuple[object, ...]) -> list[WorkRow]:
        found = self._conn.execute(f"{_SELECT_WORK} {rest}", values).fetchall()
        return [work_row(values) for values in found]

    def input_bytes(self, session_id: str, seq: int) -> int:
        """The size of an input's payload, in bytes."""
        found = self._conn.execute(
            "SELECT length(CAST(payload AS BLOB)) FROM event WHERE session_id = ? AND seq = ?",
            (session_id, seq),
        ).fetchall()
        return int(found[0][0]) if found else 0

    def set_status(self, row: WorkRow, status: work.WorkStatus, *, crashes: int = 0) -> None:
        """The item's status is `status`; fenced by the status and attempt that were read.

        Raises:
            ClaimLost: The item changed since it was read.
        """
        before = status_columns(row.item.status, None)
        after = status_columns(status, before[1])
        done = self._conn.execute(
            "UPDATE work_item SET status=?, attempt_id=?, claimed_ms=?, outcome=?, crashes=? "
            "WHERE id=? AND status=? AND attempt_id IS ?",
            (*after, row.crashes + crashes, row.item.id, before[0], before[1]),
        )
        if done.rowcount != 1:
            raise ClaimLost(f"work item {row.item.id} changed while it was being written")

    def forget_retries(self, session_id: str) -> None:
        """No pending wake of the session counts as a retry any more."""
        self._conn.execute(
            "UPDATE work_item SET retry_of_ms = NULL, retry_n = NULL WHERE session_id = ? "
            "AND status IN ('pending', 'claimed') AND retry_n IS NOT NULL",
            (session_id,),
        )

    # Attempts, services, deadlines, folds

    def open_attempt(
        self, row: SessionRow, attempt_id: str, *, started_seq: int, release: str | None
    ) -> None:
        """The attempt, whose `turn.started` is at `started_seq`, is open."""
        self._conn.execute(
            "INSERT INTO attempt (id, session_id, boot, epoch, started_seq, started_ms, release) "
            "VALUES (?,?,?,?,?,?,?)",
            (
                attempt_id, row.session_id, self.boot, row.hook_epoch, started_seq,
                self.now_ms, release,
            ),
        )  # fmt: skip

    def attempt_exists(self, attempt_id: str) -> bool:
        """Whether an attempt of that name ever was."""
        rows = self._conn.execute("SELECT 1 FROM attempt WHERE id = ?", (attempt_id,)).fetchall()
        return bool(rows)

    def started_seq(self, attempt_id: str) -> int:
        """The seq of the attempt's `turn.started`."""
        found = self._conn.execute("SELECT started_seq FROM attempt WHERE id = ?", (attempt_id,))
        return int(found.fetchall()[0][0])

    def completed_since(self, session_id: str, seq: int) -> bool:
        """Whether an attempt of the session that began after `seq` completed."""
        found = self._conn.execute(
            "SELECT 1 FROM attempt WHERE session_id = ? AND started_seq > ? AND how = 'completed' "
            "LIMIT 1",
            (session_id, seq),
        ).fetchall()
        return bool(found)

    def end_attempt(self, attempt_id: str, how: str) -> None:
        """The attempt has ended.

        Raises:
            ClaimLost: It had ended before.
        """
        done = self._conn.execute(
            "UPDATE attempt SET ended_ms = ?, how = ? WHERE id = ? AND ended_ms IS NULL",
            (self.now_ms, how, attempt_id),
        )
        if done.rowcount != 1:
            raise ClaimLost(f"attempt {attempt_id} has ended")

    def due(self, now_ms: int, limit: int) -> list[str]:
        """The sessions whose deadline has come, earliest first."""
        found = self._conn.execute(
            "SELECT session_id FROM deadline WHERE wake_at_ms <= ? "
            "ORDER BY wake_at_ms, session_id LIMIT ?",
            (now_ms, limit),
        ).fetchall()
        return [session_id for (session_id,) in found]

    def add_frontier(self, session_id: str, frontier: Frontier) -> None:
        """The fold's full record stands in its table."""
        self._conn.execute(
            "INSERT INTO frontier (session_id, epoch, drained_through_seq, summary, derived_by, "
            "created_ms, source_children, actor_testimony, actor_testimony_source) "
            "VALUES (?,?,?,?,?,?,?,?,?)",
            (
                session_id,
                frontier.epoch,
                frontier.drained_through_seq,
                frontier.summary,
                frontier.derived_by,
                frontier.created_ms or self.now_ms,
                children_to_json(frontier.source_children),
                frontier.actor_testimony,
                frontier.actor_testimony_source,
            ),
        )

    def recovered(self) -> None:
        """This service has settled everything that an earlier one left open."""
        self._conn.execute(
            "UPDATE service SET recovered_ms = ? WHERE boot = ?", (self.now_ms, self.boot)
        )
