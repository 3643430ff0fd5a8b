"""The service against llama.cpp's own server: streaming, confirmed speech, Stop."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trio
from trio_websocket import open_websocket_url

from klbr_trio import (
    LlmClient,
    ModelConfig,
    ModelsConfig,
    Release,
    SessionRegistry,
    Store,
    WorkerConfig,
    check,
    serve_listener,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from trio_websocket import WebSocketConnection

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

ROOT = __file__.rsplit("/tests/", 1)[0]


def speaking_behavior(folder: Path) -> Path:
    """A behaviour for a model too small to act: what it writes is said."""
    folder.mkdir()
    (folder / "behavior.toml").write_text('name = "small"\nplain_text = "speak"\n')
    (folder / "prompt.md").write_text("You are a friendly assistant. Answer briefly.\n")
    return folder


@asynccontextmanager
async def serving(
    url: str, tmp_path: Path, **extra_body: object
) -> AsyncGenerator[tuple[str, Store]]:
    release = Release.publish(speaking_behavior(tmp_path / "behavior"), tmp_path / "releases")
    body = {"temperature": 0, **extra_body}
    llm = LlmClient(ModelsConfig(llm=ModelConfig(url, "smollm2", extra_body=body)))
    async with (
        Store.open(tmp_path / "klbr.sqlite") as store,
        SessionRegistry.open(store, WorkerConfig.source_tree(ROOT)) as registry,
        trio.open_nursery() as nursery,
    ):
        start = partial(serve_listener, registry=registry, llm=llm, release=release)
        host, port = await nursery.start(start)
        yield f"ws://{host}:{port}/", store
        await registry.shutdown_all()


async def say(socket: WebSocketConnection, **fields: object) -> None:
    await socket.send_message(json.dumps(fields))


async def until(
    socket: WebSocketConnection, found: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """The frames up to the first that is `found`."""
    frames = []
    with trio.fail_after(120):
        while True:
            frames.append(json.loads(await socket.get_message()))
            if found(frames[-1]):
                return frames


def is_event(kind: str) -> Callable[[dict[str, Any]], bool]:
    return lambda frame: frame["type"] == "event" and frame["record"]["kind"] == kind


async def test_a_reply_arrives_live_and_then_as_confirmed_speech(
    llama_server: str, tmp_path: Path
) -> None:
    async with serving(llama_server, tmp_path) as (url, store), open_websocket_url(url) as socket:
        await say(socket, type="subscribe", session_id="s")
        await say(socket, type="send_input", session_id="s", source="op", text="Say hello.")
        frames = await until(socket, is_event("turn.completed"))
        streamed = [
            frame["delta"]
            for frame in frames
            if frame["type"] == "live_chunk" and frame["lane"] == "scratchpad"
        ]
        (spoken,) = [frame for frame in frames if frame.get("lane") == "speech"]
        (event,) = [frame["record"] for frame in frames if is_event("local.sent")(frame)]
        assert len(streamed) > 1, "a reply of several tokens comes in more than one piece"
        assert "".join(streamed).strip() == event["payload"]["text"].strip() != ""
        assert spoken["delta"] == event["payload"]["text"]
        assert frames.index(spoken) < frames.index(
            next(frame for frame in frames if is_event("local.sent")(frame))
        )
        logged = [one for one in await store.history("s", 0, 100) if one.kind == "local.sent"]
        assert [one.payload for one in logged] == [event["payload"]]
        assert await check(store) == []


async def test_stop_in_the_middle_of_a_generation_ends_the_request_at_the_server(
    llama_server: str, tmp_path: Path
) -> None:
    async with serving(llama_server, tmp_path) as (url, store), open_websocket_url(url) as socket:
        await say(socket, type="subscribe", session_id="s")
        await say(
            socket,
            type="send_input",
            session_id="s",
            source="op",
            text="Count from one to ten thousand, one number a line, and never stop.",
        )
        await until(socket, lambda frame: frame.get("lane") == "scratchpad")
        assert await busy_slots(llama_server) == 1
        await say(socket, type="stop", session_id="s")
        (*_, answer) = await until(socket, lambda frame: frame["type"] == "operator_ack")
        assert answer["success"], answer
        with trio.fail_after(10):
            while await busy_slots(llama_server):  # noqa: ASYNC110
                await trio.sleep(0.02)  # the server has nothing to wait on
        assert await store.session_state("s") == ("stopped", None)
        kinds = [event.kind for event in await store.history("s", 0, 100)]
        assert "local.sent" not in kinds
        assert await check(store) == []


async def busy_slots(url: str) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        slots = (await client.get(f"{url}/slots")).json()
    return sum(slot["is_processing"] for slot in slots)


async def test_a_prompt_that_the_model_cant_hold_is_made_smaller(
    llama_server: str, tmp_path: Path
) -> None:
    long = "the cat sat on the mat and " * 250
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        messages = [{"role": "user", "content": long}]
        refused = await client.post(
            f"{llama_server}/v1/chat/completions", json={"messages": messages}
        )
    assert refused.json()["error"]["type"] == "exceed_context_size_error"
    async with (
        serving(llama_server, tmp_path, max_tokens=16) as (url, store),
        open_websocket_url(url) as socket,
    ):
        await say(socket, type="subscribe", session_id="s")
        await say(socket, type="send_input", session_id="s", source="op", text=long)
        frames = await until(socket, is_event("turn.completed"))
        (reply,) = [
            frame["record"]["payload"] for frame in frames if is_event("reply.received")(frame)
        ]
        assert 0 < reply["usage"]["prompt_tokens"] < 1024
        await say(socket, type="session_status", session_id="s")
        (*_, status) = await until(socket, lambda frame: frame["type"] == "session_status")
        assert status["usage"]["total_tokens"] == reply["usage"]["total_tokens"]
        assert await check(store) == []
