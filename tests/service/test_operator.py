"""The operator's controls over the socket: status, Stop and Reset, and what waits for what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import trio
from fakes.provider import call_reply, hang, open_provider, text_reply
from service_house import CEILING, model_at, nobody_writes, open_service

from klbr_trio import Stopped

if TYPE_CHECKING:
    from pathlib import Path

    from service_house import Caller, Message, Service


async def kinds(service: Service, session_id: str = "s") -> list[str]:
    return [event.kind for event in await service.store.history(session_id, 0, 1000)]


def done(action: str, session_id: str = "s") -> Message:
    return {"type": "operator_ack", "session_id": session_id, "action": action, "success": True}


async def test_controls_and_status_of_an_idle_session(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.registry.get_or_open("s", None)
        ready = await caller.ask("session_status", session_id="s")
        assert (ready["type"], ready["state"]) == ("session_status", "ready")
        assert (ready["head_seq"], ready["pending"], ready["hook_epoch"]) == (0, 0, 1)
        assert await caller.ask("reset_kernel", session_id="s") == done("reset_kernel")
        assert (await caller.ask("session_status", session_id="s"))["hook_epoch"] == 2
        assert await caller.ask("stop", session_id="s") == done("stop")
        stopped = await caller.ask("session_status", session_id="s")
        assert (stopped["state"], stopped["head_seq"]) == ("stopped", 2)
        assert await caller.ask("stop", session_id="s") == done("stop"), "again, without an event"
        assert await caller.ask("reset_kernel", session_id="s") == done("reset_kernel")
        reopened = await caller.ask("session_status", session_id="s")
        assert (reopened["state"], reopened["hook_epoch"]) == ("ready", 3)
        assert await kinds(service) == ["kernel.reset", "session.stopped", "session.reopened"]


async def test_status_of_a_waiting_session_says_until_when_and_why(tmp_path: Path) -> None:
    wake = 10**13
    async with open_service(tmp_path) as service, service.caller() as caller:
        entry = await service.registry.get_or_open("s", None)
        await entry.transition_to_waiting(None, wake, "a long sleep")
        status = await caller.ask("session_status", session_id="s")
        assert (status["state"], status["wake_at_ms"]) == ("waiting", wake)
        assert status["reason"] == "a long sleep"
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.registry.get_or_open("s", None)
        assert (await caller.ask("session_status", session_id="s"))["reason"] == "a long sleep"
        await caller.ask("reset_kernel", session_id="s")
        kept = await caller.ask("session_status", session_id="s")
        assert (kept["state"], kept["wake_at_ms"]) == ("waiting", wake), "a reset keeps both"
        assert await caller.ask("stop", session_id="s") == done("stop")
        stopped = await caller.ask("session_status", session_id="s")
        assert stopped["state"] == "stopped"
        assert not {"wake_at_ms", "reason"} & set(stopped)


async def test_stop_ends_a_turn_and_its_request(tmp_path: Path) -> None:
    async with open_provider([hang()]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as caller, service.caller() as other:
                await other.replay("subscribe", "s")
                assert (await caller.input("s", "work"))["type"] == "ack"
                await provider.wait_requests(1)
                status = await caller.ask("session_status", session_id="s")
                assert (status["state"], status["pending"]) == ("executing", 1)
                assert status["attempt_id"]
                assert status["release"]
                assert await caller.ask("stop", session_id="s") == done("stop")
                with trio.fail_after(CEILING):
                    await provider.wait_disconnected()
                interrupted = (await other.hear_event("turn.interrupted"))["payload"]
                assert interrupted["why"] == "stopped"
                assert interrupted["attempt_id"] == status["attempt_id"]
                await other.hear_event("session.stopped")
                after = await caller.ask("session_status", session_id="s")
                assert (after["state"], "attempt_id" in after) == ("stopped", False)
                refused = await caller.input("s", "more")
                assert refused["code"] == "admission_rejected"


async def test_inputs_that_nobody_claimed_run_after_the_reset(tmp_path: Path) -> None:
    async with open_provider([hang(), text_reply("here I am")]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as caller:
                await caller.replay("subscribe", "s")
                await caller.input("s", "first")
                await provider.wait_requests(1)
                await caller.say("send_input", session_id="s", source="t", text="second")
                second = await caller.hear_type("ack")
                await caller.say("stop", session_id="s")
                await caller.hear_type("operator_ack")
                assert await service.store.pending("s", 10) == [second["seq"]]
                await caller.say("reset_kernel", session_id="s")
                reopened = await caller.hear_event("session.reopened")
                assert reopened["payload"] == {"hook_epoch": 2}
                started = await caller.hear_event("turn.started")
                assert started["payload"]["causes"] == [
                    {"type": "input_ready", "seq": second["seq"]}
                ]
                await caller.hear_event("turn.completed")


async def test_reset_gives_a_running_turn_a_fresh_kernel(tmp_path: Path) -> None:
    stuck = call_reply("x = 1\nprint('up', flush=True)\nimport time\ntime.sleep(1000)")
    async with open_provider([stuck, call_reply("print('x' in globals())"), text_reply("ok")]) as p:
        async with open_service(tmp_path, llm=model_at(p.url)) as service:
            async with service.caller() as caller:
                await caller.replay("subscribe", "s")
                await caller.input("s", "go")
                await caller.hear_until(
                    lambda m: m["type"] == "live_chunk" and m["lane"] == "output"
                )
                await caller.say("reset_kernel", session_id="s")
                heard = await caller.hear_until(lambda m: m["type"] == "operator_ack")
                assert heard[-1] == done("reset_kernel")
                broken = (
                    await caller.hear_event("cell.finished")
                    if not (
                        ends := [
                            m["record"]
                            for m in heard
                            if m["type"] == "event" and m["record"]["kind"] == "cell.finished"
                        ]
                    )
                    else ends[0]
                )
                assert broken["payload"]["ok"] is False
                assert "the kernel was reset by the operator" in broken["payload"]["error"]
                fresh = await caller.hear_event("cell.finished")
                assert (fresh["payload"]["ok"], fresh["payload"]["output"]) == (True, "False\n")
                await caller.hear_event("turn.completed")
                [reset] = [
                    e for e in await service.store.history("s", 0, 100) if e.kind == "kernel.reset"
                ]
                assert reset.payload == {"why": "operator", "hook_epoch": 2}


async def send_all(caller: Caller, *messages: tuple[str, dict[str, object]]) -> None:
    """In one go, as far as a client can: nothing is heard in between."""
    for number, (kind, fields) in enumerate(messages):
        await caller.say(kind, session_id="s", request_id=str(number), **fields)


INPUT: tuple[str, dict[str, object]] = ("send_input", {"source": "tests", "text": "hello"})
STOP: tuple[str, dict[str, object]] = ("stop", {})
RESET: tuple[str, dict[str, object]] = ("reset_kernel", {})
STATUS: tuple[str, dict[str, object]] = ("session_status", {})


async def test_requests_behind_a_stop_find_the_session_stopped(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        for _ in range(20):
            await service.registry.get_or_open("s", None)
            await send_all(caller, STOP, STATUS, INPUT, RESET, STATUS)
            stop, stopped, refused, reset, ready = [await caller.hear() for _ in range(5)]
            assert [stop["request_id"], reset["request_id"]] == ["0", "3"]
            assert (stop["success"], stopped["state"]) == (True, "stopped")
            assert refused["code"] == "admission_rejected"
            assert (reset["success"], ready["state"]) == (True, "ready")


async def test_requests_before_a_stop_are_served_before_it(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        for turn in range(20):
            await service.registry.get_or_open("s", None)
            await send_all(caller, RESET, INPUT, STATUS, STOP)
            reset, ack, refused, status, stop = [await caller.hear() for _ in range(5)]
            assert (reset["action"], reset["success"]) == ("reset_kernel", True)
            assert (ack["type"], refused["code"]) == ("ack", "no_model_configured")
            assert (status["state"], status["pending"]) == ("ready", turn + 1)
            assert (stop["action"], stop["success"]) == ("stop", True)
            entry = service.registry.get("s")
            assert entry is not None
            assert isinstance(entry.state, Stopped), "the last word counts"


async def test_stop_and_ping_act_in_the_middle_of_a_replay(tmp_path: Path) -> None:
    """A client that reads nothing of a long replay stops the session all the same."""
    async with open_service(tmp_path) as service:
        await service.notes("s", 1500, text="x" * 6000)
        entry = await service.registry.get_or_open("s", None)
        async with service.raw(receive_buffer=4096) as client:
            await client.say('{"type":"subscribe","session_id":"s","after_seq":1}')
            assert json.loads(await client.text())["type"] == "sync_started"
            await client.say('{"type":"reset_kernel","session_id":"s","request_id":"r"}')
            await client.say('{"type":"ping","timestamp":7}')
            await client.say('{"type":"stop","session_id":"s"}')
            with trio.fail_after(CEILING):
                while not isinstance(entry.state, Stopped):
                    await service.store.ticket("s").wait()
            heard: list[Message] = []
            while not heard or heard[-1]["type"] != "sync_completed":
                heard.append(json.loads(await client.text()))
            answers = [message for message in heard[:-1] if message["type"] != "event"]
            assert {answer["type"] for answer in answers} == {"pong", "operator_ack"}
            assert {a["action"]: a["success"] for a in answers if "action" in a} == {
                "reset_kernel": False,
                "stop": True,
            }, "a reset that was overtaken does not undo the stop"
            seqs = [m["record"]["seq"] for m in heard if m["type"] == "event"]
            assert seqs == list(range(2, 1501)), "the range is sent to its end, and alone"
            live = json.loads(await client.text())
            assert live["record"]["kind"] == "session.stopped"
            assert isinstance(entry.state, Stopped)


async def test_a_stop_goes_on_when_its_client_leaves(tmp_path: Path) -> None:
    async with open_provider([hang()]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.raw() as client:
                await client.say(
                    '{"type":"send_input","session_id":"s","source":"t","text":"work"}'
                )
                await client.text()
                await provider.wait_requests(1)
                await client.say('{"type":"stop","session_id":"s"}')
            with trio.fail_after(CEILING):
                await provider.wait_disconnected()
            entry = service.registry.get("s")
            assert entry is not None
            with trio.fail_after(CEILING):
                while not isinstance(entry.state, Stopped):
                    await service.store.ticket("s").wait()


async def test_a_stop_that_can_not_be_stored_kills_all_the_same(tmp_path: Path) -> None:
    async with open_provider([hang()]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url), busy_s=0.1) as service:
            async with service.caller() as caller:
                await caller.input("s", "work")
                await provider.wait_requests(1)
                with nobody_writes(tmp_path):
                    answer = await caller.ask("stop", session_id="s", request_id="r")
                    assert (answer["type"], answer["success"]) == ("operator_ack", False)
                    assert answer["request_id"] == "r"
                    assert "could not be stored" in answer["message"]
                    with trio.fail_after(CEILING):
                        await provider.wait_disconnected()
                    status = await caller.ask("session_status", session_id="s")
                    assert status["state"] == "draining"
                refused = await caller.input("s", "more")
                assert refused["code"] == "admission_rejected"
                assert "cannot admit input" in refused["message"]
                assert (await caller.ask("stop", session_id="s"))["success"] is True


@pytest.mark.parametrize("action", ["stop", "reset_kernel"])
async def test_another_session_goes_on(tmp_path: Path, action: str) -> None:
    async with open_provider([hang(), text_reply("fine")]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as caller:
                await caller.input("stuck")
                await provider.wait_requests(1)
                await caller.replay("subscribe", "s")
                await caller.say(action, session_id="stuck")
                await caller.say("send_input", session_id="s", source="t", text="hi")
                await caller.hear_event("turn.completed")
