"""Questions: they see every commit that has returned, and none holds the loop for long."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import trio
from store_lab import SESSION, admit, ask, begin, chore, claim, complete, crash, fail, finish, raw

from klbr_trio.domain.frontier import Frontier
from klbr_trio.errors import StoreForeign
from klbr_trio.store import EventRow, Input, Store
from klbr_trio.store.reader import PAGE, PAGE_BYTES, Reader, connect_readonly
from klbr_trio.wire.records import decode_event

if TYPE_CHECKING:
    from pathlib import Path


async def test_an_unknown_session_has_nothing(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        assert await store.history("nobody", 0, 10) == []
        assert await store.pending("nobody", 10) == []
        assert await store.session_state("nobody") is None
        assert await store.pending_work_items("nobody") == []
        assert await store.all_pending_work_items() == []
        assert (store.row("nobody"), store.status("nobody"), store.frontier("nobody")) == (
            None,
        ) * 3
        assert store.event_rows("nobody", 0, 10) == []
        assert store.page("nobody", 0, 10, 10) == []
        assert (store.head("nobody"), store.earliest_seq("nobody")) == (0, None)
        assert not store.is_runnable("nobody")
        assert (store.statuses("", 10), store.runnable("", 10), store.next_deadline()) == (
            [],
            [],
            None,
        )


async def test_history_is_the_events_after_a_seq_whatever_their_number(store_path: Path) -> None:
    count = 2 * PAGE + 7
    async with Store.open(store_path) as store:
        await store.admit_all([Input(SESSION, "cli", f"{n}", None) for n in range(count)])
        for after, limit in [(0, 10_000), (0, PAGE), (3, PAGE + 1), (count - 1, 5), (-5, 3)]:
            seqs = [event.seq for event in await store.history(SESSION, after, limit)]
            first = max(after, 0) + 1
            assert seqs == list(range(first, min(count, first + limit - 1) + 1))
        assert await store.history(SESSION, count, 10) == []
        assert await store.history(SESSION, 0, 0) == []
        assert store.earliest_seq(SESSION) == 1
        assert store.head(SESSION) == count
        row = store.event_rows(SESSION, 4, 1)[0]
        assert isinstance(row, EventRow)
        assert (
            decode_event(row.seq, row.session_id, row.kind, row.payload, row.created_ms)
            == ((await store.history(SESSION, 4, 1))[0])
        )


async def test_a_page_ends_with_the_event_that_brings_it_to_its_size(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await store.admit_all([Input(SESSION, "cli", "a" * 1000, None) for _ in range(10)])
        assert [row.seq for row in store.page(SESSION, 0, 99, 1)] == [1]
        assert [row.seq for row in store.page(SESSION, 2, 99, 2500)] == [3, 4, 5]
        assert [row.seq for row in store.page(SESSION, 8, 99, PAGE_BYTES)] == [9, 10]
        assert [row.seq for row in store.page(SESSION, 0, 2, PAGE_BYTES)] == [1, 2]


async def test_history_of_large_texts_lets_others_run(store_path: Path) -> None:
    passes = 0

    async def others() -> None:
        nonlocal passes
        while True:
            passes += 1
            await trio.lowlevel.checkpoint()

    async with Store.open(store_path) as store:
        for _ in range(10):
            await admit(store, "a" * 200_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await trio.lowlevel.checkpoint()
            before = passes
            events = await store.history(SESSION, 0, 10)
            nursery.cancel_scope.cancel()
        assert [event.seq for event in events] == list(range(1, 11))
        assert passes > before, "the loop was held from the first page to the last"


async def test_pending_items_come_oldest_first_however_many(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        for n in range(PAGE + 10):
            session = f"s-{n % 3}"
            await store.admit(Input(session, "cli", "hi", None))
        everything = await store.all_pending_work_items()
        assert [item.id for item in everything] == [f"work-input-{n}" for n in range(1, PAGE + 11)]
        turn = await claim(store, session="s-1")
        mine = await store.pending_work_items("s-0")
        assert [item.id for item in mine] == [
            item.id for item in everything if item.session_id == "s-0"
        ]
        assert not {item.id for item in turn.items} & {
            item.id for item in await store.all_pending_work_items()
        }


async def test_more_than_a_page_of_one_session_s_items(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await store.admit_all([Input(SESSION, "cli", "hi", None) for _ in range(PAGE + 3)])
        assert len(await store.pending_work_items(SESSION)) == PAGE + 3
        assert len(await store.pending(SESSION, PAGE + 1)) == PAGE + 1


async def test_what_is_runnable(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session("idle")
        await admit(store, session="ready")
        await admit(store, session="ready")
        await begin(store, session="executing")
        await admit(store, session="executing")
        await admit(store, session="stopped")
        await store.stop("stopped")
        await store.ensure_session("waiting")
        await store.arm("waiting", receipt=None, wake_at_ms=2**50, reason=None)
        await store.insert_work_item(chore(session="waiting"))
        assert store.runnable("", 10) == ["ready", "waiting"]
        assert store.runnable("ready", 10) == ["waiting"]
        assert store.runnable("", 1) == ["ready"]
        sessions = ("idle", "ready", "executing", "stopped", "waiting", "nobody")
        assert [s for s in sessions if store.is_runnable(s)] == ["ready", "waiting"]


async def test_sessions_are_listed_by_id_with_their_facts(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session("b")
        await admit(store, session="a")
        turn = await begin(store, session="c")
        shown = store.statuses("", 10)
        assert [one.row.session_id for one in shown] == ["a", "b", "c"]
        assert [one.pending for one in shown] == [1, 0, 1]
        assert [one.release for one in shown] == [None, None, "sha256:r"]
        assert [one.row.attempt_id for one in shown] == [None, None, turn.attempt_id]
        assert [one.row.session_id for one in store.statuses("a", 1)] == ["b"]
        assert store.status("c") == shown[2]


async def test_a_read_sees_every_commit_that_has_returned(store_path: Path) -> None:
    async with Store.open(store_path) as store:

        async def write_and_read(session: str) -> None:
            for n in range(1, 20):
                assert (await admit(store, session=session)).seq == n
                assert store.head(session) == n

        async with trio.open_nursery() as nursery:
            for session in ("a", "b", "c"):
                nursery.start_soon(write_and_read, session)


def files(store_path: Path) -> tuple[bytes, bytes]:
    return store_path.read_bytes(), store_path.with_name(store_path.name + "-wal").read_bytes()


async def test_a_reader_never_checkpoints_and_never_writes(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        for _ in range(5):
            await admit(store)
        before = files(store_path)
        with closing(connect_readonly(store_path)) as conn:
            assert len(Reader(conn).events(SESSION, 0, 10)) == 5
            with pytest.raises(Exception, match="readonly"):
                conn.execute("DELETE FROM deadline")
        assert files(store_path) == before


KILLED = """
import os, sys, trio
from klbr_trio.store import Input, Store
async def main():
    async with Store.open(sys.argv[1]) as store:
        for n in range(5):
            await store.admit(Input("s-1", "cli", "hi", None))
        os._exit(9)
trio.run(main)
"""


def test_a_killed_service_s_store_is_read_without_touching_it(store_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, store_path], check=False)
    assert done.returncode == 9
    before = files(store_path)
    with closing(connect_readonly(store_path)) as conn:
        assert len(Reader(conn).events(SESSION, 0, 10)) == 5
    assert files(store_path) == before


@pytest.mark.parametrize("name", ["a b%20c?mode=rw#x", "é😀", os.fsdecode(b"\xff"), "'\""])
async def test_a_store_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / f"{name}.sqlite"
    async with Store.open(path) as store:
        await admit(store)
        assert store.head(SESSION) == 1
    assert path.exists()


def test_what_is_not_there_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(StoreForeign, match="can't be read"):
        connect_readonly(tmp_path / "nothing.sqlite")
    assert list(tmp_path.iterdir()) == []


async def test_no_step_and_no_question_scans_a_table_or_sorts_one(store_path: Path) -> None:
    statements: set[str] = set()
    async with Store.open(store_path) as store:
        store._writer._conn.set_trace_callback(statements.add)
        store._reader._conn.set_trace_callback(statements.add)
        await admit(store, key="k")
        await store.insert_work_item(chore())
        turn = await claim(store)
        await ask(store, turn, "a", "b")
        await finish(store, turn, "a")
        await fail(store, turn)
        await crash(store, await claim(store))
        await store.arm(SESSION, receipt=None, wake_at_ms=1, reason=None)
        await store.wake_due(5)
        await complete(store, await claim(store))
        await fail(store, await claim(store))
        await fail(store, await claim(store))
        await store.stop(SESSION)
        await store.install_frontier(SESSION, Frontier(1, 1, "", "x"))
        store.statuses("a", 10), store.runnable("a", 10), store.left_open()
        store.page(SESSION, 0, 10, 10), store.frontier(SESSION), store.is_runnable(SESSION)
        await store.pending(SESSION, 10)
        await store.all_pending_work_items()
        await store.pending_work_items(SESSION)
    with raw(store_path) as conn:
        asked = [one for one in statements if one.split()[0] in ("SELECT", "UPDATE", "DELETE")]
        assert len(asked) > 40
        for sql in asked:
            for *_, line in conn.execute(f"EXPLAIN QUERY PLAN {sql}"):
                # The last row, or an index that holds open attempts alone.
                first_only = sql.endswith(" LIMIT 1") or "attempt_open" in line
                assert line.startswith(("SEARCH", "LIST")) or first_only, (line, sql)


async def test_a_quiet_store_uses_no_time_and_writes_nothing(store_path: Path) -> None:
    commits: list[str] = []
    async with Store.open(store_path, on_commit=commits.append) as store:
        turn = await begin(store)
        await ask(store, turn, "a")
        await finish(store, turn, "a")
        await complete(store, turn)
        await crash(store, await begin(store))
        await trio.testing.wait_all_tasks_blocked()
        commits.clear()
        before, used = files(store_path), time.process_time()
        await trio.sleep(0.3)
        assert time.process_time() - used < 0.1
        assert files(store_path) == before
        assert commits == []


async def test_tickets_end_with_the_next_commit(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        before = store.ticket(SESSION)
        assert store.ticket(SESSION) is before
        other = store.ticket("other")
        await admit(store)
        assert before.is_set()
        assert not other.is_set()
        after = store.ticket(SESSION)
        assert not after.is_set()
        with pytest.raises(Exception, match="no session"):
            await store.append("nobody", "my.kind", {})
        await admit(store, key="k")
        await admit(store, key="k")
        assert after.is_set()
        last = store.ticket(SESSION)
        await admit(store, key="k")
        assert not last.is_set()


async def test_a_ticket_that_nobody_holds_is_forgotten(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        for n in range(1000):
            store.ticket(f"never-{n}")
        assert len(store._bells._tickets) <= 1


async def test_watchers_see_what_each_commit_left_before_its_caller_goes_on(
    store_path: Path,
) -> None:
    seen: list[tuple[str, int]] = []
    async with Store.open(store_path) as store:
        with store.watch(
            lambda rows: seen.extend((name, row.head_seq) for name, row in rows.items())
        ):
            await admit(store)
            assert seen == [(SESSION, 1)]
            turn = await claim(store)
            assert seen[-1] == (SESSION, 2)
            await complete(store, turn)
        await admit(store)
        assert len(seen) == 3
