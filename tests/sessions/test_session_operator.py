from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from fakes.provider import call_reply, hang
from faults import Fault, full, locked
from session_lab import CEILING_S, DONE, SID, STUCK, open_lab, state_of

from klbr_trio.domain.session import Draining, Ready, Stopped
from klbr_trio.errors import AdmissionRejected, StoreUnavailable
from klbr_trio.sessions.operator import ANSWER_S, SurvivorsLeft

if TYPE_CHECKING:
    from pathlib import Path

RESET = "the kernel was reset by the operator"


async def test_a_stop_goes_on_when_its_caller_leaves(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(STUCK)]) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.cell_begun()
        with trio.CancelScope() as scope:
            scope.cancel()
            await lab.registry.stop(SID)
        assert scope.cancelled_caught
        await lab.event("session.stopped")
        await lab.idle()
        entry = await lab.entry()
        with trio.fail_after(CEILING_S):
            while entry.stopping:
                await entry.stopping[0].wait()
        assert lab.processes() == []


@pytest.mark.parametrize("how", [full, locked])
async def test_a_stop_that_cant_be_stored_kills_all_the_same(tmp_path: Path, how: Fault) -> None:
    async with open_lab(tmp_path, [call_reply(STUCK)], busy_s=0.2) as lab:
        await lab.admit("one", key="k")
        assert await lab.trigger()
        await lab.cell_begun()
        entry = await lab.entry()
        with how(lab.store.path):
            with pytest.raises(StoreUnavailable, match="the stop could not be stored"):
                await lab.registry.stop(SID)
            assert lab.processes() == []
            assert entry.runners.active is None
            assert state_of(entry) == Draining()
        # Writing works again, but the session takes nothing in this process.
        with pytest.raises(AdmissionRejected, match="its stop could not be stored"):
            await lab.admit("two")
        assert (await lab.admit("one", key="k")).duplicate
        assert not await entry.try_start_runner("r", trio.sleep, 0)
        assert not await lab.trigger()
        with pytest.raises(StoreUnavailable, match="stop it again, then reset it"):
            await lab.registry.reopen(SID, None)
        assert lab.of("turn.interrupted")[0]["why"] == "aborted"
        # The operator's way out: stop it again.
        await lab.registry.stop(SID)
        assert state_of(entry) == Stopped()
        assert (await lab.registry.reopen(SID, None)).state == Ready()
        assert entry.can_admit


async def test_a_stop_that_is_slow_to_store_is_answered_in_time(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(STUCK)], busy_s=20) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.cell_begun()
        entry = await lab.entry()
        with locked(lab.store.path) as holder:
            began = trio.current_time()
            with pytest.raises((StoreUnavailable, SurvivorsLeft)):
                await lab.registry.stop(SID)
            assert trio.current_time() - began < ANSWER_S + 1
            assert lab.processes() == []
            assert state_of(entry) == Draining()
            holder.execute("ROLLBACK")
            # What nobody could wait for is done all the same.
            await lab.event("session.stopped")
        await lab.until(lambda: state_of(entry) == Stopped())
        with trio.fail_after(CEILING_S):
            await lab.registry.stop(SID)
            assert (await lab.registry.reopen(SID, None)).state == Ready()


async def test_a_reset_sent_after_a_stop_waits_for_it(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(STUCK)]) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.cell_begun()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab.registry.stop, SID)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(partial(lab.registry.reopen, SID, None))
        assert lab.kinds()[-2:] == ["session.stopped", "session.reopened"]
        assert (await lab.entry()).state == Ready()


async def test_a_reset_in_the_middle_of_a_cell_ends_the_cell_and_not_the_turn(
    tmp_path: Path,
) -> None:
    answers = [call_reply("x = 1\n" + STUCK), call_reply("'x' in dir()", DONE)]
    async with open_lab(tmp_path, answers) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.cell_begun()
        processes = lab.processes()
        entry = await lab.registry.reopen(SID, lab.release)
        assert not set(processes) & set(lab.processes())
        assert entry.runtime.hook_epoch == 2
        await lab.idle()
        first, second = lab.of("cell.finished")[:2]
        assert first["error"] == RESET
        assert second["value"] == "False"
        assert lab.of("kernel.reset") == [{"why": "operator", "hook_epoch": 2}]
        assert lab.of("turn.completed")[0]["outcome"] == "done"
        told = lab.messages()[-1]["content"]
        assert "fresh one (the operator reset it)" in told


async def test_a_reset_between_turns_is_told_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply("x = 1", DONE)]) as lab:
        await lab.turn()
        state = (await lab.entry()).state
        await lab.registry.reopen(SID, None)
        await lab.registry.reopen(SID, None)
        assert lab.processes() == []
        assert (await lab.entry()).state == state
        await lab.turn()
        assert [one["why"] for one in lab.of("kernel.reset")] == ["operator"] * 2


async def test_a_reset_keeps_a_sleeping_agents_deadline(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        await entry.transition_to_waiting(None, 90_000, "tea")
        asleep = entry.state
        await lab.registry.reopen(SID, None)
        assert state_of(entry) == asleep
        assert lab.kinds() == ["session.waiting", "kernel.reset"]


async def test_from_the_resets_commit_on_the_old_kernel_is_not_heard(tmp_path: Path) -> None:
    """The commit stands and the kill does not come: what the cell then asks for is refused."""
    code = (
        "from klbr import local, runtime\nprint('begun', flush=True)\nimport asyncio, pathlib\n"
        "while not pathlib.Path('go').exists():\n    await asyncio.sleep(0.01)\n"
        "for ask in (lambda: local.send('late'), lambda: runtime.wait(seconds=5), runtime.done):\n"
        "    try:\n        await ask()\n        print('taken')\n"
        "    except Exception as exc:\n        print('refused:', exc)\n"
    )
    async with open_lab(tmp_path, [call_reply(code), call_reply(DONE)]) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.cell_begun()
        await lab.store.reset(SID)
        (tmp_path / "workspaces" / SID / "go").touch()
        await lab.idle()
        output = lab.of("cell.finished")[0]["output"]
        assert output.count("refused:") == 3
        assert "taken" not in output
        assert lab.said() == []
        assert "session.waiting" not in lab.kinds()


async def test_a_reset_that_cant_be_stored_changes_nothing(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply("x = 7", DONE)], busy_s=0.1) as lab:
        await lab.turn()
        with locked(lab.store.path), pytest.raises(StoreUnavailable):
            await lab.registry.reopen(SID, None)
        assert lab.processes() != []
        lab.provider.answers = [call_reply("x", DONE)]
        await lab.turn()
        assert lab.of("cell.finished")[2]["value"] == "7"


async def test_stop_ends_a_retired_runner_too(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()
        retired, ended = trio.Event(), trio.Event()

        async def run() -> None:
            await entry.retire_runner("r")
            retired.set()
            try:
                await trio.sleep_forever()
            finally:
                ended.set()

        assert await entry.try_start_runner("r", run)
        await retired.wait()
        await lab.registry.stop(SID)
        assert ended.is_set()


async def test_a_stop_while_the_kernel_starts_leaves_none(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(STUCK)]) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.event("cell.requested")
        await lab.registry.stop(SID)
        assert lab.processes() == []
        assert lab.kinds()[-1] == "session.stopped"


async def test_a_runner_may_stop_its_own_session(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        entry = await lab.entry()

        async def run() -> None:
            await lab.registry.stop(SID)

        assert await entry.try_start_runner("r", run)
        await lab.event("session.stopped")
        await lab.idle()
        assert state_of(entry) == Stopped()


async def test_a_stop_cuts_the_request_to_the_model_server(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hang()]) as lab:
        await lab.admit(sid="one")
        await lab.admit(sid="two")
        assert await lab.trigger("one")
        await lab.provider.wait_requests(1)
        assert await lab.trigger("two")
        await lab.provider.wait_requests(2)
        await lab.registry.stop("one")
        with trio.fail_after(5):
            await lab.provider.wait_disconnected(0)
        assert not lab.provider.requests[1].left.is_set()
        assert lab.registry.running == 1
        await lab.registry.stop("two")
