from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from fakes.provider import call_reply, hang
from faults import bare_store, leave_open
from session_lab import CEILING_S, CONFIG, DONE, SID, STUCK, open_lab, publish, state_of

from klbr_trio.domain.session import Draining, Ready, Stopped
from klbr_trio.domain.work import Pending
from klbr_trio.errors import (
    AdmissionRejected,
    InvalidSessionId,
    RegistryClosed,
    SourceKeyConflict,
)
from klbr_trio.sessions.groups import ServiceTaskGroup
from klbr_trio.sessions.ingress import SourceRef, admit_input
from klbr_trio.sessions.registry import RecoveryObservationPolicy, SessionRegistry

if TYPE_CHECKING:
    from pathlib import Path


async def test_opening_writes_nothing_and_starts_nothing(tmp_path: Path) -> None:
    async with bare_store(tmp_path) as store:
        await store.ensure_session(SID)
    file = tmp_path / "klbr.sqlite"
    async with bare_store(tmp_path) as store:
        before = [path.read_bytes() for path in (file, tmp_path / "klbr.sqlite-wal")]
        here = trio.lowlevel.current_task()
        nurseries = len(here.child_nurseries)
        async with SessionRegistry.open(store, CONFIG, RecoveryObservationPolicy()) as registry:
            assert registry.store is store
            assert registry.get(SID) is None
            assert len(here.child_nurseries) == nurseries + 1
            assert not here.child_nurseries[-1].child_tasks
        assert [path.read_bytes() for path in (file, tmp_path / "klbr.sqlite-wal")] == before


async def test_opening_a_session_makes_its_row_and_no_event(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        with pytest.raises(InvalidSessionId):
            await lab.registry.get_or_open("no/such", lab.release)
        entry = await lab.entry()
        assert await lab.entry() is entry
        assert lab.registry.get(SID) is entry
        assert await lab.store.session_state(SID) == ("ready", None)
        assert lab.kinds() == []
        assert (await lab.admit()).seq == 1


async def test_a_shutdown_is_for_good(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(lab.registry.shutdown_all)
        with pytest.raises(RegistryClosed):
            await lab.registry.get_or_open("new", lab.release)
        with pytest.raises(RegistryClosed):
            await lab.registry.reopen(SID, lab.release)
        with pytest.raises(RegistryClosed):
            await lab.registry.start_service_task(ServiceTaskGroup.CLIENT, trio.sleep, 0)
        with pytest.raises(RegistryClosed):
            await lab.trigger()
        with pytest.raises(AdmissionRejected, match="cannot admit input: the service is shutting"):
            await lab.admit()
        assert state_of(entry) == Draining()
    with pytest.raises(RegistryClosed):
        await lab.registry.stop(SID)
    await lab.registry.shutdown_all()


@pytest.mark.parametrize("who", ["runner", "driver", "below a runner"])
async def test_a_task_of_the_registry_cant_wait_for_its_end(tmp_path: Path, who: str) -> None:
    raised: list[str] = []
    ended = trio.Event()

    async with open_lab(tmp_path) as lab:

        async def shut_down() -> None:
            try:
                await lab.registry.shutdown_all()
            except RuntimeError as exc:
                raised.append(str(exc))
            ended.set()

        async def below() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(shut_down)

        if who == "driver":
            await lab.registry.start_service_task(ServiceTaskGroup.DRIVER, shut_down)
        else:
            entry = await lab.entry()
            await entry.try_start_runner("r", shut_down if who == "runner" else below)
        await ended.wait()
        assert raised == ["a task of the registry can't wait for the registry's end"]
        assert not lab.registry.closing.is_set()


async def test_leaving_the_block_quiesces(tmp_path: Path) -> None:
    async with bare_store(tmp_path) as store, SessionRegistry.open(store, CONFIG) as registry:
        entry = await registry.get_or_open(SID, None)
        running = trio.Event()

        async def run() -> None:
            running.set()
            await trio.sleep_forever()

        assert await entry.try_start_runner("r", run)
        await running.wait()
    assert registry.closed.is_set()
    assert entry.runners.active is None


async def test_an_error_in_the_block_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with bare_store(tmp_path) as store, SessionRegistry.open(store, CONFIG):
            raise KeyError("mine")


async def test_an_error_in_a_service_task_ends_the_registry(tmp_path: Path) -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    async with open_lab(tmp_path, [call_reply(STUCK)]) as lab:
        first = lab.registry

        async def until_it_fails() -> None:
            async with SessionRegistry.open(lab.store, CONFIG) as second:
                lab.registry = second
                await lab.admit()
                assert await lab.trigger()
                await lab.cell_begun()
                await second.start_service_task(ServiceTaskGroup.DRIVER, fail)
                await trio.sleep_forever()

        with trio.fail_after(CEILING_S), pytest.raises(ZeroDivisionError):
            await until_it_fails()
        lab.registry = first
        assert lab.of("turn.interrupted")[0]["why"] == "shutdown"


async def test_a_registry_that_is_cancelled_from_outside_shuts_down(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(STUCK)]) as lab:
        first = lab.registry
        with trio.CancelScope() as scope:
            async with SessionRegistry.open(lab.store, CONFIG) as second:
                lab.registry = second
                await lab.admit()
                assert await lab.trigger()
                await lab.cell_begun()
                scope.cancel()
                # Whoever holds the block is busy: the runner is cut before the shutdown begins.
                with trio.CancelScope(deadline=trio.current_time() + CEILING_S, shield=True):
                    await lab.event("turn.interrupted")
                assert not second.closing.is_set()
        assert scope.cancelled_caught
        lab.registry = first
        assert lab.of("turn.interrupted")[0]["why"] == "shutdown"
        assert lab.processes() == []


async def test_opening_a_session_ends_an_attempt_of_an_earlier_service(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        await lab.admit()
        await (await lab.entry()).transition_to_waiting(None, 90_000, "x")
    await leave_open(tmp_path, "work-input-1", "an-old-attempt")
    async with open_lab(tmp_path) as lab:
        assert await lab.store.session_state(SID) == ("executing", 90_000)
        entry = await lab.entry()
        assert lab.of("turn.interrupted") == [
            {"attempt_id": "an-old-attempt", "why": "crash", "failed": []}
        ]
        assert await lab.store.session_state(SID) == ("waiting", 90_000)
        item = await lab.store.get_work_item("work-input-1")
        assert item is not None
        assert item.status == Pending()
        # One of this opening is nobody's business.
        await lab.store.claim_work_item("work-input-1", "mine", 1)
        assert await lab.entry() is entry
        assert await lab.store.session_state(SID) == ("executing", 90_000)


async def test_the_next_turn_runs_the_release_given_last(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply("x = 1", DONE)]) as lab:
        await lab.drive()
        await lab.admit()
        await lab.event("turn.completed", 1)
        await lab.idle()
        other = publish(tmp_path, prompt="Be long.")
        await lab.registry.get_or_open(SID, other)
        await lab.admit()
        await lab.event("turn.completed", 2)
        assert [one["release"] for one in lab.of("turn.started")] == [
            lab.release.digest,
            other.digest,
        ]
        assert lab.of("kernel.reset") == [{"why": "release", "hook_epoch": 2}]
        assert lab.messages()[0]["content"] == "Be long."
        assert "the behaviour changed" in lab.messages()[-1]["content"]


async def test_an_input_is_stored_once_whatever_is_repeated(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        first = await lab.admit("alpha", key="k")
        again = await lab.admit("alpha", key="k")
        assert (again.seq, again.duplicate) == (first.seq, True)
        with pytest.raises(SourceKeyConflict, match="source key reused with different content"):
            await lab.admit("beta", key="k")
        assert lab.kinds() == ["input.admitted"]
        await lab.registry.stop(SID)
        assert (await lab.admit("alpha", key="k")).duplicate
        ref = SourceRef.from_v2_input(SID, "operator", "x", None)
        with pytest.raises(ValueError, match="is for session"):
            await admit_input(lab.registry, ref.session_id.__class__("another"), ref)


async def test_a_drain_lets_the_turn_end_and_starts_no_other(tmp_path: Path) -> None:
    async with open_lab(
        tmp_path, [call_reply("import asyncio\nawait asyncio.sleep(0.3)", DONE)]
    ) as lab:
        await lab.drive()
        await lab.admit("one")
        await lab.event("cell.requested")
        await lab.admit("two")
        lab.registry.begin_shutdown()
        with pytest.raises(AdmissionRejected):
            await lab.admit("three")
        with trio.fail_after(CEILING_S):
            await lab.registry.idle()
        assert lab.kinds()[-1] == "turn.completed"
        assert await lab.store.pending(SID, 9) == [lab.kinds().index("input.admitted", 1) + 1]


async def test_a_stop_in_a_drain_leaves_the_session_stopped(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hang()]) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.event("turn.started")
        lab.registry.begin_shutdown()
        entry = lab.registry.get(SID)
        assert entry is not None
        assert state_of(entry) == Draining()
        await lab.registry.stop(SID)
        assert state_of(entry) == Stopped()
        await lab.store.reset(SID)
        assert state_of(entry) == Draining(), "the service still goes down"
        assert not await entry.try_start_runner("r", trio.sleep, 0)
    async with open_lab(tmp_path) as lab:
        assert (await lab.entry()).state == Ready()
