"""Order on a connection: nobody waits for another session, answers keep their requests' order."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import trio
from service_house import nobody_writes, open_service

if TYPE_CHECKING:
    from pathlib import Path

    from service_house import Caller


async def test_a_long_replay_holds_up_no_other_session(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        await service.notes("long", 1200, text="x" * 6000)
        async with service.raw(receive_buffer=4096) as client:
            await client.say('{"type":"subscribe","session_id":"long","after_seq":1}')
            assert json.loads(await client.text())["type"] == "sync_started"
            await client.say('{"type":"send_input","session_id":"b","source":"t","text":"hi"}')
            await client.say('{"type":"subscribe","session_id":"c"}')
            heard: list[str] = []
            while heard.count("sync_completed") < 2:
                message = json.loads(await client.text())
                heard.append(message["type"])
                if message["type"] == "ack":
                    assert message["session_id"] == "b"
                    assert service.store.head("b") == 1
            last = len(heard) - 1 - heard[::-1].index("sync_completed")
            assert last == len(heard) - 1
            assert heard.index("ack") < last - 500, "long before the replay's end"
            assert heard.index("sync_started") < last - 500


async def test_a_store_that_is_busy_holds_up_only_what_writes(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.notes("b", 3)
        with nobody_writes(tmp_path):
            await caller.say("send_input", session_id="a", source="t", text="hello")
            assert (await caller.ask("session_status", session_id="b"))["head_seq"] == 3
            assert (await caller.replay("subscribe", "b")).seqs == (1, 3)
            assert (await caller.ask("list_sessions"))["sessions"][0]["session_id"] == "b"
            assert await caller.ask("ping") == {"type": "pong"}
        assert (await caller.hear_type("ack"))["session_id"] == "a"


async def test_replies_come_in_the_order_of_their_requests(tmp_path: Path) -> None:
    """Whatever is asked about a session, in any order, in bursts."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("send_input", {"source": "t", "text": "x"}),
        ("subscribe", {}),
        ("unsubscribe", {}),
        ("history", {"before_seq": 10**6, "limit": 5}),
        ("session_status", {}),
        ("reset_kernel", {}),
        ("stop", {}),
    ]
    ends = {"ack", "error", "operator_ack", "session_status", "sync_completed"}
    rng = random.Random(7)
    async with open_service(tmp_path) as service, service.caller() as caller:
        for name in ("a", "b"):
            await service.store.ensure_session(name)
        for _ in range(40):
            asked: dict[str, list[str]] = {"a": [], "b": []}
            for number in range(BURST):
                kind, fields = rng.choice(kinds)
                name = rng.choice(("a", "b"))
                asked[name].append(str(number))
                await caller.say(kind, session_id=name, request_id=str(number), **fields)
            answered: dict[str, list[str]] = {"a": [], "b": []}
            while sum(map(len, answered.values())) < BURST:
                message = await caller.hear()
                if message["type"] in ends and message.get("code") != "no_model_configured":
                    answered[message["session_id"]].append(message["request_id"])
            assert answered == asked


BURST = 6


@pytest.mark.parametrize("count", [300, 1000])
async def test_more_requests_than_may_wait_are_all_answered(tmp_path: Path, count: int) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.store.ensure_session("s")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_statuses, caller, count)
            for number in range(count):
                status = await caller.hear()
                assert (status["type"], status["request_id"]) == ("session_status", str(number))


async def ask_statuses(caller: Caller, count: int) -> None:
    for number in range(count):
        await caller.say("session_status", session_id="s", request_id=str(number))
