"""What must hold of a store at rest: every invariant that its tables and logs can show.

`check` reads the whole store and says what is wrong with it, one line a finding; a
sound store has none. It writes nothing, so it may run beside the service.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import attrs

from klbr_trio.domain.project import Projection
from klbr_trio.store.reader import PAGE, Reader, connect_readonly
from klbr_trio.wire.records import decode_event

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

    from klbr_trio.domain.events import Event
    from klbr_trio.store.rows import SessionRow
    from klbr_trio.store.store import Store

_ENDS: Final = ("turn.completed", "turn.failed", "turn.interrupted")


async def check(store: Store) -> list[str]:
    """What is wrong with an open store; [] if nothing is."""
    return check_file(store.path)


def check_file(path: Path) -> list[str]:
    """What is wrong with the store at `path`; [] if nothing is."""
    with closing(connect_readonly(path)) as conn:
        conn.execute("BEGIN")  # one view of the store, whatever is written meanwhile
        found = [
            *_integrity(conn),
            *_attempts(conn),
            *_work(conn),
            *_deadlines(conn),
        ]
        reader = Reader(conn)
        for (session_id,) in conn.execute("SELECT session_id FROM session").fetchall():
            found += [
                f"session {session_id}: {line}" for line in _session(conn, reader, session_id)
            ]
        return found


def _integrity(conn: sqlite3.Connection) -> Iterator[str]:
    for (line,) in conn.execute("PRAGMA quick_check").fetchall():
        if line != "ok":
            yield f"the file: {line}"
    for table, *_ in conn.execute("PRAGMA foreign_key_check").fetchall():
        yield f"table {table}: a row points at nothing"


def _attempts(conn: sqlite3.Connection) -> Iterator[str]:
    latest, recovered = conn.execute(
        "SELECT boot, recovered_ms FROM service ORDER BY boot DESC LIMIT 1"
    ).fetchall()[0]
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
    rows = conn.execute(
        "SELECT cause, count(*) FROM work_item WHERE cause_type = 'repair' "
        "AND maker = 'turn.failed' GROUP BY cause HAVING count(*) > 1"
    ).fetchall()
    for cause, count in rows:
        yield f"{count} repairs for one failure: {cause}"
    rows = conn.execute(
        "SELECT r.id FROM work_item AS r WHERE r.cause_type = 'repair' AND r.maker = 'turn.failed' "
        "AND NOT EXISTS (SELECT 1 FROM work_item AS w "
        "WHERE w.attempt_id = json_extract(r.cause, '$.of') AND w.cause_type <> 'repair')"
    ).fetchall()
    for (item_id,) in rows:
        yield f"repair {item_id} was made for an attempt that held only repairs"


def _deadlines(conn: sqlite3.Connection) -> Iterator[str]:
    rows = conn.execute(
        "SELECT s.session_id, s.wake_at_ms, d.wake_at_ms FROM session AS s "
        "LEFT JOIN deadline AS d USING (session_id) WHERE s.wake_at_ms IS NOT d.wake_at_ms"
    ).fetchall()
    for session_id, shown, armed in rows:
        yield f"session {session_id} shows deadline {shown}, armed is {armed}"


def _session(conn: sqlite3.Connection, reader: Reader, session_id: str) -> Iterator[str]:
    log = _Log()
    for event in _events(reader, session_id):
        yield from log.take(event)
        if log.broken:
            return
    row = reader.session(session_id)
    assert row is not None
    yield from _same(row, log.facts)
    inputs = conn.execute(
        "SELECT input_seq, id FROM work_item WHERE session_id = ? AND input_seq IS NOT NULL",
        (session_id,),
    ).fetchall()
    if dict(inputs) != log.inputs:
        yield "inputs and their work items do not match one to one"
    pending = set(reader.pending_inputs(session_id, len(log.inputs) + 1))
    if pending != set(log.facts.pending_inputs):
        yield f"pending inputs are {sorted(pending)}, by the log {sorted(log.facts.pending_inputs)}"
    folds = conn.execute(
        "SELECT epoch, drained_through_seq FROM frontier WHERE session_id = ? ORDER BY epoch",
        (session_id,),
    ).fetchall()
    if folds != log.folds:
        yield f"folds are {folds}, by the log {log.folds}"


def _events(reader: Reader, session_id: str) -> Iterator[Event]:
    after = 0
    while rows := reader.events(session_id, after, PAGE):
        for row in rows:
            yield decode_event(row.seq, row.session_id, row.kind, row.payload, row.created_ms)
        after = rows[-1].seq


def _same(row: SessionRow, facts: Projection) -> Iterator[str]:
    for name in ("head_seq", "hook_epoch", "fold_epoch", "fold_seq", "wait"):
        stored, logged = getattr(row, name), getattr(facts, name)
        if stored != logged:
            yield f"{name} is {stored!r}, by the log {logged!r}"
    if row.state_name != facts.state:
        yield f"state is {row.state_name}, by the log {facts.state}"
    if row.attempt_id != facts.open_attempt:
        yield f"attempt is {row.attempt_id}, by the log {facts.open_attempt}"
    if row.kernel_boot is not None and not facts.kernel_used:
        yield "a kernel is shown that no cell has used"


@attrs.define
class _Log:
    """One session's log, read from its first event."""

    facts: Projection = attrs.field(factory=Projection)
    inputs: dict[int, str] = attrs.field(factory=dict)
    folds: list[tuple[int, int]] = attrs.field(factory=list)
    step: int = 0
    broken: bool = False

    def take(self, event: Event) -> Iterator[str]:
        """What is wrong with the next event."""
        for line in self._wrong(event):
            yield f"event {event.seq} ({event.kind}): {line}"
        try:
            self.facts.apply(event)
        except ValueError as exc:
            self.broken = True
            yield f"event {event.seq} does not follow: {exc}"

    def _wrong(self, event: Event) -> Iterator[str]:
        payload = event.payload
        match event.kind:
            case "input.admitted":
                self.inputs[event.seq] = payload["work_item_id"]
            case "turn.started":
                self.step = 0
                if self.facts.open_attempt is not None:
                    yield "the attempt before it has no end"
                if self.facts.stopped:
                    yield "the session is stopped"
            case "frontier.installed":
                yield from self._fold(payload)
            case "session.woken":
                if payload["wake_at_ms"] != self.facts.wake_at_ms:
                    yield f"the armed deadline is {self.facts.wake_at_ms}"
            case "session.reopened" | "session.stopped":
                if self.facts.stopped == (event.kind == "session.stopped"):
                    yield "the session is so already"
            case _:
                yield from self._of_attempt(event)

    def _fold(self, payload: dict[str, Any]) -> Iterator[str]:
        self.folds.append((payload["epoch"], payload["drained_through_seq"]))
        if payload["epoch"] != self.facts.fold_epoch + 1:
            yield f"its epoch follows {self.facts.fold_epoch}"
        if payload["drained_through_seq"] < (self.facts.fold_seq or 0):
            yield "it goes back"

    def _of_attempt(self, event: Event) -> Iterator[str]:
        payload = event.payload
        attempt_id = payload.get("attempt_id")
        if attempt_id is None:
            return
        if attempt_id != self.facts.open_attempt:
            yield f"the open attempt is {self.facts.open_attempt}"
        if event.kind in _ENDS:
            if self.facts.open_calls:
                yield f"calls without a result: {sorted(self.facts.open_calls)}"
            return
        step = payload.get("step", 0)
        if step > self.step and self.facts.open_calls:
            yield f"step {step} begins while {sorted(self.facts.open_calls)} have no result"
        self.step = max(self.step, step)
        call_id = payload.get("call_id")
        if event.kind == "cell.requested" and call_id in self.facts.open_calls:
            yield f"call {call_id} is open already"
        if (
            event.kind in ("cell.finished", "local.sent")
            and call_id is not None
            and (call_id not in self.facts.open_calls)
        ):
            yield f"call {call_id} is not open"


def describe(lines: list[str]) -> str:
    """The findings as one text, for an assertion or a terminal."""
    return json.dumps(lines, ensure_ascii=False, indent=1)
