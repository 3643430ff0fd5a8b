"""`check` finds each kind of damage, and nothing on a sound store."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import trio
from store_lab import (
    SESSION,
    UNREACHABLE,
    admit,
    ask,
    begin,
    chore,
    claim,
    complete,
    crash,
    fail,
    finish,
    raw,
    say,
)

from klbr_trio.domain.frontier import Frontier
from klbr_trio.errors import StoreForeign, StoreTooNew, StoreUnavailable
from klbr_trio.store import Store, WaitFor, check, check_file
from klbr_trio.store.check import check_connection, describe
from klbr_trio.store.schema import KNOWN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


async def furnish(path: Path) -> None:
    """One session that has lived through everything, and one in the middle of a turn."""
    async with Store.open(path) as store:
        await admit(store, "one", key="k-1")
        turn = await claim(store, attempt="op-1")
        await ask(store, turn, "a", "b")
        await say(store, turn, "hello", "a")
        await finish(store, turn, "a", "b")
        await complete(store, turn, "waiting", WaitFor(90, "later"))
        await store.wake_due(100)
        await fail(store, await claim(store, attempt="op-2"), UNREACHABLE)
        await crash(store, await claim(store, attempt="op-3"))
        await complete(store, await claim(store, attempt="op-4"))
        await store.reset(SESSION)
        await store.append(SESSION, "my.kind", {"attempt_id": "op-99"})
        await store.append(SESSION, "scratchpad", {"text": "a note"})
        await store.install_frontier(SESSION, Frontier(1, 5, "so far", "folder"))
        await store.stop(SESSION)
        await store.reset(SESSION)
        await admit(store, "two")
        await store.insert_work_item(chore())
        other = await begin(store, session="busy")
        await ask(store, other, "a", "b")
        await store.mark_recovered()


@pytest.fixture
def furnished(store_path: Path) -> Path:
    trio.run(furnish, store_path)
    return store_path


TRIGGERS = "SELECT name FROM sqlite_master WHERE type = 'trigger'"


def tamper(path: Path, *statements: str) -> None:
    """Change the tables as only somebody with a tool and no scruples can."""
    with raw(path) as conn:
        kept = conn.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        conn.execute("PRAGMA ignore_check_constraints = ON")
        for name, _ in kept:
            conn.execute(f"DROP TRIGGER {name}")
        for sql in statements:
            assert conn.execute(sql).rowcount != 0, sql
        for _, sql in kept:
            conn.execute(sql)


def test_a_sound_store_has_no_finding(furnished: Path) -> None:
    assert check_file(furnished) == []
    tamper(furnished, "UPDATE meta SET value = value")
    assert check_file(furnished) == []


async def test_an_open_store_is_checked_beside_its_writer(store_path: Path) -> None:
    await furnish(store_path)
    async with Store.open(store_path) as store:
        assert await check(store) == []
        await admit(store, "three")
        assert await check(store) == []


def test_a_new_store_has_no_finding(store_path: Path) -> None:
    async def main() -> None:
        async with Store.open(store_path) as store:
            assert await check(store) == []

    trio.run(main)
    assert check_file(store_path) == []


EVENT = "UPDATE event SET payload = json_set(payload, '$.{}', {}) WHERE {}"
LAST = "session_id = 's-1' AND kind = '{}' AND seq = (SELECT max(seq) FROM event WHERE session_id = 's-1' AND kind = '{}')"


def change(kind: str, key: str, value: str, *, session: str = SESSION) -> str:
    where = LAST.format(kind, kind).replace("s-1", session)
    return EVENT.format(key, value, where)


DAMAGE: list[tuple[tuple[str, ...], str]] = [
    # the file and its schema
    (("DROP INDEX work_attempt",), "schema: index work_attempt is missing"),
    (("DROP TABLE meta",), "schema: table meta is missing"),
    (("UPDATE session SET hook_epoch = 0 WHERE session_id = 'busy'",), "hook_epoch is 0, by the log 1"),
    (("UPDATE work_item SET session_id = 'nobody' WHERE id = 'chore-1'",),
     "table work_item: a row points at nothing"),
    # services and attempts
    (("DELETE FROM service",), "no service is said to have opened the store"),
    (("INSERT INTO service VALUES (2, 1, 1)",), "of boot 1 is open after recovery"),
    (("UPDATE session SET attempt_id = 'op-x' WHERE session_id = 'busy'",),
     "is open, but session busy shows op-x"),
    (("UPDATE session SET attempt_id = 'op-x' WHERE session_id = 'busy'",),
     "session busy shows attempt op-x, which is not open"),
    (("UPDATE attempt SET ended_ms = 1, how = 'failed' WHERE ended_ms IS NULL",),
     "is claimed by no open attempt"),
    (("UPDATE attempt SET how = 'failed' WHERE id = 'op-1'",), "attempt op-1 is so only in its table"),
    (("UPDATE attempt SET started_seq = 3 WHERE id = 'op-1'",), "attempt op-1 is so only by the log"),
    # usage
    (("INSERT INTO usage VALUES ('s-1', 'cost', 5)",), "usage: cost is 5.0, by the log None"),
    (("DELETE FROM usage",), "usage: total_tokens is None, by the log 3"),
    ((change("reply.received", "usage", "json_object('total_tokens', 7)"),), "usage: total_tokens is 3.0, by the log 7"),
    # deadlines
    (("INSERT INTO deadline VALUES (5, 's-1')",), "session s-1 shows deadline None, armed is 5"),
    (("UPDATE session SET state = 'waiting', wake_at_ms = 5, wait_seq = 3 WHERE session_id = 's-1'",),
     "session s-1 shows deadline 5, armed is None"),
    # source keys
    (("UPDATE event SET client_request_id = 'k-9' WHERE client_request_id = 'k-1'",),
     "the source key of input 1 is not the stored one"),
    (("UPDATE event SET source = 'x' WHERE seq = 1 AND session_id = 's-1'",),
     "the source key of input 1 is not the stored one"),
    # the log against itself
    (("DELETE FROM event WHERE session_id = 's-1' AND seq = 4",), "event 5 comes after 3"),
    (("UPDATE event SET seq = 99 WHERE session_id = 's-1' AND seq = 4",), "event 5 comes after 3"),
    (("UPDATE event SET payload = '{' WHERE seq = 1 AND session_id = 's-1'",),
     "an event after 0 can't be read"),
    (("UPDATE event SET payload = '[]' WHERE kind = 'session.woken'",), "the payload is not an object"),
    (("UPDATE event SET payload = '{}' WHERE kind = 'session.woken'",), "keys missing: ['late_ms', 'wake_at_ms']"),
    ((change("turn.completed", "more", "1"),), "keys missing: [], unknown: ['more']"),
    ((change("local.sent", "step", "'one'"),), "step is 'one'"),
    ((change("session.waiting", "retry", "7"),), "the payload can't be read"),
    ((change("turn.started", "attempt_id", "'op-x'"),), "the open attempt is op-x"),
    ((change("local.sent", "attempt_id", "'op-x'"),), "the open attempt is op-1"),
    ((change("local.sent", "call_id", "'z'"),), "(local.sent): call z is not open"),
    ((change("cell.finished", "call_id", "'z'"),), "(cell.finished): call z is not open"),
    ((change("cell.finished", "call_id", "'z'"),), "calls without a result: ['b']"),
    ((change("cell.requested", "call_id", "'a'"),), "call a was asked for before"),
    ((change("cell.requested", "step", "2"),), "step 2 begins while ['a'] have no result"),
    ((change("cell.requested", "step", "2"),), "step 1 comes after step 2"),
    ((change("session.woken", "wake_at_ms", "91"),), "the armed deadline is 90"),
    ((change("kernel.reset", "hook_epoch", "7"),), "its hook epoch follows 1"),
    ((change("session.reopened", "hook_epoch", "7"),), "its hook epoch follows 2"),
    ((change("frontier.installed", "epoch", "2"),), "its epoch follows 0"),
    ((change("frontier.installed", "drained_through_seq", "99"),), "it goes back or past its own place, to 99"),
    ((change("frontier.installed", "drained_through_seq", "-1"),), "it goes back or past"),
    (("UPDATE event SET kind = 'my.kind' WHERE kind = 'turn.failed'",), "attempt op-2 has no end"),
    (("UPDATE event SET kind = 'my.kind' WHERE kind = 'turn.started' AND payload LIKE '%op-4%'",),
     "(turn.completed): the open attempt is None"),
    (("UPDATE event SET kind = 'my.kind' WHERE kind = 'session.stopped'",), "the session is not stopped"),
    (("UPDATE event SET kind = 'my.kind' WHERE kind = 'session.reopened'",), "(input.admitted): the session is stopped"),
    (("UPDATE event SET kind = 'session.stopped', payload = '{}' WHERE kind = 'turn.interrupted'",),
     "attempt op-3 has no end"),
    ((change("turn.started", "work_items", "json_array('work-input-1')"),), "work item work-input-1 is completed"),
    # the row against the log
    (("UPDATE session SET head_seq = head_seq + 1 WHERE session_id = 's-1'",), "head_seq is"),
    (("UPDATE session SET hook_epoch = 9 WHERE session_id = 's-1'",), "hook_epoch is 9, by the log 3"),
    (("UPDATE session SET fold_seq = 6 WHERE session_id = 's-1'",), "fold_seq is 6, by the log 5"),
    (("UPDATE session SET fold_epoch = 6 WHERE session_id = 's-1'",), "fold_epoch is 6, by the log 1"),
    (("UPDATE session SET reason = 'x', receipt = 'r', wait_seq = 1, state = 'waiting' WHERE session_id = 's-1'",),
     "wait is Wait("),
    (("UPDATE session SET state = 'stopped' WHERE session_id = 's-1'",), "state is 'stopped', by the log 'ready'"),
    (("UPDATE session SET open_calls = '{\"b\":1}' WHERE session_id = 'busy'",),
     "open calls is {'b': 1}, by the log {'a': 1, 'b': 1}"),
    (("UPDATE session SET recovered_attempt = 'op-3' WHERE session_id = 's-1'",),
     "recovered attempt is 'op-3', by the log None"),
    (("UPDATE session SET kernel_boot = NULL WHERE session_id = 'busy'",), "kernel used is False, by the log True"),
    (("UPDATE session SET kernel_boot = 1 WHERE session_id = 's-1'",), "kernel used is True, by the log False"),
    # work items
    (("UPDATE work_item SET cause = '{}' WHERE id = 'chore-1'",), "the cause of work item chore-1 can't be read"),
    (("UPDATE work_item SET status = 'failed', outcome = 'x' WHERE id = 'chore-1'",),
     "work item chore-1 is ('failed', None, 'x'), by the log ('pending', None, None)"),
    (("UPDATE work_item SET outcome = 'done' WHERE id = 'work-input-1'",),
     "work item work-input-1 is ('completed', 'op-1', 'done'), by the log ('completed', 'op-1', 'waiting')"),
    (("UPDATE work_item SET crashes = 3 WHERE id = 'work-input-1'",), "counts 3 crashes, by the log 0"),
    (("UPDATE work_item SET crashes = 0 WHERE id LIKE 'work-repair-%'",), "counts 0 crashes, by the log 1"),
    (("DELETE FROM work_item WHERE id = 'work-repair-op-2'",), "work item work-repair-op-2 is in the log alone"),
    (("DELETE FROM work_item WHERE id = 'work-input-1'",), "inputs and their work items do not match"),
    (("UPDATE work_item SET input_seq = 2 WHERE id = 'work-input-1'",), "inputs and their work items do not match"),
    (("UPDATE work_item SET n = 99 WHERE id = 'work-input-1'",), "work item work-input-1 is number 99"),
    (("UPDATE work_item SET status = 'cancelled', outcome = 'stopped' WHERE input_seq > 9 AND status = 'pending'",),
     "pending inputs are [], by the log"),
    (("UPDATE work_item SET id = 'x' WHERE id = 'work-repair-op-2'",), "0 repairs were made of attempt op-2, not 1"),
    (("UPDATE work_item SET id = 'work-repair-op-1', maker_kind = 'system' WHERE id = 'chore-1'",),
     "1 repairs were made of attempt op-1, not 0"),
    (("UPDATE work_item SET cause = json_set(cause, '$.wake_at_ms', 91) WHERE cause_type = 'deadline_wake'",),
     "wakes are [91], by the log [90]"),
    # folds
    (("UPDATE frontier SET summary = 'nothing happened'",), "folds are [(1, 5, 'nothing happened')], by the log"),
    (("DELETE FROM frontier",), "folds are [], by the log"),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "finding"), DAMAGE)
def test_damage_is_found(furnished: Path, statements: tuple[str, ...], finding: str) -> None:
    tamper(furnished, *statements)
    found = check_file(furnished)
    assert any(finding in line for line in found), describe(found)


def test_a_missing_trigger_is_found(furnished: Path) -> None:
    with raw(furnished) as conn:
        conn.execute("DROP TRIGGER event_never_goes")
    assert check_file(furnished) == [
        "schema: trigger event_never_goes is missing or not as it should be"
    ]


def overwrite(path: Path, name: str) -> None:
    with raw(path) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (root,) = conn.execute(query, (name,)).fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)


@pytest.mark.parametrize("name", ["event", "event_seq", "work_item", "session", "attempt"])
def test_a_corrupt_page_is_found(furnished: Path, name: str) -> None:
    overwrite(furnished, name)
    found = check_file(furnished)
    assert found
    assert any(line.startswith("the file: ") for line in found), describe(found)


def test_an_index_that_lacks_a_row_is_found(furnished: Path) -> None:
    with raw(furnished) as conn:
        conn.execute("PRAGMA writable_schema = ON")
        conn.execute("UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master "
                     "WHERE name = 'attempt_open') WHERE name = 'attempt_session'")  # fmt: skip
    assert any(line.startswith("the file: ") for line in check_file(furnished))


def missing(path: Path) -> None:
    path.unlink()


def text(path: Path) -> None:
    path.write_text("dear diary " * 1000)


def other_database(path: Path) -> None:
    path.unlink()
    with raw(path) as conn:
        conn.execute("CREATE TABLE notes (text)")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (missing, "can't be read"),
        (text, "not a readable database"),
        (other_database, "is not a klbr_trio store"),
    ],
)
def test_what_is_no_store_is_no_finding_but_refused(
    furnished: Path, make: Callable[[Path], None], why: str
) -> None:
    make(furnished)
    with pytest.raises(StoreForeign, match=why):
        check_file(furnished)


def test_what_a_later_version_made_is_not_judged(furnished: Path) -> None:
    with raw(furnished) as conn:
        conn.execute(f"PRAGMA user_version = {len(KNOWN) + 1}")
    with pytest.raises(StoreTooNew):
        check_file(furnished)


def test_a_store_that_can_not_be_read_now_is_no_finding(furnished: Path) -> None:
    with raw(furnished) as conn:
        conn.execute("PRAGMA journal_mode = DELETE")
        conn.execute("PRAGMA locking_mode = EXCLUSIVE")
        conn.execute("BEGIN EXCLUSIVE")
        with closing(sqlite3.connect(furnished, isolation_level=None, timeout=0)) as reader:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                check_connection(reader)


def test_a_store_that_is_held_exclusively_is_unavailable(
    furnished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect: Any = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "timeout": 0}))
    with raw(furnished) as conn:
        conn.execute("PRAGMA journal_mode = DELETE")
        conn.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="locked"):
            check_file(furnished)


def test_findings_are_described_as_one_text() -> None:
    assert json.loads(describe(["a", "é"])) == ["a", "é"]
