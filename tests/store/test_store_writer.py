"""The writer: groups that hurt nobody, callers that are answered whatever happens."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from store_lab import SESSION, admit, raw, sound
from trio.testing import wait_all_tasks_blocked

from klbr_trio.errors import KlbrError, StoreBroken, StoreUnavailable, UnknownSession
from klbr_trio.store import CommitPoint, Input, Store
from klbr_trio.store.opening import open_writing
from klbr_trio.store.writer import BATCH, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klbr_trio.store import SessionRow
    from klbr_trio.store.tx import Tx

HERE = Path(__file__).parent


def statements(store: Store, seen: list[str]) -> None:
    store._writer._conn.set_trace_callback(seen.append)


class Gate:
    """Holds every COMMIT in its thread until it is opened."""

    def __init__(self, store: Store) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()
        store._writer._conn.set_trace_callback(self._hold)

    def _hold(self, sql: str) -> None:
        if sql == "COMMIT":
            self.reached.set()
            assert self._open.wait(20)

    async def is_reached(self) -> None:
        with trio.fail_after(10):
            await trio.to_thread.run_sync(self.reached.wait, 10)

    def open(self) -> None:
        self._open.set()


async def passes(count: int) -> None:
    """Everybody who can run has run so many times."""
    for _ in range(count):
        await trio.lowlevel.checkpoint()


# Groups


async def test_what_waits_together_is_committed_together(store_path: Path) -> None:
    seen: list[str] = []
    async with Store.open(store_path) as store:
        statements(store, seen)
        async with trio.open_nursery() as nursery:
            for n in range(30):
                nursery.start_soon(_admit_to, store, f"s-{n % 3}")
        assert seen.count("SAVEPOINT operation") == 30
        assert 1 <= seen.count("COMMIT") <= 15
        await sound(store)


async def _admit_to(store: Store, session: str) -> None:
    await admit(store, session=session)


async def test_a_group_has_a_bound_and_each_session_keeps_its_order(store_path: Path) -> None:
    answers: dict[str, list[int]] = {"a": [], "b": []}
    seen: list[str] = []
    async with Store.open(store_path) as store:
        statements(store, seen)

        async def send(session: str, n: int) -> None:
            answers[session].append((await admit(store, f"{n}", session=session)).seq)

        async with trio.open_nursery() as nursery:
            for n in range(BATCH):
                nursery.start_soon(send, "a", n)
                nursery.start_soon(send, "b", n)
        assert seen.count("COMMIT") >= 2
        for session in ("a", "b"):
            assert sorted(answers[session]) == list(range(1, BATCH + 1))
        await sound(store)


async def test_one_that_fails_hurts_no_other(store_path: Path) -> None:
    failures: list[BaseException] = []
    seqs: list[int] = []

    async with Store.open(store_path) as store:

        async def fails(operation: Callable[[Tx], object]) -> None:
            try:
                await store._writer.commit(CommitPoint.NOTE, SESSION, operation)
            except (KlbrError, ArithmeticError, sqlite3.Error) as exc:
                failures.append(exc)

        async def works() -> None:
            seqs.append((await admit(store)).seq)

        def half_done(tx: Tx) -> None:
            tx.make_session("half")
            raise ZeroDivisionError

        async with trio.open_nursery() as nursery:
            for operation in (
                half_done,
                lambda tx: tx.known("nobody"),
                lambda tx: tx._conn.execute("INSERT INTO deadline VALUES (1, 'nobody')"),
                lambda tx: tx._conn.execute("nonsense"),
            ):
                nursery.start_soon(works)
                nursery.start_soon(fails, operation)
        assert {type(exc) for exc in failures} == {
            ZeroDivisionError, UnknownSession, sqlite3.IntegrityError, sqlite3.OperationalError,
        }  # fmt: skip
        assert sorted(seqs) == [1, 2, 3, 4]
        assert store.row("half") is None
        assert store.trouble is None
        await sound(store)


async def test_a_group_of_slow_steps_lets_the_loop_go_on(store_path: Path) -> None:
    seen: list[str] = []
    order: list[int] = []
    async with Store.open(store_path) as store:
        statements(store, seen)

        def slow(tx: Tx, n: int) -> None:
            until = time.perf_counter() + 0.002
            while time.perf_counter() < until:
                pass
            order.append(n)
            tx.make_session(f"s-{n}")

        async def call(n: int) -> None:
            await store._writer.commit(CommitPoint.OPEN_SESSION, "one", lambda tx: slow(tx, n))

        async with trio.open_nursery() as nursery:
            for n in range(8):
                nursery.start_soon(call, n)
                await wait_all_tasks_blocked()
            nursery.start_soon(call, 8)
        gate_free = seen.count("COMMIT")
        order.clear()
        seen.clear()
        async with trio.open_nursery() as nursery:
            for n in range(10, 18):
                nursery.start_soon(call, n)
        assert gate_free >= 1
        assert 3 <= seen.count("COMMIT") <= 8
        assert len(order) == 8


async def test_what_changed_nothing_is_no_commit_point_and_waits_for_no_disk(
    store_path: Path,
) -> None:
    points: list[str] = []
    async with Store.open(store_path, on_commit=points.append) as store:
        await admit(store, key="k")
        points.clear()
        gate = Gate(store)
        gate.open()
        await admit(store, key="k")
        assert not await store.interrupt(SESSION, "op-none", why="crash")
        assert points == []


async def test_a_loop_that_is_always_busy_does_not_starve_the_commits(store_path: Path) -> None:
    async def burn() -> None:
        while True:
            until = time.perf_counter() + 200e-6
            while time.perf_counter() < until:
                pass
            await trio.lowlevel.checkpoint()

    async with Store.open(store_path) as store, trio.open_nursery() as nursery:
        nursery.start_soon(burn)
        with trio.fail_after(20):
            for _ in range(50):
                await admit(store)
        nursery.cancel_scope.cancel()
    assert True


# Cancelled callers


async def test_a_caller_cancelled_during_its_commit_gets_its_answer(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        gate = Gate(store)
        got: list[int] = []
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def call() -> None:
                    got.append((await admit(store)).seq)

                nursery.start_soon(call)
                with trio.CancelScope(shield=True):
                    await gate.is_reached()
                    scope.cancel()
                    await passes(50)
                    assert got == []
                    gate.open()
        assert got == [1]
        assert store.head(SESSION) == 1
        await sound(store)


async def test_a_caller_cancelled_before_its_commit_wrote_nothing(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        gate = Gate(store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_admit_to, store, "first")
            await gate.is_reached()
            with trio.move_on_after(0.05) as scope:
                await admit(store, session="second")
            assert scope.cancelled_caught
            gate.open()
        await admit(store, session="third")
        assert store.row("second") is None
        await sound(store)


async def test_a_caller_that_is_cancelled_already_writes_nothing(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await admit(store, session="never")
        assert scope.cancelled_caught
        await admit(store)
        assert store.row("never") is None
        await sound(store)


@pytest.mark.parametrize("callers", [1, 5])
async def test_wherever_it_is_cancelled_cancelled_means_not_written(
    store_path: Path, callers: int
) -> None:
    stored: dict[str, int] = {}
    cancelled: set[str] = set()
    counts = (*range(15), 20, 30, 50, 80, 120, 200, 400, 1000)

    async with Store.open(store_path) as store:

        async def call(key: str, count: int) -> None:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_after, scope, count)
                    stored[key] = (await admit(store, key, key=key)).seq
                    nursery.cancel_scope.cancel()
            if key not in stored:
                cancelled.add(key)

        for count in counts:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_admit_to, store, "ahead")
                await passes(2)
                for n in range(callers):
                    nursery.start_soon(call, f"{count}-{n}", count + n)
        assert len(stored) + len(cancelled) == len(counts) * callers
        texts = {e.payload["text"]: e.seq for e in await store.history(SESSION, 0, 1000)}
        assert texts == stored
        await sound(store)


async def _cancel_after(scope: trio.CancelScope, count: int) -> None:
    await passes(count)
    scope.cancel()


async def test_a_service_that_is_cancelled_still_writes_its_last_words(store_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with Store.open(store_path) as store:
            await admit(store)
            scope.cancel()
            with trio.move_on_after(5, shield=True):
                await admit(store)
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    async with Store.open(store_path) as store:
        assert store.head(SESSION) == 2


async def test_leaving_commits_what_was_asked_for_before(store_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        async with Store.open(store_path) as store:
            gate = Gate(store)
            for _ in range(3):
                nursery.start_soon(_admit_to, store, SESSION)
            await gate.is_reached()
            for _ in range(3):
                nursery.start_soon(_admit_to, store, SESSION)
            await passes(5)
            gate.open()
        with pytest.raises(StoreUnavailable, match="the store is closed"):
            await admit(store)
    async with Store.open(store_path) as again:
        assert again.head(SESSION) == 6
        await sound(again)


async def test_leaving_at_once_commits_what_was_asked_for_at_once(store_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        async with Store.open(store_path) as store:
            nursery.start_soon(_admit_to, store, SESSION)
            await passes(2)
    async with Store.open(store_path) as again:
        assert again.head(SESSION) == 1


# A file that is busy, full or broken


async def test_a_file_that_is_held_for_a_while_is_waited_for(store_path: Path) -> None:
    async with Store.open(store_path) as store, trio.open_nursery() as nursery:
        with raw(store_path) as other:
            other.execute("BEGIN IMMEDIATE")
            nursery.start_soon(_admit_to, store, "kept")
            with trio.move_on_after(0.1) as scope:
                await admit(store, session="left")
            assert scope.cancelled_caught
            assert store.row("kept") is None
            other.execute("ROLLBACK")
        with trio.fail_after(5):
            while store.row("kept") is None:
                await store.ticket("kept").wait()
        assert store.row("left") is None
        assert store.trouble is None


async def test_when_all_that_waited_have_left_nothing_is_written(store_path: Path) -> None:
    ended: list[str] = []
    rolled_back = trio.Event()

    def note(sql: str) -> None:
        ended.append(sql)
        if sql == "ROLLBACK":
            rolled_back.set()

    async with Store.open(store_path) as store:
        with raw(store_path) as other:
            other.execute("BEGIN IMMEDIATE")
            store._writer._conn.set_trace_callback(note)
            with trio.move_on_after(0.05):
                await admit(store)
            other.execute("ROLLBACK")
        with trio.fail_after(5):
            await rolled_back.wait()
        assert "COMMIT" not in ended
        assert (await admit(store)).seq == 1


async def test_a_file_that_stays_held_is_unavailable_until_it_is_free(store_path: Path) -> None:
    async with Store.open(store_path, busy_s=0.1) as store:
        await admit(store)
        refused = 0

        async def fails() -> None:
            nonlocal refused
            with pytest.raises(StoreUnavailable, match="database is locked"):
                await admit(store)
            refused += 1

        with raw(store_path) as other:
            other.execute("BEGIN IMMEDIATE")
            with trio.fail_after(5):
                async with trio.open_nursery() as nursery:
                    for _ in range(BATCH + 5):
                        nursery.start_soon(fails)
            other.execute("ROLLBACK")
        assert refused == BATCH + 5
        trouble = store.trouble
        assert trouble == "the store's file can't be used now: database is locked"
        assert (await admit(store)).seq == 2
        assert store.trouble is None
        await sound(store)


def test_a_full_disk_refuses_whole_groups_and_is_over_when_it_is_over(store_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, HERE / "full_disk.py", store_path], capture_output=True, check=True
    )
    said = json.loads(run.stdout)
    why = "the store's file can't be used now: disk I/O error"
    assert said == {
        "trouble": why,
        "head_while_full": 1,
        "duplicate": True,
        "trouble_after_a_read": why,
        "refused": [f"k-{n}: {why}" for n in range(1, 6)],
        "again": 2,
        "trouble_at_the_end": None,
        "check": [],
    }


async def test_one_that_does_not_fit_hurts_none_that_does(store_path: Path) -> None:
    refused: list[str] = []
    async with Store.open(store_path) as store:
        await admit(store)
        conn = store._writer._conn
        (pages,) = conn.execute("PRAGMA page_count").fetchone()
        conn.execute(f"PRAGMA max_page_count = {pages + 4}")

        async def send(text: str) -> None:
            try:
                await admit(store, text)
            except StoreUnavailable as exc:
                refused.append(str(exc))

        async with trio.open_nursery() as nursery:
            for n in range(7):
                nursery.start_soon(send, "x" * (100_000 if n == 3 else 10))
        assert refused == ["the store's file can't be used now: database or disk is full"]
        assert store.head(SESSION) == 7
        await send("x" * 100_000)
        trouble = store.trouble
        assert trouble == refused[1]
        conn.execute("PRAGMA max_page_count = 1000000")
        await send("x" * 100_000)
        assert store.trouble is None
        await sound(store)


async def test_when_sqlite_ends_a_transaction_each_is_run_alone(store_path: Path) -> None:
    runs: list[str] = []
    answers: list[object] = []
    async with Store.open(store_path) as store:

        def ends_it(tx: Tx) -> None:
            runs.append("ends")
            tx._conn.execute("ROLLBACK")
            tx._conn.execute("ROLLBACK")

        def works(tx: Tx) -> str:
            runs.append("works")
            tx.make_session("made")
            return "made"

        async def call(key: str, operation: Callable[[Tx], object]) -> None:
            try:
                answers.append(await store._writer.commit(CommitPoint.OPEN_SESSION, key, operation))
            except sqlite3.OperationalError as exc:
                answers.append(str(exc))

        await wait_all_tasks_blocked()  # so that both are in one group
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "a", works)
            nursery.start_soon(call, "b", ends_it)
        assert runs == ["works", "ends", "works", "ends"]
        assert set(answers) == {"made", "cannot rollback - no transaction is active"}
        assert store.row("made") is not None
        await sound(store)


async def test_a_file_that_is_taken_while_each_is_run_alone(store_path: Path) -> None:
    refused: list[str] = []
    async with Store.open(store_path, busy_s=0.05) as store:
        with raw(store_path) as other:

            def ends_it(tx: Tx) -> None:
                tx._conn.execute("ROLLBACK")
                other.execute("BEGIN IMMEDIATE")
                tx._conn.execute("ROLLBACK")

            async def call(key: str, operation: Callable[[Tx], object]) -> None:
                with pytest.raises(StoreUnavailable) as caught:
                    await store._writer.commit(CommitPoint.OPEN_SESSION, key, operation)
                refused.append(str(caught.value))

            await wait_all_tasks_blocked()  # so that both are in one group
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, "a", lambda tx: tx.make_session("made"))
                nursery.start_soon(call, "b", ends_it)
        assert len(refused) == 2
        assert store.row("made") is None


def damage(path: Path, table: str) -> None:
    """The table's first page holds nonsense; everything else is sound."""
    with raw(path) as conn:
        (root,) = conn.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
        ).fetchone()
        (size,) = conn.execute("PRAGMA page_size").fetchone()
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)


async def broken(path: Path, table: str) -> None:
    async with Store.open(path) as store:
        await admit(store)
    damage(path, table)


async def test_a_corrupt_page_ends_the_store_and_everybody_is_answered(store_path: Path) -> None:
    await broken(store_path, "event")
    answers: list[str] = []

    async def call(store: Store, session: str) -> None:
        with trio.CancelScope(shield=True):
            try:
                await admit(store, session=session)
            except (StoreBroken, StoreUnavailable) as exc:
                answers.append(type(exc).__name__)

    async def serve() -> None:
        async with Store.open(store_path) as store, trio.open_nursery() as nursery:
            await wait_all_tasks_blocked()
            for n in range(BATCH + 3):
                nursery.start_soon(call, store, f"s-{n}")

    with trio.fail_after(10), pytest.raises(StoreBroken, match="the store's file is corrupt"):
        await serve()
    assert answers == ["StoreBroken"] * (BATCH + 3)


async def test_a_caller_that_lets_the_damage_through_changes_nothing(store_path: Path) -> None:
    await broken(store_path, "event")

    async def serve() -> None:
        async with Store.open(store_path) as store, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(_admit_to, store, SESSION)

    with pytest.raises(StoreBroken, match="corrupt"):
        await serve()


async def test_a_corrupt_page_that_is_read_is_called_that(store_path: Path) -> None:
    await broken(store_path, "event")
    async with Store.open(store_path) as store:
        with pytest.raises(StoreBroken, match="corrupt"):
            await store.history(SESSION, 0, 10)
        with pytest.raises(StoreBroken, match="corrupt"):
            store.event_rows(SESSION, 0, 10)


# A writer that ends by an error of ours


async def test_however_the_writer_ends_nobody_waits_for_ever(store_path: Path) -> None:
    answers: list[str] = []

    def burst(point: str) -> None:
        raise ZeroDivisionError(point)

    conn, boot = open_writing(store_path, 1, busy_s=1)
    with closing(conn):
        writer = Writer(conn, boot, lambda: 1, burst, _see_nothing)

        async def call(session: str) -> None:
            try:
                await writer.commit(
                    CommitPoint.OPEN_SESSION, session, lambda tx: tx.make_session(session)
                )
            except (StoreBroken, StoreUnavailable) as exc:
                answers.append(f"{type(exc).__name__}: {exc}")

        async def run() -> None:
            with pytest.raises(ZeroDivisionError):
                await writer.run()

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                for n in range(BATCH + 1):
                    nursery.start_soon(call, f"s-{n}")
                await wait_all_tasks_blocked()
                nursery.start_soon(run)
    unknown = "StoreBroken: the writer ended; whether this was written is not known"
    closed = "StoreUnavailable: the store is closed; nothing was written"
    assert len(answers) == BATCH + 1
    assert set(answers) == {unknown, closed}


def _see_nothing(_: Mapping[str, SessionRow]) -> None:
    return


async def test_a_watcher_that_fails_ends_the_store_and_not_its_callers(store_path: Path) -> None:
    got: list[int] = []

    def fails(_: object) -> None:
        raise ZeroDivisionError

    async def serve() -> None:
        async with Store.open(store_path) as store:
            with store.watch(fails):
                got.append((await admit(store)).seq)
                await trio.sleep_forever()

    with trio.fail_after(5), pytest.raises(ZeroDivisionError):
        await serve()
    assert got == [1]


STUCK = """
import logging, sys, time, trio
from pathlib import Path
from klbr_trio.store import CommitPoint
from klbr_trio.store.opening import open_writing
from klbr_trio.store.writer import Writer
logging.basicConfig()
conn, boot = open_writing(Path(sys.argv[1]), 1, busy_s=1)
conn.set_trace_callback(lambda sql: time.sleep(60) if sql == "COMMIT" else None)
writer = Writer(conn, boot, lambda: 1, lambda _: None, lambda _: None, 1.0, 0.2)
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        await writer.commit(CommitPoint.OPEN_SESSION, "s", lambda tx: tx.make_session("s"))
trio.run(main)
"""


def test_a_commit_that_never_comes_back_ends_the_process(store_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", STUCK, store_path], capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert run.returncode == 70
    assert "a commit has been out for" in run.stderr


async def test_a_closed_store_takes_nothing(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        pass
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.admit(Input(SESSION, "cli", "hi", None))
