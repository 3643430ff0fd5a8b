"""What a service's end and the operator's Stop do to sessions: each by its intent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from fakes.provider import call_reply, hang, refused_url
from session_lab import CEILING_S, SID, STUCK, WAIT, client, open_lab

from klbr_trio.domain.ids import OperationId
from klbr_trio.domain.session import Executing, Ready, Stopped, Waiting
from klbr_trio.domain.work import Cancelled, Claimed, DeadlineWake, Failed, Pending
from klbr_trio.errors import AdmissionRejected, SessionStopped
from klbr_trio.sessions.groups import ServiceTaskGroup
from klbr_trio.sessions.registry import SessionRegistry

if TYPE_CHECKING:
    from pathlib import Path

SEND_AND_WAIT = call_reply(
    "from klbr import local\nawait local.send('off to sleep')\n" + WAIT.format(600, "the gate"),
    text="working.",
)


async def test_a_deadline_lives_through_shutdown_and_restart_and_fires_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [SEND_AND_WAIT]) as lab:
        await lab.drive()
        await lab.admit("hello", key="once")
        await lab.event("turn.completed")
        found = await lab.store.session_state(SID)
        assert found is not None
        state, deadline = found
        assert state == "waiting"
        assert deadline is not None
        await lab.registry.shutdown_all()
        await lab.registry.shutdown_all()
        assert await lab.store.session_state(SID) == ("waiting", deadline)
        entry = lab.registry.get(SID)
        assert entry is not None
        assert not await entry.try_start_runner(OperationId.fresh(), trio.sleep, 0)

    async with open_lab(tmp_path) as lab:
        await lab.drive(model=False)
        assert (await lab.entry()).state == Waiting(None, deadline, None)
        assert await lab.store.wake_due(deadline - 1) == []
        assert await lab.store.wake_due(deadline + 1) == [SID]
        assert await lab.store.wake_due(deadline + 2) == []
        wakes = [
            item
            for item in await lab.store.pending_work_items(SID)
            if isinstance(item.cause, DeadlineWake)
        ]
        assert [item.cause for item in wakes] == [DeadlineWake(deadline)]
        assert lab.provider.requests == []


async def test_a_stop_lives_through_shutdown_and_restart(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hang()]) as lab:
        await lab.admit("hi", key="one")
        assert await lab.trigger()
        await lab.event("turn.started")
        await lab.registry.stop(SID)
        assert await lab.store.session_state(SID) == ("stopped", None)
        await lab.registry.shutdown_all()
        assert await lab.store.session_state(SID) == ("stopped", None)
        entry = lab.registry.get(SID)
        assert entry is not None
        assert entry.state == Stopped()

    async with open_lab(tmp_path) as lab:
        await lab.drive()
        entry = await lab.entry()
        assert entry.state == Stopped()
        assert not entry.can_admit
        with pytest.raises(SessionStopped):
            await entry.try_start_runner(OperationId.fresh(), trio.sleep, 0)
        with pytest.raises(AdmissionRejected, match="cannot admit input"):
            await lab.admit("no", key="late")
        with pytest.raises(SessionStopped):
            await lab.trigger()
        head = lab.store.head(SID)
        await lab.registry.stop(SID)
        assert lab.store.head(SID) == head, "a second Stop writes nothing"


async def test_reset_is_the_way_back_from_a_stop(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        await lab.admit("before", key="one")
        await lab.entry()
        await lab.registry.stop(SID)
        assert await lab.store.session_state(SID) == ("stopped", None)
        entry = await lab.registry.reopen(SID, lab.release)
        assert entry.state == Ready()
        assert entry.can_admit
        assert entry.runtime.hook_epoch == 2
        assert await lab.store.session_state(SID) == ("ready", None)
        assert not (await lab.admit("back", key="two")).duplicate
        assert (await lab.admit("before", key="one")).duplicate
        assert await lab.store.pending(SID, 10) == [1, 4], "what nobody had claimed waited"


async def test_stop_ends_a_runner_that_asks_the_model(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hang()]) as lab:
        await lab.admit("held")
        assert await lab.trigger()
        await lab.provider.wait_requests(1)
        await lab.admit("not held")
        await lab.maintenance()
        with trio.fail_after(5):
            await lab.registry.stop(SID)
            await lab.provider.wait_disconnected()
        entry = await lab.entry()
        assert entry.state == Stopped()
        assert entry.runners.active is None
        assert lab.kinds()[-2:] == ["turn.interrupted", "session.stopped"]
        assert lab.of("turn.interrupted")[0]["why"] == "stopped"
        held = await lab.store.get_work_item("work-input-1")
        upkeep = await lab.store.get_work_item("upkeep")
        waits = await lab.store.get_work_item("work-input-2")
        assert held is not None
        assert upkeep is not None
        assert waits is not None
        assert held.status == upkeep.status == Cancelled("stopped")
        assert waits.status == Pending()
        # It runs after a reset, and only that.
        await lab.registry.reopen(SID, None)
        lab.provider.answers = [call_reply("from klbr import runtime\nawait runtime.done()")]
        assert await lab.trigger()
        await lab.idle()
        assert lab.of("turn.started")[-1]["work_items"] == ["work-input-2"]


async def test_stop_ends_a_cell_and_everything_it_started(tmp_path: Path) -> None:
    code = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\n" + STUCK
    async with open_lab(tmp_path, [call_reply(code, "never")]) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.cell_begun()
        assert len(lab.processes()) >= 3
        with trio.fail_after(5):
            await lab.registry.stop(SID)
        assert lab.processes() == []
        first, second = lab.of("cell.finished")
        assert "may have run, in part or whole; known: it sent nothing" in first["error"]
        assert second["error"] == "not run: the operator stopped the session"


async def test_nobody_claims_or_speaks_after_a_shutdown(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hang()]) as lab:
        item = await lab.maintenance()
        assert await lab.trigger()
        started = await lab.event("turn.started")
        held = await lab.store.get_work_item(item.id)
        assert held is not None
        assert isinstance(held.status, Claimed)
        assert held.status.attempt_id == started.payload["attempt_id"]
        entry = await lab.entry()
        assert isinstance(entry.state, Executing)
        with trio.fail_after(CEILING_S):
            await lab.registry.shutdown_all()
        released = await lab.store.get_work_item(item.id)
        assert released is not None
        assert released.status == Pending()
        assert lab.of("turn.interrupted")[0]["why"] == "shutdown"
        assert lab.said() == []
        claim = await lab.store.claim_work_item(item.id, OperationId.fresh(), 3000)
        assert claim.is_claimed
        await lab.store.interrupt(SID, lab.of("turn.started")[-1]["attempt_id"], why="shutdown")


async def test_one_shutdown_keeps_each_sessions_intent(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        waiting = await lab.entry("sleeper")
        await waiting.transition_to_executing(waiting.runtime.hook_epoch, OperationId.fresh())
        assert isinstance(waiting.state, Executing)
        await waiting.transition_to_waiting(None, 90_000, "a check")
        await lab.entry("stopped")
        await lab.registry.stop("stopped")
        await lab.registry.shutdown_all()
        await lab.registry.shutdown_all()
        for _ in range(2):
            assert await lab.store.session_state("sleeper") == ("waiting", 90_000)
            assert await lab.store.session_state("stopped") == ("stopped", None)
            async with SessionRegistry.open(lab.store, lab.registry.config) as second:
                sleeper = await second.get_or_open("sleeper", lab.release)
                assert sleeper.state == Waiting(None, 90_000, None)
                stopped = await second.get_or_open("stopped", lab.release)
                assert stopped.state == Stopped()


async def test_service_tasks_are_joined_by_a_shutdown(tmp_path: Path) -> None:
    ended: list[str] = []

    async def work(name: str, ready: trio.Event) -> None:
        ready.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(deadline=trio.current_time() + 5, shield=True):
                await trio.sleep(0.02)
                ended.append(name)

    async with open_lab(tmp_path) as lab:
        for group in (ServiceTaskGroup.RECOVERY, ServiceTaskGroup.DRIVER):
            ready = trio.Event()
            await lab.registry.start_service_task(group, work, group.value, ready)
            await ready.wait()
        await lab.registry.shutdown_all()
        assert ended == ["driver", "recovery"]


async def test_an_offline_model_costs_one_repair_and_no_more(tmp_path: Path) -> None:
    with refused_url() as url:
        async with open_lab(tmp_path, llm=client(url)) as lab:
            await lab.drive()
            began = trio.current_time()
            await lab.admit("exercise one bounded failure", key="once")
            await lab.event("turn.failed", 2)
            assert trio.current_time() - began < 2.0
            await lab.idle()
            assert await lab.store.all_pending_work_items() == []
            item = await lab.store.get_work_item("work-input-1")
            assert item is not None
            assert item.status == Failed("provider_unavailable")
            # Nothing more comes of it: the driver has nothing to look at.
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert lab.kinds() == [
                "input.admitted", "turn.started", "turn.failed", "turn.started", "turn.failed",
            ]  # fmt: skip
            assert (await lab.entry()).state == Ready()
