from __future__ import annotations

from pathlib import Path

import trio
import trio.testing
from fakes.provider import call_reply, hang
from faults import leave_open
from session_lab import CEILING_S, DONE, SID, SPEAK, WAIT, FakeClock, open_lab

from klbr_trio.domain.session import Ready
from klbr_trio.sessions.clock import WallClock


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self.count += 1


async def test_what_was_there_and_what_comes_is_run(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(DONE)]) as lab:
        await lab.admit(sid="before-1")
        await lab.admit(sid="before-2")
        await lab.drive()
        await lab.admit(sid="after")
        await lab.maintenance(sid="upkeep")
        for sid in ("before-1", "before-2", "after", "upkeep"):
            await lab.event("turn.completed", sid=sid)


async def test_a_stopped_session_is_run_after_its_reset(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(DONE)]) as lab:
        await lab.admit()
        await lab.registry.stop(SID)
        await lab.drive()
        await lab.admit(sid="other")
        await lab.event("turn.completed", sid="other")
        assert "turn.started" not in lab.kinds()
        await lab.registry.reopen(SID, None)
        await lab.event("turn.completed")


async def test_without_a_model_nothing_runs_and_deadlines_fire(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_lab(tmp_path, clock=clock) as lab:
        await lab.drive(model=False)
        await lab.admit()
        await (await lab.entry("sleeper")).transition_to_waiting(None, clock.time_ms + 5, "tea")
        clock.move(clock.time_ms + 5)
        await lab.event("session.woken", sid="sleeper")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert lab.kinds() == ["input.admitted"]
        assert len(await lab.store.all_pending_work_items()) == 2
        assert lab.registry.running == 0
        assert lab.provider.requests == []


async def test_only_so_many_runners_and_nobody_is_forgotten(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hang()]) as lab:
        names = [f"s{n}" for n in range(5)]
        for name in names:
            await lab.admit(sid=name)
        await lab.drive(max_runners=2)
        await lab.provider.wait_requests(2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert lab.registry.running == 2
        assert len(lab.provider.requests) == 2
        # One that waits is stopped: its place in the line is lost, not that of those behind it.
        await lab.registry.stop("s2")
        lab.provider.answers = [call_reply(DONE)]
        await lab.registry.stop("s0")
        await lab.event("turn.completed", sid="s3")
        await lab.event("turn.completed", sid="s4")
        await lab.idle("s4")
        assert lab.kinds("s2") == ["input.admitted", "session.stopped"]
        assert lab.registry.running == 1


async def test_a_deadline_fires_at_its_time_and_once(tmp_path: Path) -> None:
    clock = FakeClock()
    start = clock.time_ms
    async with open_lab(tmp_path, [call_reply(DONE)], clock=clock) as lab:
        await lab.drive()
        late = await lab.entry("late")
        await late.transition_to_waiting(None, start + 5000, "b")
        early = await lab.entry("early")
        await early.transition_to_waiting(None, start + 1000, "a")
        await trio.testing.wait_all_tasks_blocked(0.02)
        clock.move(start + 999)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert "session.woken" not in lab.kinds("early")
        clock.move(start + 1000)
        await lab.event("turn.completed", sid="early")
        assert lab.of("session.woken", "early") == [{"wake_at_ms": start + 1000, "late_ms": 0}]
        assert "session.woken" not in lab.kinds("late")
        assert lab.of("turn.started", "early")[0]["causes"] == [
            {"type": "deadline_wake", "wake_at_ms": start + 1000}
        ]
        clock.move(start + 7000)
        await lab.event("turn.completed", sid="late")
        assert lab.of("session.woken", "late") == [{"wake_at_ms": start + 5000, "late_ms": 2000}]
        assert "2.0 s late. Your reason: b.]" in str(lab.messages())
        assert early.state == late.state == Ready()


async def test_a_deadline_that_passed_while_down_wakes_once(tmp_path: Path) -> None:
    clock = FakeClock()
    due = clock.time_ms + 1000
    async with open_lab(tmp_path, clock=clock) as lab:
        await (await lab.entry()).transition_to_waiting(None, due, "tea")
    for _ in range(2):
        later = FakeClock(due + 3_600_000)
        async with open_lab(tmp_path, [call_reply(DONE)], clock=later) as lab:
            await lab.drive()
            await lab.event("turn.completed")
            await lab.idle()
            assert lab.of("session.woken") == [{"wake_at_ms": due, "late_ms": 3_600_000}]
            assert lab.kinds().count("turn.started") == 1
            assert await lab.store.session_state(SID) == ("ready", None)


async def test_a_deadline_that_comes_in_an_attempt_waits_for_the_next_one(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_lab(tmp_path, [hang()], clock=clock) as lab:
        await lab.drive()
        entry = await lab.entry()
        await entry.transition_to_waiting(None, clock.time_ms + 1000, "tea")
        await lab.admit()
        await lab.event("turn.started")
        clock.move(clock.time_ms + 1000)
        await lab.event("session.woken")
        assert lab.kinds().count("turn.started") == 1
        assert lab.store.status(SID).row.wake_at_ms is None  # type: ignore[union-attr]
        lab.provider.answers = [call_reply(DONE)]
        await entry.abort_runner()
        await lab.event("turn.completed")
        assert [one["type"] for one in lab.of("turn.started")[1]["causes"]] == [
            "input_ready",
            "deadline_wake",
        ]


async def test_an_idle_service_does_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_lab(tmp_path, [call_reply(WAIT.format(60, "tea"))], clock=clock) as lab:
        await lab.drive()
        await lab.admit()
        await lab.event("turn.completed")
        await lab.idle()
        kernels = (await lab.entry()).kernels
        await kernels.kill("not a part of this")
        await trio.testing.wait_all_tasks_blocked(0.1)
        looks, head = clock.looks, lab.store.head(SID)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(0.5)
        trio.lowlevel.remove_instrument(steps)
        assert steps.count <= 2, "only the sleep of this test"
        assert clock.looks == looks
        assert clock.sleepers == 1
        assert lab.store.head(SID) == head


async def test_recovery_settles_and_the_driver_runs_what_it_settled(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        await lab.admit(sid="one")
        await lab.admit(sid="two")
    await leave_open(tmp_path, "work-input-1", "crashed-1")
    await leave_open(tmp_path, "work-input-2", "crashed-2")
    async with open_lab(tmp_path, [call_reply(SPEAK.format("yes"))]) as lab:
        assert not lab.registry.recovered.is_set()
        await lab.drive()
        for sid in ("one", "two"):
            await lab.event("turn.completed", sid=sid)
            assert lab.said(sid) == ["yes"]
        with trio.fail_after(CEILING_S):
            await lab.registry.recovered.wait()


async def test_the_wall_clock_wakes_at_its_time() -> None:
    clock = WallClock()
    with trio.fail_after(CEILING_S):
        due = clock.now_ms() + 50
        await clock.sleep_until_ms(due)
        assert clock.now_ms() >= due
        await clock.sleep_until_ms(due - 10_000)
        await clock.sleep_until_ms(-5)
    with trio.move_on_after(0.02) as scope:
        await clock.sleep_until_ms(2**53)
    assert scope.cancelled_caught


async def test_the_wall_clock_leaves_no_descriptor() -> None:
    clock = WallClock()
    before = open_files()
    for _ in range(20):
        with trio.move_on_after(0):
            await clock.sleep_until_ms(2**53)
        await clock.sleep_until_ms(1)
    assert open_files() == before


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
