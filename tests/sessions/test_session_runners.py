from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from fakes.provider import call_reply, hang
from session_lab import DONE, SID, STUCK, open_lab, state_of

from klbr_trio.domain.ids import OperationId
from klbr_trio.domain.session import Draining, Executing, Ready, Waiting
from klbr_trio.errors import IllegalTransition, SessionStopped, UnknownSession
from klbr_trio.sessions.runner import trigger_session_turn

if TYPE_CHECKING:
    from pathlib import Path

    from klbr_trio.sessions.entry import SessionEntry


class Doing:
    """A runner that says when it has begun and how it ended."""

    def __init__(self) -> None:
        self.begun = trio.Event()
        self.go = trio.Event()
        self.how: str | None = None

    async def run(self) -> None:
        self.begun.set()
        self.how = "cancelled"
        await self.go.wait()
        self.how = "returned"


async def start(entry: SessionEntry, name: str = "a-runner") -> Doing:
    doing = Doing()
    assert await entry.try_start_runner(name, doing.run)
    await doing.begun.wait()
    return doing


async def test_a_session_has_one_runner_at_a_time(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        doing = await start(entry)
        assert not await entry.try_start_runner("another", trio.sleep, 0)
        assert state_of(entry) == Ready(), "starting one does not touch the state"
        other = await start(await lab.entry("other"))
        doing.go.set()
        await lab.idle()
        again = await start(entry, "another")
        again.go.set()
        other.go.set()


async def test_retiring_from_outside_waits_and_does_not_cancel(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        doing = await start(entry)
        retired = trio.Event()

        async def retire() -> None:
            assert await entry.retire_runner("a-runner")
            retired.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(retire)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not retired.is_set()
            doing.go.set()
        assert doing.how == "returned"
        assert not await entry.retire_runner("a-runner"), "it is not active any more"
        assert not await entry.retire_runner("unknown")


@pytest.mark.parametrize("below", [False, True])
async def test_a_runner_that_retires_itself_frees_its_place_and_goes_on(
    tmp_path: Path, *, below: bool
) -> None:
    retired, go, ended = trio.Event(), trio.Event(), trio.Event()

    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()

        async def give_up() -> None:
            assert await entry.retire_runner("first")
            retired.set()

        async def run() -> None:
            if below:
                async with trio.open_nursery() as outer, trio.open_nursery() as inner:
                    outer.start_soon(trio.sleep, 0)
                    inner.start_soon(give_up)
            else:
                await give_up()
            await go.wait()
            ended.set()

        assert await entry.try_start_runner("first", run)
        await retired.wait()
        assert not ended.is_set()
        second = await start(entry, "second")
        go.set()
        await ended.wait()
        assert entry.runners.active is not None
        assert entry.runners.active.attempt_id == "second"
        second.go.set()


async def test_aborting_cancels_and_joins(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        await entry.abort_runner()
        doing = await start(entry)
        await entry.abort_runner()
        assert doing.how == "cancelled"
        assert entry.runners.active is None
        (await start(entry)).go.set()


async def test_aborting_a_turn_interrupts_it_and_kills_its_kernel(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(STUCK)]) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.cell_begun()
        await (await lab.entry()).abort_runner()
        assert lab.processes() == []
        assert lab.of("turn.interrupted")[0]["why"] == "aborted"
        assert lab.kinds()[-2:] == ["cell.finished", "turn.interrupted"]
        assert (await lab.entry()).state == Ready()
        lab.provider.answers = [call_reply(DONE)]
        assert await lab.trigger()
        await lab.idle()
        assert lab.of("kernel.reset") == [{"why": "died", "hook_epoch": 2}]
        told = lab.messages()[-1]["content"]
        assert "the turn above was broken off: it was aborted" in told
        assert "fresh one" in told


async def test_quiescing_cancels_the_active_runner_and_waits_for_a_retired_one(
    tmp_path: Path,
) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        retired, cleaned = trio.Event(), trio.Event()

        async def run() -> None:
            await entry.retire_runner("retires")
            retired.set()
            await trio.sleep(0.1)
            cleaned.set()

        assert await entry.try_start_runner("retires", run)
        await retired.wait()
        active = await start(entry, "active")
        await entry.quiesce(lab.store)
        assert cleaned.is_set()
        assert active.how == "cancelled"
        assert state_of(entry) == Draining()
        assert not entry.can_admit
        assert not await entry.try_start_runner("late", trio.sleep, 0)
        with pytest.raises(IllegalTransition):
            await entry.transition_to_waiting(None, 5, "x")


async def test_a_retired_runner_that_does_not_end_is_cut_after_two_seconds(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        retired = trio.Event()

        async def run() -> None:
            await entry.retire_runner("retires")
            retired.set()
            await trio.sleep_forever()

        assert await entry.try_start_runner("retires", run)
        await retired.wait()
        began = trio.current_time()
        await entry.quiesce(lab.store)
        assert 1.9 < trio.current_time() - began < 8
        assert entry.runners.names() == []


async def test_quiescing_releases_a_claim_that_nobody_runs(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        item = await lab.maintenance()
        assert (await lab.store.claim_work_item(item.id, "an-attempt", 1)).is_claimed
        entry = await lab.entry()
        assert isinstance(entry.state, Executing)
        await entry.quiesce(lab.store)
        assert lab.of("turn.interrupted")[0]["why"] == "shutdown"
        assert await lab.store.session_state(SID) == ("ready", None)


async def test_a_runner_that_raises_frees_its_place_and_ends_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("oh")

    async with open_lab(tmp_path) as lab:
        other = await start(await lab.entry("other"))
        entry = await lab.entry()
        with caplog.at_level(logging.ERROR):
            assert await entry.try_start_runner("fails", fail)
            await lab.idle()
        assert "a runner failed" in caplog.text
        (await start(entry)).go.set()
        assert other.how == "cancelled", "still at it"
        other.go.set()
        await lab.idle("other")
        assert other.how == "returned"


async def test_a_state_set_in_memory_goes_back_to_the_stores_with_the_runner(
    tmp_path: Path,
) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        doing = await start(entry)
        await entry.transition_to_executing(1, "a-runner")
        assert state_of(entry) == Executing("a-runner", 1)
        await entry.transition_to_executing(1, "a-runner")
        with pytest.raises(IllegalTransition):
            await entry.transition_to_executing(1, "another")
        doing.go.set()
        await lab.idle()
        assert state_of(entry) == Ready()


async def test_the_state_follows_every_commit_whoever_makes_it(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        await lab.store.arm(SID, receipt="r", wake_at_ms=None, reason="a letter")
        assert state_of(entry) == Waiting("r", None, "a letter")
        await lab.admit()
        claim = await lab.store.claim_work_item("work-input-1", "an-attempt", 7)
        assert claim.is_claimed
        assert state_of(entry) == Executing("an-attempt", 1)
        await lab.store.interrupt(SID, "an-attempt", why="aborted")
        assert state_of(entry) == Waiting("r", None, "a letter")
        await lab.store.kernel_gone(SID, why="idle")
        assert entry.runtime.hook_epoch == 2
        await lab.store.stop(SID)
        assert not entry.can_admit
        with pytest.raises(SessionStopped):
            await entry.try_start_runner(OperationId.fresh(), trio.sleep, 0)
        await lab.store.reset(SID)
        assert state_of(entry) == Ready()
        assert entry.runtime.hook_epoch == 3


async def test_the_rules_of_waiting(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        with pytest.raises(ValueError, match="a time or a receipt"):
            await entry.transition_to_waiting(None, None, "for ever")
        await entry.transition_to_waiting(None, -5, "long ago")
        assert state_of(entry) == Waiting(None, -5, "long ago")
        await entry.transition_to_waiting("a-receipt", 90_000, None)
        assert state_of(entry) == Waiting("a-receipt", 90_000, None)
        assert lab.kinds() == ["session.waiting", "session.waiting"]
        await lab.admit()
        await lab.store.claim_work_item("work-input-1", "an-attempt", 7)
        with pytest.raises(IllegalTransition):
            await entry.transition_to_waiting(None, 5, None)
        await lab.registry.stop(SID)
        for _ in range(2):
            with pytest.raises(IllegalTransition):
                await entry.transition_to_waiting(None, 5, None)
            with pytest.raises(IllegalTransition):
                await entry.transition_to_executing(1, "x")


async def test_a_restored_wait_has_no_reason_until_a_new_one_is_made(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        await (await lab.entry()).transition_to_waiting("r", 90_000, "why")
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        assert state_of(entry) == Waiting("r", 90_000, None)
        await lab.admit()
        assert state_of(entry) == Waiting("r", 90_000, None)
        await entry.transition_to_waiting("r", 90_000, "why")
        assert state_of(entry) == Waiting("r", 90_000, "why")


async def test_what_starts_a_runner(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hang()]) as lab:
        assert not await lab.trigger(), "nothing is runnable"
        await lab.admit()
        assert not await trigger_session_turn(lab.registry, None, SID, lab.release)
        assert await lab.trigger()
        assert not await lab.trigger(), "one is active"
        started = await lab.event("turn.started")
        entry = await lab.entry()
        assert entry.runners.active is not None
        assert entry.runners.active.attempt_id == started.payload["attempt_id"]
        assert lab.registry.running == 1
        await entry.abort_runner()
        assert lab.registry.running == 0


async def test_a_session_that_was_never_made_is_unknown_to_the_operator(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        with pytest.raises(UnknownSession):
            await lab.registry.stop("nobody")
        with pytest.raises(UnknownSession):
            await lab.registry.reopen("nobody", lab.release)
        assert lab.registry.get("nobody") is None
        assert await lab.store.session_state("nobody") is None
