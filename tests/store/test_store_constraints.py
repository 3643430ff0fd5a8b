"""The file refuses what the invariants forbid, whoever asks."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest
import trio
from store_lab import SESSION, admit, ask, begin, chore, claim, complete, raw

from klbr_trio.domain.work import Pending
from klbr_trio.errors import ClaimLost
from klbr_trio.store import CommitPoint, Store, WaitFor

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from klbr_trio.store.tx import Tx


async def furnish(store_path: Path) -> None:
    """A session of each kind."""
    async with Store.open(store_path) as store:
        await complete(store, await begin(store, session="ready"))
        await complete(store, await begin(store, session="waiting"), "waiting", WaitFor(90, "x"))
        turn = await begin(store, session="executing")
        await ask(store, turn, "a")
        await admit(store, session="executing", key="k")
        await admit(store, session="stopped")
        await store.stop("stopped")
        await admit(store)
        await store.insert_work_item(chore())


@pytest.fixture
def conn(store_path: Path) -> Generator[sqlite3.Connection]:
    trio.run(furnish, store_path)
    with raw(store_path) as conn:
        conn.execute("PRAGMA foreign_keys = ON")
        conn.execute("PRAGMA recursive_triggers = ON")
        yield conn


EVENT = "INSERT INTO event (session_id, seq, kind, payload, created_ms, source, client_request_id) "
WORK = (
    "INSERT INTO work_item (id, session_id, purpose, cause_type, cause, input_seq, impact, "
    "maker_kind, maker, made_ms, created_ms, status) "
)
FORBIDDEN = [
    # the log
    ("UPDATE event SET payload = '{}'", "an event never changes"),
    ("UPDATE event SET seq = 99", "an event never changes"),
    ("DELETE FROM event", "an event is never deleted"),
    ("REPLACE INTO event SELECT * FROM event", "never deleted"),
    (f"{EVENT} VALUES ('ready', 1, 'my.kind', '{{}}', 1, NULL, NULL)", "event.session_id"),
    (f"{EVENT} VALUES ('ready', 0, 'my.kind', '{{}}', 1, NULL, NULL)", "seq >= 1"),
    (f"{EVENT} VALUES ('nobody', 1, 'my.kind', '{{}}', 1, NULL, NULL)", "FOREIGN KEY"),
    (f"{EVENT} VALUES ('ready', 'x', 'my.kind', '{{}}', 1, NULL, NULL)", "cannot store TEXT"),
    (f"{EVENT} VALUES ('executing', 9, 'input.admitted', '{{}}', 1, 'cli', 'k')", "UNIQUE"),
    (f"{EVENT} VALUES ('ready', 9, 'input.admitted', '{{}}', 1, NULL, NULL)", "CHECK"),
    (f"{EVENT} VALUES ('ready', 9, 'my.kind', '{{}}', 1, 'cli', NULL)", "CHECK"),
    (f"{EVENT} VALUES ('ready', 9, 'my.kind', '{{}}', 1, NULL, 'k')", "CHECK"),
    # the session's row
    ("UPDATE session SET state = 'asleep'", "CHECK"),
    ("UPDATE session SET state = 'executing' WHERE session_id = 'ready'", "CHECK"),
    ("UPDATE session SET attempt_id = 'op-9' WHERE session_id = 'ready'", "CHECK"),
    ("UPDATE session SET state = 'waiting' WHERE session_id = 'ready'", "CHECK"),
    ("UPDATE session SET wait_seq = 1 WHERE session_id = 'ready'", "CHECK"),
    ("UPDATE session SET wake_at_ms = 1 WHERE session_id = 'ready'", "CHECK"),
    ("UPDATE session SET wake_at_ms = NULL WHERE session_id = 'waiting'", "CHECK"),
    ("UPDATE session SET retry_n = 1 WHERE session_id = 'waiting'", "CHECK"),
    ("UPDATE session SET open_calls = '{\"a\":1}' WHERE session_id = 'ready'", "CHECK"),
    ("UPDATE session SET fold_epoch = 1 WHERE session_id = 'ready'", "CHECK"),
    ("UPDATE session SET fold_epoch = 1, fold_seq = 99 WHERE session_id = 'ready'", "CHECK"),
    ("UPDATE session SET hook_epoch = 0", "CHECK"),
    ("UPDATE session SET head_seq = head_seq - 1", "a log never gets shorter"),
    ("UPDATE session SET state = 'ready' WHERE state = 'stopped'", "only a reset reopens"),
    (
        ("UPDATE session SET state = 'waiting', wait_seq = 1, wake_at_ms = 1, "
        "hook_epoch = hook_epoch + 1 WHERE state = 'stopped'"),
        "only a reset reopens",
    ),
    ("DELETE FROM session WHERE session_id = 'ready'", "FOREIGN KEY"),
    # work items
    (("UPDATE work_item SET status = 'pending', attempt_id = NULL, outcome = NULL "
     "WHERE status = 'completed'"), "ends once"),
    ("UPDATE work_item SET outcome = 'better' WHERE status = 'completed'", "ends once"),
    ("UPDATE work_item SET crashes = 2 WHERE status = 'completed'", "ends once"),
    ("UPDATE work_item SET status = 'completed', outcome = 'x' WHERE status = 'pending'",
     "only the attempt that holds"),
    ("UPDATE work_item SET status = 'failed', outcome = 'x' WHERE status = 'pending'",
     "only the attempt that holds"),
    ("UPDATE work_item SET attempt_id = 'op-9', status = status WHERE status = 'claimed'",
     "only the attempt that holds"),
    ("UPDATE work_item SET status = 'claimed' WHERE status = 'pending'", "CHECK"),
    ("UPDATE work_item SET outcome = 'x' WHERE status = 'pending'", "CHECK"),
    ("UPDATE work_item SET attempt_id = 'x' WHERE status = 'pending'", "CHECK"),
    ("UPDATE work_item SET crashes = -1 WHERE status = 'pending'", "CHECK"),
    ("UPDATE work_item SET retry_n = 1 WHERE status = 'pending'", "CHECK"),
    ("DELETE FROM work_item", "never deleted"),
    (f"{WORK} VALUES ('chore-1', 's-1', '', 'repair', '{{}}', NULL, 'low', '', '', 1, 1, 'pending')",
     "work_item.id"),
    (f"{WORK} VALUES ('x', 's-1', '', 'input_ready', '{{}}', 1, 'low', '', '', 1, 1, 'pending')",
     "work_item.session_id"),
    (f"{WORK} VALUES ('x', 's-1', '', 'repair', '{{}}', 7, 'low', '', '', 1, 1, 'pending')", "CHECK"),
    (f"{WORK} VALUES ('x', 's-1', '', 'input_ready', '{{}}', NULL, 'low', '', '', 1, 1, 'pending')",
     "CHECK"),
    (f"{WORK} VALUES ('x', 's-1', '', 'repair', '{{}}', NULL, 'low', '', '', 1, 1, 'done')", "CHECK"),
    # attempts
    (("INSERT INTO attempt (id, session_id, boot, epoch, started_seq, started_ms) "
     "VALUES ('op-9', 'executing', 1, 1, 1, 1)"), "attempt.session_id"),
    (("INSERT INTO attempt (id, session_id, boot, epoch, started_seq, started_ms) "
     "VALUES ('op-9', 'ready', 99, 1, 1, 1)"), "FOREIGN KEY"),
    ("UPDATE attempt SET ended_ms = NULL, how = NULL", "an attempt ends once"),
    ("UPDATE attempt SET ended_ms = 1 WHERE ended_ms IS NULL", "CHECK"),
    ("UPDATE attempt SET ended_ms = 1, how = 'somehow' WHERE ended_ms IS NULL", "CHECK"),
    # deadlines and folds
    ("INSERT INTO deadline VALUES (91, 'waiting')", "deadline.session_id"),
    ("INSERT INTO deadline VALUES (91, 'nobody')", "FOREIGN KEY"),
    ("INSERT INTO frontier VALUES ('ready', 0, 1, '', '', 1, '[]', NULL, NULL)", "CHECK"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "why"), FORBIDDEN)
def test_what_is_forbidden_is_refused(conn: sqlite3.Connection, sql: str, why: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=why):
        conn.execute(sql)


def test_what_is_allowed_is_not_refused(conn: sqlite3.Connection) -> None:
    """The statements above fail by what they break, not by their form."""
    for sql in (
        f"{EVENT} VALUES ('ready', 9, 'my.kind', '{{}}', 1, NULL, NULL)",
        f"{EVENT} VALUES ('ready', 10, 'input.admitted', '{{}}', 1, 'cli', 'k')",
        f"{WORK} VALUES ('x', 's-1', '', 'repair', '{{}}', NULL, 'low', '', '', 1, 1, 'pending')",
        f"{WORK} VALUES ('y', 's-1', '', 'input_ready', '{{}}', 9, 'low', '', '', 1, 1, 'pending')",
        "UPDATE work_item SET status = 'cancelled', outcome = 'x' WHERE id = 'x'",
        "UPDATE session SET state = 'ready', hook_epoch = hook_epoch + 1 WHERE state = 'stopped'",
        "UPDATE attempt SET ended_ms = 1, how = 'failed' WHERE ended_ms IS NULL",
        "INSERT INTO frontier VALUES ('ready', 1, 1, '', '', 1, '[]', NULL, NULL)",
    ):
        assert conn.execute(sql).rowcount == 1


def test_every_commit_point_has_a_name_and_a_meaning_of_its_own() -> None:
    labels = [point.label for point in CommitPoint]
    assert len(labels) == len(set(labels)) == len(CommitPoint.__members__)
    assert {"admit", "open-session", "wake"} <= set(labels)
    for point in CommitPoint:
        meaning = point.value
        assert all((meaning.holds, meaning.before, meaning.after, meaning.fails))


async def test_a_step_on_stale_facts_is_refused(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)

        def twice(tx: Tx) -> None:
            old = tx.known(SESSION)
            new = tx.known(SESSION)
            new.head_seq += 1
            tx.save(new)
            tx.save(old)

        def item_twice(tx: Tx) -> None:
            held = tx.work_item("work-input-1")
            assert held is not None
            tx.set_status(held, Pending())
            tx.set_status(held, Pending())

        def end_twice(tx: Tx) -> None:
            tx.end_attempt(turn.attempt_id, "failed")
            tx.end_attempt(turn.attempt_id, "failed")

        for operation, why in (
            (twice, "changed while it was being written"),
            (item_twice, "work item work-input-1 changed"),
            (end_twice, "has ended"),
        ):
            with pytest.raises(ClaimLost, match=why):
                await store._writer.commit(CommitPoint.CLOSE, SESSION, operation)
        await complete(store, turn)
        assert (await store.claim_turn(SESSION, attempt_id="x", release=None, model=None)) is None
        await admit(store)
        assert (await claim(store)).started_seq == 5
