"""Following: every event once and in order, whoever writes, whenever a client comes or goes."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from service_house import CEILING, Message, open_service

from klbr_trio import SourceRef, admit_input

if TYPE_CHECKING:
    from pathlib import Path

    from service_house import Caller, Service

EVENTS = 300
WRITERS = 4
SESSIONS = ("s", "t")


@attrs.define(eq=False)
class Reader:
    """A client that keeps a cursor, as a client should, and what it was sent."""

    session_id: str
    cursor: int = 0
    records: list[Message] = attrs.field(factory=list)

    def take(self, record: Message) -> None:
        assert record["session_id"] == self.session_id
        assert record["seq"] == self.cursor + 1, "an event is missing, doubled or out of order"
        self.cursor = record["seq"]
        self.records.append(record)

    async def follow(self, service: Service, rng: random.Random) -> None:
        """Follow to the end, through many connections, each for a random while."""
        while self.cursor < EVENTS:
            async with service.caller() as caller:
                await self._stay(caller, rng.randrange(1, EVENTS // 3), rng)

    async def _stay(self, caller: Caller, patience: int, rng: random.Random) -> None:
        for _ in range(rng.randrange(1, 3)):
            await caller.say("subscribe", session_id=self.session_id, after_seq=self.cursor)
            started = (await self._take_until(caller, "sync_started"))[-1]
            # What came before it was live, and may be further than the cursor that was told.
            assert started["from_seq"] <= self.cursor + 1
            await self._take_range(caller, started)
        while patience and self.cursor < EVENTS:
            message = await caller.hear()
            self.take(message["record"])
            patience -= 1

    async def _take_until(self, caller: Caller, kind: str) -> list[Message]:
        heard: list[Message] = []
        while not heard or heard[-1]["type"] != kind:
            heard.append(await caller.hear())
            if heard[-1]["type"] == "event":
                self.take(heard[-1]["record"])
        return heard

    async def _take_range(self, caller: Caller, started: Message) -> None:
        for seq in range(started["from_seq"], started["to_seq"] + 1):
            record = (await caller.hear())["record"]
            assert record["seq"] == seq
            if seq > self.cursor:
                self.take(record)
        completed = await caller.hear()
        assert (completed["type"], completed["to_seq"]) == ("sync_completed", started["to_seq"])


async def write(service: Service, session_id: str, number: int) -> None:
    """One of several writers: inputs and notes in turn."""
    for count in range(EVENTS // WRITERS):
        text = f"{number}.{count}"
        if count % 2:
            await service.store.append(session_id, "scratchpad", {"text": text})
        else:
            ref = SourceRef.from_v2_input(session_id, f"w{number}", text, str(count))
            await admit_input(service.registry, session_id, ref)


@pytest.mark.parametrize("seed", range(3))
async def test_in_a_storm_everyone_gets_each_event_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with open_service(tmp_path) as service:
        readers = [Reader(session_id) for session_id in SESSIONS for _ in range(3)]
        for session_id in SESSIONS:
            await service.store.ensure_session(session_id)
        with trio.fail_after(CEILING):
            async with trio.open_nursery() as nursery:
                for reader in readers:
                    nursery.start_soon(reader.follow, service, random.Random(rng.random()))
                for session_id in SESSIONS:
                    for number in range(WRITERS):
                        nursery.start_soon(write, service, session_id, number)
        for session_id in SESSIONS:
            log = await service.store.history(session_id, 0, EVENTS)
            for reader in readers:
                if reader.session_id == session_id:
                    assert reader.records == [attrs.asdict(event) for event in log]


async def test_events_of_all_writers_come_live_in_order(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        async with service.caller() as first, service.caller() as second:
            for caller in (first, second):
                await caller.replay("subscribe", "s")
            await first.say("send_input", session_id="s", source="a", text="one")
            await service.notes("s", 1)
            await second.say("send_input", session_id="s", source="b", text="two")
            for caller in (first, second):
                heard: list[int] = []
                while len(heard) < 3:
                    message = await caller.hear()
                    if message["type"] == "event":
                        heard.append(message["record"]["seq"])
                assert heard == [1, 2, 3]


async def test_own_inputs_are_acked_before_their_events(tmp_path: Path) -> None:
    """Two clients flood one session that both follow; others' events do not wait for long."""
    async with open_service(tmp_path) as service:
        async with service.caller() as first, service.caller() as second:
            async with trio.open_nursery() as nursery:
                for name, caller in (("first", first), ("second", second)):
                    await caller.replay("subscribe", "s")
                    nursery.start_soon(flood, caller, name)
            assert service.store.head("s") == 2 * FLOOD


FLOOD = 150


async def flood(caller: Caller, name: str) -> None:
    for number in range(FLOOD):
        await caller.say("send_input", session_id="s", source=name, text=f"{number}")
    acked: set[int] = set()
    seqs: list[int] = []
    starved = 0
    while len(seqs) < 2 * FLOOD:
        message = await caller.hear()
        if message["type"] == "ack":
            acked.add(message["seq"])
            starved += 1
        elif message["type"] == "event":
            starved = 0
            record = message["record"]
            seqs.append(record["seq"])
            assert record["payload"]["source"] != name or record["seq"] in acked
        assert starved < FLOOD, "pipelining keeps nobody from the events"
    assert seqs == list(range(seqs[0], seqs[0] + 2 * FLOOD))


async def test_live_events_wait_for_the_end_of_a_page_of_history(tmp_path: Path) -> None:
    """The client reads nothing until the session has moved on."""
    async with open_service(tmp_path) as service:
        await service.notes("s", 900, text="x" * 6000)
        async with service.raw(receive_buffer=4096) as client:
            await client.say('{"type":"subscribe","session_id":"s","limit":0}')
            assert [json.loads(await client.text())["type"] for _ in range(2)] == [
                "sync_started",
                "sync_completed",
            ]
            await service.notes("s", 1)
            assert json.loads(await client.text())["record"]["seq"] == 901
            await client.say('{"type":"history","session_id":"s","before_seq":901,"limit":900}')
            assert json.loads(await client.text())["type"] == "sync_started"
            await service.notes("s", 3)
            seqs: list[Any] = []
            while len(seqs) < 904:
                message = json.loads(await client.text())
                seqs.append(
                    message["record"]["seq"] if message["type"] == "event" else message["type"]
                )
            assert seqs == [*range(1, 901), "sync_completed", 902, 903, 904]


async def test_several_sessions_on_one_connection(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        for session_id in ("a", "b", "c"):
            await caller.replay("subscribe", session_id)
        for session_id in ("c", "a", "b"):
            await service.notes(session_id, 1)
            message = await caller.hear()
            assert message["record"]["session_id"] == session_id
        await caller.ask("unsubscribe", session_id="b")
        for session_id in ("b", "c"):
            await service.notes(session_id, 1)
        assert (await caller.hear())["record"]["session_id"] == "c"


async def test_a_client_follows_a_hundred_sessions_and_no_more(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        for number in range(100):
            await caller.replay("subscribe", f"s{number}")
        refused = await caller.ask("subscribe", session_id="more", request_id="r")
        assert (refused["type"], refused["code"], refused["session_id"]) == (
            "error",
            "busy",
            "more",
        )
        assert "100" in refused["message"]
        assert (await caller.replay("subscribe", "s7")).seqs == (1, 0), "a replacement is none more"
        await caller.ask("unsubscribe", session_id="s7")
        await caller.replay("subscribe", "more")
        await service.notes("more", 1)
        assert (await caller.hear())["record"]["session_id"] == "more"
        async with service.caller() as other:
            await other.replay("subscribe", "s7")


async def test_the_cache_of_new_records_serves_many_sessions(tmp_path: Path) -> None:
    """More followed sessions than the cache has room for: nobody misses anything."""
    async with open_service(tmp_path) as service:
        async with service.caller() as first, service.caller() as second:
            for number in range(200):
                await (first if number < 100 else second).replay("subscribe", f"s{number}")
            for seq in (1, 2):
                for number in range(200):
                    await service.notes(f"s{number}", 1)
                for caller in (first, second):
                    heard = [(await caller.hear())["record"] for _ in range(100)]
                    assert {record["seq"] for record in heard} == {seq}
                    assert len({record["session_id"] for record in heard}) == 100


async def test_events_larger_than_the_cache_all_come(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        async with service.caller() as first, service.caller() as second:
            for caller in (first, second):
                await caller.replay("subscribe", "s")
            await service.notes("s", 40, text="x" * 60_000)
            for caller in (first, second):
                heard = [(await caller.hear())["record"]["seq"] for _ in range(40)]
                assert heard == list(range(1, 41))
