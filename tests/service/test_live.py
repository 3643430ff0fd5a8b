"""What is live: in its place before the records, counted when dropped, never replayed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trio
from fakes.provider import call_fragment, call_reply, chunk, drip, open_provider, sse, text_reply
from service_house import CEILING, model_at, open_service

from klbr_trio.wire.server import LiveChunk, LiveDiscard

if TYPE_CHECKING:
    from pathlib import Path

    from service_house import Caller, Message, Service


def publish(service: Service, delta: str, session_id: str = "s") -> None:
    service.registry.live.publish(
        LiveChunk(session_id=session_id, lane="scratchpad", delta=delta, attempt_id="a", step=1)
    )


async def test_a_chunk_is_shown_to_who_follows_its_session(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        async with service.caller() as first, service.caller() as second:
            publish(service, "too early")
            await first.replay("subscribe", "s")
            await second.replay("subscribe", "another")
            publish(service, "now")
            assert await first.hear() == {
                "type": "live_chunk",
                "session_id": "s",
                "lane": "scratchpad",
                "delta": "now",
                "attempt_id": "a",
                "step": 1,
            }
            assert await second.ask("ping") == {"type": "pong"}
            await first.ask("unsubscribe", session_id="s")
            publish(service, "too late")
            assert await first.ask("ping") == {"type": "pong"}


async def test_a_turn_streams_its_lanes_before_its_records(tmp_path: Path) -> None:
    said = "from klbr import local\nprint('working')\nawait local.send('the words')"
    answer = drip(
        sse(chunk({"reasoning_content": "hm"}), done=False),
        sse(chunk({"content": "thinking aloud"}), done=False),
        sse(chunk(call_fragment(said, provider_id="c1")), chunk(finish="tool_calls")),
    )
    async with open_provider([answer, text_reply("done")]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as caller, service.caller() as late:
                await caller.replay("subscribe", "s")
                await caller.input("s", "go")
                heard = await caller.hear_until(is_end)
                chunks = [m for m in heard if m["type"] == "live_chunk" and m["step"] == 1]
                lanes = {m["lane"]: m for m in chunks}
                assert set(lanes) == {"reasoning", "scratchpad", "output", "speech"}
                attempt = next(r["payload"]["attempt_id"] for r in records(heard, "turn.started"))
                assert {m["attempt_id"] for m in lanes.values()} == {attempt}
                assert [lanes[lane].get("call_id") for lane in ("reasoning", "scratchpad")] == [
                    None,
                    None,
                ]
                assert [lanes[lane]["call_id"] for lane in ("output", "speech")] == ["c1", "c1"]
                assert lanes["speech"]["delta"] == "the words"
                before(heard, lanes["reasoning"], "reply.received")
                before(heard, lanes["scratchpad"], "reply.received")
                before(heard, lanes["output"], "cell.finished")
                at = heard.index(lanes["speech"])
                assert heard[at + 1]["type"] == "event", "speech comes just before its record"
                assert heard[at + 1]["record"]["kind"] == "local.sent"
                assert heard[at + 1]["record"]["payload"]["text"] == "the words"
                replay = await late.replay("subscribe", "s", after_seq=1)
                assert "local.sent" in [record["kind"] for record in replay.records]
                catch_up = await late.replay("history", "s", before_seq=10**6, limit=1000)
                assert len(catch_up.records) == len(replay.records) + 1, "a replay has no chunks"


def is_end(message: Message) -> bool:
    return message["type"] == "event" and bool(message["record"]["kind"] == "turn.completed")


def records(heard: list[Message], kind: str) -> list[Message]:
    return [m["record"] for m in heard if m["type"] == "event" and m["record"]["kind"] == kind]


def before(heard: list[Message], live: Message, kind: str) -> None:
    """The live message came before the first record of that kind."""
    kinds = [m["record"]["kind"] if m["type"] == "event" else None for m in heard]
    assert heard.index(live) < kinds.index(kind)


async def test_an_answer_that_breaks_off_is_withdrawn(tmp_path: Path) -> None:
    broken = drip(sse(chunk({"content": "half a thou"}), done=False), after="reset")
    async with open_provider(
        [broken, call_reply("1", text="whole"), text_reply("done")]
    ) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as caller:
                await caller.replay("subscribe", "s")
                await caller.input("s", "go")
                heard = await caller.hear_until(is_end)
                [discard] = [m for m in heard if m["type"] == "live_discard"]
                started = records(heard, "turn.started")[0]["payload"]
                assert discard == {
                    "type": "live_discard",
                    "session_id": "s",
                    "attempt_id": started["attempt_id"],
                    "step": 1,
                }
                at = heard.index(discard)
                shown = [m["delta"] for m in heard[:at] if m["type"] == "live_chunk"]
                assert "".join(shown) == "half a thou"
                kept = [
                    m["delta"]
                    for m in heard[at:]
                    if m["type"] == "live_chunk" and m["lane"] == "scratchpad" and m["step"] == 1
                ]
                assert "".join(kept) == "whole"


async def test_chunks_come_before_their_event_while_inputs_are_in_flight(tmp_path: Path) -> None:
    """A flood of inputs holds events and chunks back; their order stays."""
    count = 150
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.store.ensure_session("s")
        await caller.replay("subscribe", "s")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood, caller, count)
            for number in range(count):
                publish(service, str(number))
                await service.store.append("s", "scratchpad", {"text": str(number)})
                service.registry.live.publish(
                    LiveDiscard(session_id="s", attempt_id="a", step=number)
                )
        shown, noted = 0, 0
        while noted < count:
            message = await caller.hear()
            if message["type"] == "live_chunk":
                assert message["delta"] == str(shown)
                shown += 1
            elif message["type"] == "live_discard":
                assert message["step"] < shown, "a notice overtook the chunks that it is about"
            elif message["type"] == "event" and message["record"]["kind"] == "scratchpad":
                assert message["record"]["payload"]["text"] == str(noted)
                noted += 1
                assert noted <= shown, "an event overtook its chunk"


async def flood(caller: Caller, count: int) -> None:
    for number in range(count):
        await caller.say("send_input", session_id="s", source="t", text=str(number))


async def test_subscribing_again_loses_no_chunk(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.notes("s", 20)
        await caller.replay("subscribe", "s", limit=0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream, service, 200)
            for _ in range(20):
                await caller.say("subscribe", session_id="s", limit=10)
        # Some may still be on their way when the stream has ended.
        publish(service, "end")
        heard = await caller.hear_until(lambda m: m.get("delta") == "end")
        shown = [m["delta"] for m in heard if m["type"] == "live_chunk"]
        assert shown == [*map(str, range(200)), "end"]
        assert not any(m["type"] == "live_gap" for m in heard)
        within = False
        for message in heard:
            within = within or message["type"] == "sync_started"
            assert not (within and message["type"] == "live_chunk"), "a range is sent alone"
            within = within and message["type"] != "sync_completed"


async def stream(service: Service, count: int) -> None:
    for number in range(count):
        publish(service, str(number))
        await trio.lowlevel.checkpoint()


async def test_what_is_dropped_for_a_client_that_does_not_read_is_counted(tmp_path: Path) -> None:
    """Every chunk is shown or counted, in its place; events all come."""
    count = 3000
    async with open_service(tmp_path) as service:
        await service.store.ensure_session("s")
        async with service.raw(receive_buffer=4096) as client, service.caller() as good:
            await client.say('{"type":"subscribe","session_id":"s"}')
            assert [json.loads(await client.text())["type"] for _ in range(2)] == [
                "sync_started",
                "sync_completed",
            ]
            await good.replay("subscribe", "s")
            for number in range(count):
                publish(service, f"{number} " + "x" * 1000)
                if number % 100 == 99:
                    await service.store.append("s", "scratchpad", {"text": str(number)})
                    await hear_all(good, 100)
            shown, noted, gaps = 0, 0, 0
            while noted < count // 100:
                message = json.loads(await client.text())
                if message["type"] == "live_chunk":
                    assert int(message["delta"].split()[0]) == shown
                    shown += 1
                elif message["type"] == "live_gap":
                    assert message["session_id"] == "s"
                    assert message["dropped"] > 0
                    shown += message["dropped"]
                    gaps += 1
                else:
                    noted += 1
                    assert message["record"]["seq"] == noted
                    assert shown >= noted * 100, "the gap is told before the event"
            while shown < count:
                message = json.loads(await client.text())
                shown += message["dropped"] if message["type"] == "live_gap" else 1
                gaps += message["type"] == "live_gap"
            assert (shown, gaps > 0) == (count, True)


async def hear_all(caller: Caller, count: int) -> None:
    """Who reads misses nothing."""
    heard = [await caller.hear() for _ in range(count + 1)]
    assert [message["type"] for message in heard] == [*["live_chunk"] * count, "event"]


async def test_chunks_that_come_during_a_replay_wait_for_its_end(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        await service.notes("s", 600, text="x" * 8000)
        async with service.raw(receive_buffer=4096) as client:
            await client.say('{"type":"subscribe","session_id":"s","after_seq":1}')
            assert json.loads(await client.text())["type"] == "sync_started"
            for number in range(300):
                publish(service, str(number))
            kinds: list[str] = []
            shown = 0
            while shown < 300:
                with trio.fail_after(CEILING):
                    message = json.loads(await client.text())
                kinds.append(message["type"])
                if message["type"] == "live_chunk":
                    assert int(message["delta"]) == shown
                shown += {"live_chunk": 1, "live_gap": message.get("dropped", 0)}.get(
                    message["type"], 0
                )
            assert kinds == [
                *["event"] * 599,
                "sync_completed",
                *["live_chunk"] * 256,
                "live_gap",
            ], "256 wait, the others are counted"
