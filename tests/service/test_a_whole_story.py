"""A session from its first input to a reconnect, with a model that answers and one that fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trio
import websockets.sync.client
from fakes.provider import (
    Scripted,
    call_reply,
    hang,
    open_provider,
    refuse,
    refused_url,
    text_reply,
)
from service_house import CEILING, model_at, open_service, until

from klbr_trio import Failed, Waiting, parse_session_id, trigger_session_turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fakes.provider import Request
    from service_house import Message, Service

SAYS_AND_WAITS = (
    "from klbr import local, runtime\n"
    "await local.send('hello from the agent')\n"
    "await runtime.wait(seconds=3600, reason='a long nap')"
)


def lanes(heard: list[Message]) -> dict[str, str]:
    shown: dict[str, str] = {}
    for message in heard:
        if message["type"] == "live_chunk":
            shown[message["lane"]] = shown.get(message["lane"], "") + message["delta"]
    return shown


async def test_from_an_input_to_speech_a_nap_a_reconnect_and_a_failure(tmp_path: Path) -> None:
    broken = False

    def answer(_: Request) -> Scripted:
        if broken:
            return refuse(500, {"error": "the model fell over"})
        return call_reply(SAYS_AND_WAITS, text="I am thinking in my scratchpad.")

    async with open_provider([answer]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as caller:
                assert (await caller.replay("subscribe", "story")).seqs == (1, 0)
                ack = await caller.input("story", "begin", client_request_id="first")
                assert (ack["client_request_id"], ack["duplicate"]) == ("first", False)
                heard = await caller.hear_until(
                    lambda m: m["type"] == "event" and m["record"]["kind"] == "turn.completed"
                )
                assert lanes(heard) == {
                    "scratchpad": "I am thinking in my scratchpad.",
                    "speech": "hello from the agent",
                }
                assert await service.store.pending("story", 10) == []
                entry = service.registry.get("story")
                assert entry is not None
                assert isinstance(entry.state, Waiting)
                assert entry.state.reason == "a long nap"
                status = await caller.ask("session_status", session_id="story")
                assert (status["state"], status["pending"]) == ("waiting", 0)
                wake = status["wake_at_ms"]

            async with service.caller() as caller:
                replay = await caller.replay("subscribe", "story")
                kinds = [record["kind"] for record in replay.records]
                assert kinds == [
                    "input.admitted",
                    "turn.started",
                    "reply.received",
                    "scratchpad",
                    "cell.requested",
                    "local.sent",
                    "cell.finished",
                    "session.waiting",
                    "turn.completed",
                ]
                missed = await caller.replay("subscribe", "story", after_seq=6)
                assert missed.records == replay.records[6:]

                broken = True
                await caller.say("send_input", session_id="story", source="t", text="and now?")
                assert (await caller.hear())["type"] == "ack"
                heard = []
                while [m["record"]["kind"] for m in heard if m["type"] == "event"].count(
                    "turn.failed"
                ) < 2:
                    heard.append(await caller.hear())
                assert "speech" not in lanes(heard), "a failure says nothing"
                said = [e for e in await log(service) if e == "local.sent"]
                assert len(said) == 1
                status = await caller.ask("session_status", session_id="story")
                assert (status["state"], status["wake_at_ms"]) == ("waiting", wake), (
                    "it still sleeps"
                )


async def log(service: Service, session_id: str = "story") -> list[str]:
    return [event.kind for event in await service.store.history(session_id, 0, 1000)]


async def test_a_model_that_is_away_makes_one_repair_and_no_more(tmp_path: Path) -> None:
    with refused_url() as url:
        async with open_service(tmp_path, llm=model_at(url)) as service:
            async with service.caller() as caller:
                await caller.replay("subscribe", "s")
                began = trio.current_time()
                assert (await caller.input("s", "once", client_request_id="k"))["type"] == "ack"
                for _ in range(2):
                    failed = (await caller.hear_event("turn.failed"))["payload"]
                    assert (failed["type"], failed["code"]) == (
                        "turn_failed",
                        "provider_unavailable",
                    )
                assert trio.current_time() - began < 10, "two seconds on an idle machine"
                await until(
                    lambda: not service.store.is_runnable("s"), store=service.store, session_id="s"
                )
                assert await service.store.all_pending_work_items() == []
                item = await service.store.get_work_item("work-input-1")
                assert item is not None
                assert isinstance(item.status, Failed), "not overwritten by what came after"
                again = await caller.input("s", "once", client_request_id="k")
                assert (again["seq"], again["duplicate"]) == (1, True)
                assert await caller.ask("ping") == {"type": "pong"}, (
                    "and nothing runs because of it"
                )
                assert (await log(service, "s")).count("turn.failed") == 2


async def test_two_clients_share_a_session_and_a_third_has_another(tmp_path: Path) -> None:
    async with open_provider([text_reply("noted")]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as a, service.caller() as b, service.caller() as c:
                for caller, session_id in ((a, "shared"), (b, "shared"), (c, "own")):
                    await caller.replay("subscribe", session_id)
                await a.say("send_input", session_id="shared", source="a", text="from a")
                await b.say("send_input", session_id="shared", source="b", text="from b")
                await c.say("send_input", session_id="own", source="c", text="from c")
                shared = [await a.hear_until(is_ack), await b.hear_until(is_ack)]
                await until(
                    lambda: not pending(service, "shared"),
                    store=service.store,
                    session_id="shared",
                )
                head = service.store.head("shared")
                for heard, caller in zip(shared, (a, b), strict=True):
                    heard.extend(await caller.hear_until(has_seq(head)))
                first, second = (
                    [m["record"] for m in heard if m["type"] == "event"] for heard in shared
                )
                assert first == second
                assert [record["seq"] for record in first] == list(range(1, head + 1))
                texts = {
                    record["payload"]["text"]
                    for record in first
                    if record["kind"] == "input.admitted"
                }
                assert texts == {"from a", "from b"}
                own = await c.hear_event("turn.completed")
                assert own["session_id"] == "own"


def is_ack(message: Message) -> bool:
    return bool(message["type"] == "ack")


def has_seq(seq: int) -> Callable[[Message], bool]:
    return lambda message: message["type"] == "event" and message["record"]["seq"] == seq


def pending(service: Service, session_id: str) -> int:
    status = service.store.status(session_id)
    return 0 if status is None else status.pending


async def test_turns_can_be_triggered_without_waiting_for_the_driver(tmp_path: Path) -> None:
    """A service without a model; somebody else brings one, and the client sees the turn."""
    async with open_provider([text_reply("answered")]) as provider:
        async with open_service(tmp_path) as service, service.caller() as caller:
            await caller.replay("subscribe", "s")
            await caller.input("s", "anybody?")
            release = service.release
            started = await trigger_session_turn(
                service.registry, model_at(provider.url), parse_session_id("s"), release
            )
            assert started is True
            heard = await caller.hear_until(
                lambda m: m["type"] == "event" and m["record"]["kind"] == "turn.completed"
            )
            assert "answered" in lanes(heard)["scratchpad"]
            assert await service.store.pending("s", 10) == []


async def test_another_library_speaks_to_it_as_well(tmp_path: Path) -> None:
    """The `websockets` client, from a thread, with the token as a header and as a subprotocol."""
    token = "0123456789abcdef0123456789abcdef"

    def talk(url: str) -> list[Message]:
        found = []
        header = {"Authorization": f"Bearer {token}"}
        with websockets.sync.client.connect(url, additional_headers=header) as client:
            client.send('{"type":"send_input","session_id":"s","source":"t","text":"hi"}')
            found += [json.loads(client.recv(CEILING)) for _ in range(2)]
        protocols = [websockets.Subprotocol(name) for name in ("klbr.v2", f"klbr.token.{token}")]
        with websockets.sync.client.connect(url, subprotocols=protocols) as client:
            assert client.subprotocol == "klbr.v2"
            client.send('{"type":"subscribe","session_id":"s"}')
            found += [json.loads(client.recv(CEILING)) for _ in range(3)]
        return found

    async with open_service(tmp_path, auth=[token, "another-token"]) as service:
        found = await trio.to_thread.run_sync(talk, service.url)
        assert [message["type"] for message in found] == [
            "ack",
            "error",
            "sync_started",
            "event",
            "sync_completed",
        ]


async def test_what_a_restart_finds_it_shows_and_goes_on_with(tmp_path: Path) -> None:
    """A service that ends in the middle of a turn; the next one answers, the client catches up."""
    async with open_provider([hang()]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as caller:
                await caller.input("s", "work", client_request_id="k")
                await provider.wait_requests(1)
    async with open_provider([text_reply("done at last")]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as caller:
                replay = await caller.replay("subscribe", "s", after_seq=1)
                kinds = [record["kind"] for record in replay.records]
                assert kinds[:2] == ["turn.started", "turn.interrupted"]
                assert replay.records[1]["payload"]["why"] == "shutdown"
                if "turn.completed" not in kinds:
                    await caller.hear_event("turn.completed")
                again = await caller.input("s", "work", client_request_id="k")
                assert (again["seq"], again["duplicate"]) == (1, True)
                assert await service.store.pending("s", 10) == []
