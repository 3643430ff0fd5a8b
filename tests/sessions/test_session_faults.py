"""What breaks under a turn: its kernel, its store, its release, and we ourselves."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import attrs
import pytest
import trio
from fakes.provider import (
    USAGE,
    Answers,
    Request,
    Scripted,
    call_fragment,
    call_reply,
    chunk,
    drip,
    hang,
    refuse,
    refused_url,
    sse,
    text_reply,
)
from faults import Fault, full, leave_open, locked
from session_lab import (
    CEILING_S,
    CONFIG,
    DONE,
    SID,
    SPEAK,
    STUCK,
    WAIT,
    FakeClock,
    client,
    kill,
    open_lab,
    publish,
)

from klbr_trio.domain.session import Ready
from klbr_trio.sessions.registry import RecoveryObservationPolicy
from klbr_trio.sessions.runner import trigger_session_turn


async def test_a_kernel_that_dies_in_a_cell_is_told_and_the_turn_goes_on(tmp_path: Path) -> None:
    answers = [call_reply("x = 1\nimport os\nos._exit(3)", "'x' in dir()", DONE)]
    async with open_lab(tmp_path, answers) as lab:
        await lab.turn()
        first, second = lab.of("cell.finished")[:2]
        assert "the kernel died" in first["error"]
        assert "exited with code 3" in first["error"]
        assert second["value"] == "False"
        assert lab.of("kernel.reset") == [{"why": "died", "hook_epoch": 2}]
        kinds = lab.kinds()
        assert kinds.index("kernel.reset") == kinds.index("cell.finished") + 1
        assert (await lab.entry()).runtime.hook_epoch == 2


async def test_a_kernel_that_dies_between_turns_is_told_before_the_model_is_asked(
    tmp_path: Path,
) -> None:
    async with open_lab(tmp_path, [call_reply("x = 1", DONE)]) as lab:
        await lab.turn()
        kernel = (await lab.entry()).kernels.kernel
        assert kernel is not None
        kill(kernel.pid)
        await kernel.wait_dead()
        await lab.turn()
        assert lab.of("kernel.reset") == [{"why": "died", "hook_epoch": 2}]
        assert "fresh one (the old one is dead)" in lab.messages()[-1]["content"]


async def test_a_kernel_that_dies_while_the_model_thinks_is_told_with_the_next_step(
    tmp_path: Path,
) -> None:
    dead = trio.Event()

    def second(_: Request) -> Scripted:
        answer = sse(chunk(call_fragment("'x' in dir()")), chunk(finish="tool_calls", usage=USAGE))
        return drip(dead, answer)

    answers: Answers = [call_reply("x = 1"), second, call_reply(DONE)]
    async with open_lab(tmp_path, answers) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.provider.wait_requests(2)
        kernel = (await lab.entry()).kernels.kernel
        assert kernel is not None
        kill(kernel.pid)
        await kernel.wait_dead()
        dead.set()
        await lab.idle()
        assert lab.of("kernel.reset") == [{"why": "died", "hook_epoch": 2}]
        assert lab.of("cell.finished")[1]["value"] == "False"
        assert "the old one is dead" in lab.messages()[-1]["content"]
        assert lab.of("turn.completed")[0]["outcome"] == "done"


async def test_a_cell_that_cant_be_stopped_costs_the_kernel(tmp_path: Path) -> None:
    stubborn = (
        "import time\nwhile True:\n    try:\n        while True: time.sleep(1)\n"
        "    except BaseException: pass"
    )
    config = attrs.evolve(CONFIG, grace_seconds=0.2)
    answers = [call_reply(stubborn), call_reply("1", DONE)]
    async with open_lab(tmp_path, answers, settings="[cell]\nseconds = 0.2", config=config) as lab:
        await lab.turn()
        first, second = lab.of("cell.finished")[:2]
        assert "the cell was killed" in first["error"]
        assert second["value"] == "1"
        assert lab.of("kernel.reset") == [{"why": "died", "hook_epoch": 2}]


async def test_a_kernel_that_cant_start_fails_the_turn(tmp_path: Path) -> None:
    config = attrs.evolve(CONFIG, python=Path("/bin/false"))
    async with open_lab(tmp_path, [call_reply("1", "2")], config=config) as lab:
        await lab.turn()
        failed = lab.of("turn.failed")
        assert [one["code"] for one in failed] == ["kernel_unavailable"] * 2
        assert "did not start" in failed[0]["message"]
        assert all(one["error"].startswith("not run: ") for one in lab.of("cell.finished"))
        assert "kernel.reset" not in lab.kinds()


async def test_a_release_that_was_damaged_is_not_run(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply("1")]) as lab:
        file = lab.release.path / "behavior.toml"
        file.chmod(0o644)
        file.write_text('name = "another"')
        await lab.turn()
        assert lab.of("turn.failed")[0]["code"] == "kernel_unavailable"
        assert lab.of("cell.finished")[0]["ok"] is False


async def test_another_release_starts_with_a_fresh_kernel_and_says_so(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply("x = 1", DONE)]) as lab:
        await lab.turn()
        other = publish(tmp_path, prompt="Be long.")
        lab.provider.answers = [call_reply("'x' in dir()", DONE)]
        await lab.admit()
        assert await lab.trigger(release=other)
        await lab.idle()
        assert lab.of("kernel.reset") == [{"why": "release", "hook_epoch": 2}]
        assert lab.of("cell.finished")[2]["value"] == "False"
        assert "fresh one (the behaviour changed)" in lab.messages()[-1]["content"]


async def test_of_the_kernels_that_rest_the_oldest_end_and_their_agents_are_told(
    tmp_path: Path,
) -> None:
    async with open_lab(tmp_path, [call_reply("x = 1", DONE)], resting_kernels=2) as lab:
        for sid in ("one", "two", "three"):
            await lab.turn(sid=sid)
        with trio.fail_after(CEILING_S):
            while lab.processes("one"):
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert lab.processes("two")
        assert lab.processes("three")
        assert "kernel.reset" not in lab.kinds("one"), "a service that rests writes nothing"
        lab.provider.answers = [call_reply("'x' in dir()", DONE)]
        await lab.turn(sid="one")
        assert lab.of("kernel.reset", "one") == [{"why": "idle", "hook_epoch": 2}]
        assert lab.of("cell.finished", "one")[2]["value"] == "False"
        assert "fresh one (it was idle for long)" in lab.messages()[-1]["content"]
        # Now it is the second that has rested longest.
        await lab.turn(sid="three")
        assert lab.of("cell.finished", "three")[2]["value"] == "True"


async def test_a_restart_is_told_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply("x = 1", DONE)]) as lab:
        await lab.turn()
    for _ in range(2):
        async with open_lab(tmp_path, [text_reply("fine")], settings="nudge = false") as lab:
            await lab.turn()
            assert lab.of("kernel.reset") == [{"why": "restart", "hook_epoch": 2}]
            assert "fresh one (the service was restarted)" in str(lab.messages())


async def test_an_internal_error_ends_the_turn_and_not_the_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("a looker of ours")

    async with open_lab(tmp_path, [call_reply(STUCK)]) as lab:
        await lab.admit()
        with caplog.at_level(logging.ERROR):
            assert await trigger_session_turn(lab.registry, lab.llm, SID, lab.release, broken)
            await lab.idle()
        failed = lab.of("turn.failed")
        assert [one["code"] for one in failed] == ["internal"] * 2
        assert failed[0]["attempt_id"] in failed[0]["message"]
        assert "ZeroDivisionError" not in str(failed)
        assert "a looker of ours" in caplog.text
        assert all("may have run" in one["error"] for one in lab.of("cell.finished"))
        assert lab.processes() == []
        assert (await lab.entry()).state == Ready()
        lab.provider.answers = [call_reply(SPEAK.format("well again"))]
        await lab.turn()
        assert lab.said() == ["well again"]


@pytest.mark.parametrize("how", [full, locked])
async def test_a_step_that_cant_be_stored_is_interrupted_when_writing_works_again(
    tmp_path: Path, how: Fault
) -> None:
    wait_for = (
        "print('begun', flush=True)\nimport asyncio, pathlib\n"
        "while not pathlib.Path('go').exists():\n    await asyncio.sleep(0.01)\n"
    )
    answers = [call_reply(wait_for), call_reply(SPEAK.format("here again"))]
    async with open_lab(tmp_path, answers, busy_s=0.2) as lab:
        await lab.drive()
        await lab.admit()
        await lab.cell_begun()
        with how(lab.store.path):
            (tmp_path / "workspaces" / SID / "go").touch()
            await lab.idle()
            assert lab.store.trouble is not None
            assert lab.kinds()[-1] == "cell.requested"
        await lab.event("turn.completed")
        assert lab.kinds()[4:7] == ["cell.finished", "turn.interrupted", "turn.started"]
        assert lab.of("turn.interrupted")[0]["why"] == "aborted"
        assert "may have run" in lab.of("cell.finished")[0]["error"]
        assert lab.said() == ["here again"]
        assert lab.store.trouble is None


async def test_a_damaged_session_is_left_alone_and_hinders_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lab(tmp_path) as lab:
        await lab.admit(sid="damaged")
    with closing(sqlite3.connect(tmp_path / "klbr.sqlite", isolation_level=None)) as conn:
        conn.execute("UPDATE work_item SET cause = '{}'")
    async with open_lab(tmp_path, [call_reply(DONE)], is_sound=False) as lab:
        with caplog.at_level(logging.ERROR):
            await lab.drive()
            await lab.admit()
            await lab.event("turn.completed")
            await lab.idle()
            await trio.testing.wait_all_tasks_blocked(0.05)
        assert caplog.text.count("session damaged can't be run") == 1, "and not again and again"
        assert lab.registry.running == 1, "its place is held for a while"
        assert (await lab.entry("damaged")).state == Ready()


async def test_words_that_cant_be_stored_are_refused_to_the_cell(tmp_path: Path) -> None:
    code = (
        "from klbr import local, runtime\nimport asyncio, pathlib\nprint('begun', flush=True)\n"
        "while not pathlib.Path('go').exists():\n    await asyncio.sleep(0.01)\n"
        "try:\n    await local.send('lost')\nexcept Exception as exc:\n    print('refused', exc)\n"
        "pathlib.Path('refused').touch()\n"
        "while not pathlib.Path('on').exists():\n    await asyncio.sleep(0.01)\n"
        "await local.send('heard')\nawait runtime.done()"
    )
    async with open_lab(tmp_path, [call_reply(code)], busy_s=0.1) as lab:
        workspace = tmp_path / "workspaces" / SID
        await lab.admit()
        assert await lab.trigger()
        await lab.cell_begun()
        with locked(lab.store.path):
            (workspace / "go").touch()
            with trio.fail_after(30):
                while not (workspace / "refused").exists():
                    await trio.testing.wait_all_tasks_blocked(0.01)
        (workspace / "on").touch()
        await lab.idle()
        assert lab.said() == ["heard"]
        assert "refused nothing was sent" in lab.of("cell.finished")[0]["output"]


async def test_a_turn_that_cant_begin_is_begun_when_writing_works_again(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(SPEAK.format("here"))], busy_s=0.1) as lab:
        await lab.admit()
        with locked(lab.store.path):
            await lab.drive()
            await lab.driver_backs_off()
            assert lab.kinds() == ["input.admitted"]
        await lab.event("turn.completed")
        assert lab.said() == ["here"]


async def test_a_wake_that_meets_a_dead_provider_is_armed_again(tmp_path: Path) -> None:
    clock = FakeClock()
    first = clock.time_ms + 60_000
    with refused_url() as url:
        async with open_lab(tmp_path, [call_reply(DONE)], clock=clock, llm=client(url)) as lab:
            await lab.drive()
            await (await lab.entry()).transition_to_waiting(None, first, "tea")
            due, minutes = first, []
            for number in range(5):
                clock.move(due)
                await lab.event("session.waiting", number + 2)
                await lab.event("turn.failed", 2 * number + 2)
                again = lab.of("session.waiting")[-1]
                assert again["retry"] == {"of_ms": first, "n": number + 1}
                assert "the wake that failed" in again["reason"]
                minutes.append((again["wake_at_ms"] - clock.time_ms) // 60_000)
                due = again["wake_at_ms"]
            assert minutes == [1, 5, 15, 60, 60]
            assert lab.of("session.woken")[0] == {"wake_at_ms": first, "late_ms": 0}
            # A completed attempt ends the series; the deadline that is armed stays.
            await lab.idle()
            entry = await lab.entry()
            await lab.admit()
            await lab.event("turn.failed", 12)
            await lab.idle()
            assert entry.state.wake_at_ms == due  # type: ignore[union-attr]


async def test_a_wake_that_works_again_ends_its_series(tmp_path: Path) -> None:
    down = refuse(503, {"error": {"message": "down"}})
    clock = FakeClock()
    async with open_lab(tmp_path, [down], clock=clock) as lab:
        llm = client(lab.provider.url, attempts=1)
        await lab.drive(llm)
        entry = await lab.entry()
        await entry.transition_to_waiting(None, clock.time_ms, "tea")
        await lab.event("turn.failed", 2)
        retry = lab.of("session.waiting")[1]
        lab.provider.answers = [call_reply(WAIT.format(10, "more tea"))]
        clock.move(retry["wake_at_ms"])
        await lab.event("turn.completed")
        lab.provider.answers = [down]
        clock.move(clock.time_ms + 10_000)
        await lab.event("turn.failed", 4)
        await lab.idle()
        assert lab.of("session.waiting")[-1]["retry"] == {"of_ms": clock.time_ms, "n": 1}


async def test_crashes_give_up_an_item_and_the_agent_is_told(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        await lab.admit("this one crashes us")
    for number in range(3):
        await leave_open(tmp_path, "work-input-1", f"crash-{number}")
        if number == 2:
            break
        async with open_lab(tmp_path, [hang()]) as lab:
            await lab.drive(model=False)
            await lab.event("turn.interrupted", number + 1)
    async with open_lab(tmp_path, [call_reply(SPEAK.format("it broke"))]) as lab:
        await lab.drive()
        await lab.event("turn.completed")
        assert [one["failed"] for one in lab.of("turn.interrupted")] == [[], [], ["work-input-1"]]
        causes = [one["causes"] for one in lab.of("turn.started")]
        assert causes[1] == [
            {"type": "recovery", "attempt_id": "crash-0"},
            {"type": "input_ready", "seq": 1},
        ]
        assert causes[-1] == [{"type": "recovery", "attempt_id": "crash-2"}]
        told = lab.messages()[-1]["content"]
        assert told.count("this one crashes us") == 1
        assert "That has happened too often: what it was for is given up" in told
        assert "tell whoever waits for it" in told
        assert await lab.store.pending(SID, 9) == []
        with trio.fail_after(5):
            await lab.registry.recovered.wait()


async def test_a_policy_may_give_up_at_once_and_keep_silent(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        await lab.admit()
    await leave_open(tmp_path, "work-input-1", "crashed")
    policy = RecoveryObservationPolicy(max_crashes=1, observe=False)
    async with open_lab(tmp_path, policy=policy) as lab:
        await lab.drive()
        await lab.event("turn.interrupted")
        with trio.fail_after(5):
            await lab.registry.recovered.wait()
        assert lab.of("turn.interrupted")[0]["failed"] == ["work-input-1"]
        assert await lab.store.all_pending_work_items() == []
        assert lab.provider.requests == []


async def test_a_crash_runs_an_input_again_and_says_what_is_known(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        await lab.admit("do it")
    await leave_open(tmp_path, "work-input-1", "crashed")
    async with open_lab(tmp_path, [call_reply(DONE)]) as lab:
        await lab.drive()
        await lab.event("turn.completed")
        started = lab.of("turn.started")[1]
        assert started["causes"] == [
            {"type": "recovery", "attempt_id": "crashed"},
            {"type": "input_ready", "seq": 1},
        ]
        told = lab.messages()[-1]["content"]
        assert told.count("do it") == 1
        assert told.count("[note:") == 1
        assert "broken off: the service crashed. What it was for is still to be done" in told
