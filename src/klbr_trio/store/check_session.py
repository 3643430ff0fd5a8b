"""One session against its log: the row, the work items, the attempts and the folds."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from klbr_trio.domain.usage import add
from klbr_trio.domain.work import DeadlineWake, RunCause
from klbr_trio.errors import BadRequest
from klbr_trio.store.admission import INPUT_ID_PREFIX
from klbr_trio.store.check_log import ItemState, Log
from klbr_trio.store.reader import PAGE, PAGE_BYTES, Reader
from klbr_trio.wire.codec import cause_from_json
from klbr_trio.wire.records import decode_event

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from klbr_trio.domain.events import Event
    from klbr_trio.domain.project import Projection
    from klbr_trio.store.rows import SessionRow


@attrs.frozen
class _Item:
    """A work item as stored; `cause` is None if it can't be read."""

    id: str
    n: int
    input_seq: int | None
    cause_type: str
    cause: RunCause | None
    made_by_store: bool
    state: ItemState
    crashes: int


def check_session(conn: sqlite3.Connection, reader: Reader, session_id: str) -> Iterator[str]:
    """What is wrong with one session: its row, its log and the tables between them."""
    log = Log()
    spent: dict[str, float] = {}
    try:
        for event in _events(reader, session_id):
            yield from log.take(event)
            if log.broken:
                return
            if event.kind == "reply.received":
                add(spent, event.payload.get("usage"))
    except ValueError as exc:
        yield f"an event after {log.facts.head_seq} can't be read: {exc}"
        return
    row = reader.session(session_id)
    assert row is not None
    yield from _same_facts(row, log.facts)
    items = _items(conn, session_id)
    yield from _same_items(items, log)
    yield from _same_inputs(items, log)
    yield from _repairs(items, log)
    yield from _wakes(items, log)
    yield from _same_attempts(conn, session_id, log)
    yield from _same_folds(conn, session_id, log)
    yield from _same_usage(conn, session_id, spent)


def _events(reader: Reader, session_id: str) -> Iterator[Event]:
    after = 0
    while rows := reader.page(session_id, after, PAGE, PAGE_BYTES):
        for row in rows:
            yield decode_event(row.seq, row.session_id, row.kind, row.payload, row.created_ms)
        after = rows[-1].seq


def _same_usage(
    conn: sqlite3.Connection, session_id: str, spent: dict[str, float]
) -> Iterator[str]:
    stored = dict(
        conn.execute(
            "SELECT name, amount FROM usage WHERE session_id = ?", (session_id,)
        ).fetchall()
    )
    for name in sorted(spent.keys() | stored.keys()):
        # Fractions may be added in another order when an older store is brought up to date.
        if not math.isclose(stored.get(name, 0), spent.get(name, 0), rel_tol=1e-9):
            yield f"usage: {name} is {stored.get(name)}, by the log {spent.get(name)}"


def _same_facts(row: SessionRow, facts: Projection) -> Iterator[str]:
    pairs = (
        ("head_seq", row.head_seq, facts.head_seq),
        ("hook_epoch", row.hook_epoch, facts.hook_epoch),
        ("fold_epoch", row.fold_epoch, facts.fold_epoch),
        ("fold_seq", row.fold_seq, facts.fold_seq),
        ("wait", row.wait, facts.wait),
        ("state", row.state_name, facts.state),
        ("attempt", row.attempt_id, facts.open_attempt),
        ("open calls", row.open_calls, facts.open_calls),
        ("recovered attempt", row.recovered_attempt, facts.recovered_attempt),
        ("kernel used", row.kernel_boot is not None, facts.kernel_used),
    )
    for name, stored, logged in pairs:
        if stored != logged:
            yield f"{name} is {stored!r}, by the log {logged!r}"


def _items(conn: sqlite3.Connection, session_id: str) -> list[_Item]:
    rows = conn.execute(
        "SELECT id, n, input_seq, cause_type, cause, maker_kind, status, attempt_id, outcome, "
        "crashes FROM work_item WHERE session_id = ? ORDER BY n",
        (session_id,),
    ).fetchall()
    return [
        _Item(item_id, n, seq, cause_type, _cause(cause), maker == "system", tuple(state), crashes)
        for item_id, n, seq, cause_type, cause, maker, *state, crashes in rows
    ]


def _cause(text: str) -> RunCause | None:
    try:
        return cause_from_json(text)
    except BadRequest:
        return None


def _same_items(items: list[_Item], log: Log) -> Iterator[str]:
    pending, cancelled = ("pending", None, None), ("cancelled", None, "stopped")
    for item in items:
        if item.cause is None:
            yield f"the cause of work item {item.id} can't be read"
        free = {pending, cancelled} if log.ever_stopped else {pending}
        logged = log.items.get(item.id)
        if item.state not in (free if logged is None else {logged}):
            yield f"work item {item.id} is {item.state}, by the log {logged or pending}"
        if item.crashes != log.crashes.get(item.id, 0):
            logged_crashes = log.crashes.get(item.id, 0)
            yield f"work item {item.id} counts {item.crashes} crashes, by the log {logged_crashes}"
    for lost in set(log.items) - {item.id for item in items}:
        yield f"work item {lost} is in the log alone"


def _same_inputs(items: list[_Item], log: Log) -> Iterator[str]:
    inputs = {item.input_seq: item.id for item in items if item.input_seq is not None}
    if inputs != log.inputs:
        yield "inputs and their work items do not match one to one"
    for item in items:
        if item.input_seq is not None and item.id != f"{INPUT_ID_PREFIX}{item.n}":
            yield f"work item {item.id} is number {item.n}"
    pending = {
        item.input_seq
        for item in items
        if item.input_seq is not None and item.state[0] in ("pending", "claimed")
    }
    if pending != set(log.facts.pending_inputs):
        yield f"pending inputs are {sorted(pending)}, by the log {sorted(log.facts.pending_inputs)}"


def _repairs(items: list[_Item], log: Log) -> Iterator[str]:
    causes = {item.id: item.cause_type for item in items}
    for attempt in log.attempts:
        made = sum(
            item.made_by_store and item.id.split("~")[0] == f"work-repair-{attempt.id}"
            for item in items
        )
        others = any(causes.get(item) != "repair" for item in attempt.items)
        wanted = int(attempt.how == "failed" and others)
        if made != wanted:
            yield f"{made} repairs were made of attempt {attempt.id}, not {wanted}"


def _wakes(items: list[_Item], log: Log) -> Iterator[str]:
    made = Counter(
        item.cause.wake_at_ms
        for item in items
        if isinstance(item.cause, DeadlineWake) and item.made_by_store
    )
    if made != Counter(log.wakes):
        yield f"wakes are {sorted(made.elements())}, by the log {sorted(log.wakes)}"


def _same_attempts(conn: sqlite3.Connection, session_id: str, log: Log) -> Iterator[str]:
    rows = conn.execute(
        "SELECT id, started_seq, how FROM attempt WHERE session_id = ? ORDER BY started_seq",
        (session_id,),
    ).fetchall()
    logged = [(attempt.id, attempt.started_seq, attempt.how) for attempt in log.attempts]
    for stored in set(rows) ^ set(logged):
        where = "by the log" if stored in logged else "in its table"
        yield f"attempt {stored[0]} is so only {where}: {stored}"


def _same_folds(conn: sqlite3.Connection, session_id: str, log: Log) -> Iterator[str]:
    folds = conn.execute(
        "SELECT epoch, drained_through_seq, summary, derived_by FROM frontier "
        "WHERE session_id = ? ORDER BY epoch",
        (session_id,),
    ).fetchall()
    if folds != log.folds:
        yield f"folds are {_brief(folds)}, by the log {_brief(log.folds)}"


def _brief(folds: list[tuple[int, int, str, str]]) -> list[tuple[int, int, str]]:
    return [(epoch, seq, summary[:40]) for epoch, seq, summary, _ in folds]
