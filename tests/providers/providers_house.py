"""A provider's answers through the whole service: a socket in, a real kernel, the log out."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
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
    from collections.abc import AsyncGenerator, Callable, Sequence

    from trio_websocket import WebSocketConnection

ROOT: Final = Path(__file__).parents[2]
CEILING_S: Final = 90.0
SESSION: Final = "s"
_ENDS: Final = ("turn.completed", "turn.failed")

Message = dict[str, Any]


@attrs.define(eq=False)
class Story:
    """What a client saw, and what the log kept.

    Attributes:
        frames: Everything that the socket brought, in order.
        status: The session's status afterwards.
    """

    frames: list[Message] = attrs.field(factory=list)
    status: Message = attrs.field(factory=dict)

    @property
    def events(self) -> list[Message]:
        return [frame["record"] for frame in self.frames if frame["type"] == "event"]

    def of(self, kind: str) -> list[Message]:
        """The payloads of that kind of event."""
        return [event["payload"] for event in self.events if event["kind"] == kind]

    @property
    def codes(self) -> list[str]:
        """What ran."""
        refused = {
            (each["attempt_id"], each["call_id"])
            for each in self.of("cell.finished")
            if (each["error"] or "").startswith("not run")
        }
        return [
            each["code"]
            for each in self.of("cell.requested")
            if each["code"] is not None and (each["attempt_id"], each["call_id"]) not in refused
        ]

    @property
    def refusals(self) -> list[str]:
        """What the model was told about calls that could not run."""
        unreadable = {
            (each["attempt_id"], each["call_id"])
            for each in self.of("cell.requested")
            if each["code"] is None
        }
        return [
            each["error"]
            for each in self.of("cell.finished")
            if (each["attempt_id"], each["call_id"]) in unreadable
        ]

    @property
    def scratchpad(self) -> list[str]:
        """The visible text of each reply."""
        texts = {(each["attempt_id"], each["step"]): "" for each in self.of("reply.received")}
        for each in self.of("scratchpad"):
            texts[each["attempt_id"], each["step"]] += each["text"]
        return list(texts.values())

    @property
    def said(self) -> list[str]:
        return [each["text"] for each in self.of("local.sent")]

    @property
    def failures(self) -> list[Message]:
        return self.of("turn.failed")

    def live(self, lane: str) -> dict[tuple[str, int], str]:
        """What was streamed in a lane for each step and not withdrawn."""
        shown: dict[tuple[str, int], str] = {}
        for frame in self.frames:
            step = (frame.get("attempt_id", ""), frame.get("step", 0))
            if frame["type"] == "live_discard":
                shown.pop(step, None)
            elif frame["type"] == "live_chunk" and frame["lane"] == lane:
                shown[step] = shown.get(step, "") + frame["delta"]
        return shown

    @property
    def discards(self) -> int:
        return sum(frame["type"] == "live_discard" for frame in self.frames)

    def is_over(self) -> bool:
        """Whether a turn has completed, or its repair has failed, too."""
        kinds = [event["kind"] for event in self.events]
        return "turn.completed" in kinds or kinds.count("turn.failed") == 2


@attrs.define(eq=False)
class House:
    """A running service."""

    url: str
    store: Store

    async def tell(self, text: str = "hello", *, session: str = SESSION) -> Story:
        """Send an input, and hear the story to its end."""
        story = Story()
        with trio.fail_after(CEILING_S):
            async with open_websocket_url(self.url, max_message_size=2**21) as socket:
                await _say(socket, type="subscribe", session_id=session, after_seq=0)
                await _hear(socket, story, lambda frame: frame["type"] == "sync_completed")
                told = len(story.frames)
                await _say(socket, type="send_input", session_id=session, source="t", text=text)
                story.frames = story.frames[told:]
                await _hear(socket, story, lambda _: story.is_over())
                await _say(socket, type="session_status", session_id=session)
                await _hear(socket, story, lambda frame: frame["type"] == "session_status")
                story.status = story.frames.pop()
        return story


async def _say(socket: WebSocketConnection, **fields: object) -> None:
    await socket.send_message(json.dumps(fields))


async def _hear(
    socket: WebSocketConnection, story: Story, is_last: Callable[[Message], bool]
) -> None:
    while True:
        story.frames.append(json.loads(await socket.get_message()))
        if is_last(story.frames[-1]):
            return


def behavior(folder: Path, model: str) -> Path:
    """A behaviour that says little and leaves words as they are."""
    folder.mkdir(exist_ok=True)
    (folder / "behavior.toml").write_text(f'name = "plain"\nmodel = "{model}"\n')
    (folder / "prompt.md").write_text("Act by calling your tool.\n")
    return folder


def config(
    url: str, api_key: str | None = None, *, model: str = "a-model", **settings: Any
) -> ModelConfig:
    """A model whose patience suits tests, not people."""
    times = {"first_token_s": 20.0, "stall_s": 20.0, "total_s": 40.0}
    return ModelConfig(url, model, api_key, **{**times, **settings})


@asynccontextmanager
async def open_house(
    folder: Path, models: ModelsConfig, *, model: str = ""
) -> AsyncGenerator[House]:
    """The service over a store in `folder`; sound when the block is left.

    Args:
        folder: Everything of it.
        models: What it may ask.
        model: Which of them its behaviour wants.
    """
    release = Release.publish(behavior(folder / "behavior", model), folder / "releases")
    async with (
        Store.open(folder / "klbr.sqlite") as store,
        SessionRegistry.open(store, WorkerConfig.source_tree(ROOT)) as registry,
        trio.open_nursery() as nursery,
    ):
        start = partial(serve_listener, registry=registry, llm=LlmClient(models), release=release)
        host, port = await nursery.start(start)
        yield House(f"ws://{host}:{port}/", store)
        await registry.shutdown_all()
        assert await check(store) == []


def words_in(wanted: Sequence[str], text: str) -> bool:
    """Whether each of these occurs, however it is written; `a|b` is either."""
    low = text.lower()
    return all(any(each in low for each in one.lower().split("|")) for one in wanted)
