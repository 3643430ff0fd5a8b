"""Deadlines: armed, shown, and fired exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from store_lab import (
    SESSION,
    admit,
    begin,
    causes,
    chore,
    claim,
    complete,
    kinds,
    payload,
    sound,
)

from klbr_trio.domain import session as sessions, work
from klbr_trio.domain.clock import FARTHEST_MS
from klbr_trio.errors import IllegalTransition, UnknownSession
from klbr_trio.store import Store, WaitFor
from klbr_trio.store.deadlines import WAKE_CHUNK

if TYPE_CHECKING:
    from pathlib import Path


async def arm(store: Store, wake_at_ms: int | None, *, session: str = SESSION) -> None:
    await store.ensure_session(session)
    await store.arm(session, receipt=None, wake_at_ms=wake_at_ms, reason="because")


async def test_an_armed_session_waits_and_wakes_once(store_path: Path) -> None:
    async with Store.open(store_path, now_ms=lambda: 100) as store:
        await arm(store, 90)
        assert await payload(store, "session.waiting") == {
            "wake_at_ms": 90,
            "reason": "because",
            "receipt": None,
            "retry": None,
        }
        row = store.row(SESSION)
        assert row is not None
        assert row.state == sessions.Waiting(None, 90, "because")
        assert await store.wake_due(89) == []
        assert await store.wake_due(95) == [SESSION]
        assert await store.wake_due(2**53) == []
        assert await payload(store, "session.woken") == {"wake_at_ms": 90, "late_ms": 5}
        [item] = await store.pending_work_items(SESSION)
        assert (item.cause, item.purpose) == (work.DeadlineWake(90), "because")
        assert item.provenance == work.Provenance.system("wake_due", 95)
        assert await store.session_state(SESSION) == ("ready", None)
        await sound(store)


async def test_a_later_wait_replaces_an_earlier_one(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await arm(store, 90)
        await arm(store, 40)
        assert store.next_deadline() == 40
        assert await store.wake_due(100) == [SESSION]
        assert await causes(store) == [work.DeadlineWake(40)]
        await sound(store)


@pytest.mark.parametrize(
    ("asked", "armed"),
    [(-5, -5), (0, 0), (2**53, FARTHEST_MS), (10**30, FARTHEST_MS), (-(10**30), -FARTHEST_MS)],
)
async def test_any_time_can_be_waited_for(store_path: Path, asked: int, armed: int) -> None:
    async with Store.open(store_path) as store:
        await arm(store, asked)
        assert store.next_deadline() == armed
        assert await store.wake_due(2**53) == [SESSION]
        assert (await claim(store)).causes == (work.DeadlineWake(armed),)
        await sound(store)


async def test_a_wake_before_its_time_is_not_late(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await arm(store, -5)
        await store.wake_due(-5)
        assert (await payload(store, "session.woken"))["late_ms"] == 0


async def test_a_wait_needs_a_time_or_a_receipt(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)
        with pytest.raises(ValueError, match="a time or a receipt"):
            await store.arm(SESSION, receipt=None, wake_at_ms=None, reason="x")
        with pytest.raises(ValueError, match="at most 1000 characters"):
            await store.arm(SESSION, receipt="r" * 1001, wake_at_ms=None, reason="x")
        with pytest.raises(UnknownSession):
            await store.arm("nobody", receipt="r", wake_at_ms=None, reason="x")
        await store.arm(SESSION, receipt="r", wake_at_ms=None, reason="a parcel")
        assert await store.session_state(SESSION) == ("waiting", None)
        assert await store.wake_due(2**53) == []
        await complete(store, await begin(store))
        assert await store.session_state(SESSION) == ("waiting", None)
        await sound(store)


async def test_only_its_attempt_makes_a_session_wait(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        with pytest.raises(IllegalTransition, match="has an open attempt"):
            await arm(store, 90)
        await complete(store, turn, "waiting", WaitFor(90, "r" * 2000))
        assert len((await payload(store, "session.waiting"))["reason"]) == 1000


async def test_one_that_comes_due_during_an_attempt_fires_and_waits_its_turn(
    store_path: Path,
) -> None:
    async with Store.open(store_path) as store:
        await arm(store, 90)
        turn = await begin(store)
        assert await store.session_state(SESSION) == ("executing", 90)
        assert await store.wake_due(100) == [SESSION]
        assert await store.session_state(SESSION) == ("executing", None)
        assert not store.is_runnable(SESSION)
        await complete(store, turn)
        assert (await claim(store)).causes == (work.DeadlineWake(90),)
        await sound(store)


async def test_deadlines_survive_a_restart_and_fire_in_their_order(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        for session, at in [("c", 30), ("a", 20), ("b", 20), ("later", 99)]:
            await arm(store, at, session=session)
    async with Store.open(store_path) as store:
        assert store.next_deadline() == 20
        row = store.row("c")
        assert row is not None
        assert row.state == sessions.Waiting(None, 30, "because")
        assert await store.wake_due(50) == ["a", "b", "c"]
        assert store.next_deadline() == 99
        await sound(store)


async def test_many_fire_in_chunks_each_a_commit(store_path: Path) -> None:
    commits: list[str] = []
    count = 2 * WAKE_CHUNK + 5
    async with Store.open(store_path, on_commit=commits.append) as store:
        async with trio.open_nursery() as nursery:
            for n in range(count):
                nursery.start_soon(arm_one, store, n)
        commits.clear()
        assert await store.wake_due(count) == [f"s-{n}" for n in range(count)]
        assert commits == ["before:wake", "after:wake"] * 3
        await sound(store)


async def arm_one(store: Store, n: int) -> None:
    await arm(store, n, session=f"s-{n}")


async def test_two_drivers_fire_each_deadline_once(store_path: Path) -> None:
    woken: list[str] = []
    async with Store.open(store_path) as store:

        async def drive() -> None:
            woken.extend(await store.wake_due(1000))

        for n in range(100):
            await arm(store, n, session=f"s-{n}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drive)
            nursery.start_soon(drive)
        assert sorted(woken) == sorted(f"s-{n}" for n in range(100))
        await sound(store)


async def test_a_cancelled_driver_leaves_whole_chunks(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        async with trio.open_nursery() as nursery:
            for n in range(3 * WAKE_CHUNK):
                nursery.start_soon(arm_one, store, n)
        with trio.CancelScope() as scope, store.watch(lambda _: scope.cancel()):
            await store.wake_due(2**53)
        left = [one for one in store.statuses("", 1000) if one.row.wake_at_ms is not None]
        assert len(left) in (2 * WAKE_CHUNK, WAKE_CHUNK)
        assert len(await store.wake_due(2**53)) == len(left)
        await sound(store)


async def test_an_id_that_somebody_took_does_not_hinder_a_wake(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await arm(store, 5)
        for n in range(1, 9):
            await store.insert_work_item(chore(f"work-wake-{n}"))
        assert await store.wake_due(5) == [SESSION]
        assert work.DeadlineWake(5) in await causes(store)
        await sound(store)


async def test_a_woken_session_that_has_inputs_runs_them_together(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await arm(store, 5)
        await admit(store)
        await store.wake_due(5)
        assert (await claim(store)).causes == (work.InputReady(2), work.DeadlineWake(5))
        assert await kinds(store) == [
            "session.waiting", "input.admitted", "session.woken", "turn.started",
        ]  # fmt: skip
