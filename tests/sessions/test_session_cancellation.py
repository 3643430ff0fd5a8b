"""A turn is cut at every one of its steps; the log stays sound and nothing is left alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from fakes.provider import call_reply
from session_lab import CEILING_S, SID, SPEAK, Lab, open_lab

from klbr_trio.domain.project import project

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

# Two cells, some output, some words, a subprocess: every kind of step that a turn has.
FIRST = (
    "import subprocess\nfrom klbr import local\nprint('first')\n"
    "await local.send('one')\nchild = subprocess.Popen(['sleep', '1000'])"
)
ANSWERS = (call_reply(FIRST, "print('second')", text="a thought"), call_reply(SPEAK.format("two")))


STEPS = 90
"""A few more than the steps that the tasks of such a turn make, by `test_the_steps_of_a_turn`."""

PARTS = 7


class After(trio.abc.Instrument):
    """Sets an event when the runner's tasks have made this many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.reached = trio.Event()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        while task.name is not None:
            if task.name.startswith("runner "):
                self.steps -= 1
                if self.steps == 0:
                    self.reached.set()
                return
            if task.parent_nursery is None:
                return
            task = task.parent_nursery.parent_task


async def cut_by_stop(lab: Lab) -> None:
    await lab.registry.stop(SID)
    await lab.registry.reopen(SID, None)


async def cut_by_abort(lab: Lab) -> None:
    await (await lab.entry()).abort_runner()


async def cut_by_shutdown(lab: Lab) -> None:
    await lab.registry.shutdown_all()


async def reset(lab: Lab) -> None:
    await lab.registry.reopen(SID, None)


def assert_whole(lab: Lab, sid: str) -> None:
    """No attempt is open, no call without its result, and words are said once."""
    facts = project(lab.log(sid))
    assert facts.open_attempt is None
    assert facts.open_calls == {}
    assert len(lab.of("cell.requested", sid)) == len(lab.of("cell.finished", sid))


async def test_the_steps_of_a_turn(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ANSWERS) as lab:
        counter = After(10**9)
        trio.lowlevel.add_instrument(counter)
        await lab.turn()
        trio.lowlevel.remove_instrument(counter)
        assert STEPS * 2 // 3 < 10**9 - counter.steps < STEPS * 3 // 2


@pytest.mark.parametrize("cut", [cut_by_stop, cut_by_abort, cut_by_shutdown, reset])
@pytest.mark.parametrize("part", range(PARTS))
async def test_a_turn_may_be_cut_anywhere(
    tmp_path: Path, cut: Callable[[Lab], Awaitable[None]], part: int
) -> None:
    async with open_lab(tmp_path, ANSWERS) as lab:
        moment = After(1 + STEPS * part // PARTS)
        trio.lowlevel.add_instrument(moment)
        await lab.admit("hello")
        assert await lab.trigger()
        async with trio.open_nursery() as nursery:

            async def unless_it_ends() -> None:
                await lab.idle()
                moment.reached.set()

            nursery.start_soon(unless_it_ends)
            await moment.reached.wait()
            trio.lowlevel.remove_instrument(moment)
            was_running = lab.registry.running > 0
            with trio.fail_after(CEILING_S):
                await cut(lab)
            if cut is not reset:
                assert lab.processes() == [] or not was_running
                assert lab.registry.running == 0
        await lab.idle()
        assert_whole(lab, SID)
        if cut is not reset:
            left = [request for request in lab.provider.requests if not request.over.is_set()]
            with trio.fail_after(CEILING_S):
                for request in left:
                    await request.over.wait()
        if cut in (cut_by_stop, cut_by_abort):
            # What was cut does not hinder what comes.
            lab.provider.answers = [call_reply(SPEAK.format("after all"))]
            await lab.turn("again")
            assert lab.said()[-1] == "after all"
            assert_whole(lab, SID)
    async with open_lab(tmp_path, [call_reply(SPEAK.format("restarted"))]) as lab:
        await lab.turn("and again")
        assert lab.said()[-1] == "restarted"
        assert_whole(lab, SID)
