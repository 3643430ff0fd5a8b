"""Asking a scripted provider, and what came of it."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from klbr_trio.models import Lane, LlmClient, ModelConfig, ModelRequest, ModelsConfig, Reply, User

REQUEST = ModelRequest((User("hi"),))


@attrs.define(eq=False)
class Asked:
    """What the caller of `complete` is told."""

    shown: list[tuple[Lane, str]] = attrs.field(factory=list)
    """What stands on the screen."""

    discards: int = 0
    withdrawn: str = ""
    began: trio.Event = attrs.field(factory=trio.Event)
    """Set at the first delta."""

    def on_delta(self, lane: Lane, delta: str) -> None:
        self.shown.append((lane, delta))
        self.began.set()

    def on_discard(self) -> None:
        assert self.shown, "nothing was shown, nothing can be withdrawn"
        self.discards += 1
        self.withdrawn += self.text("scratchpad")
        self.shown.clear()

    def text(self, lane: Lane) -> str:
        return "".join(delta for shown_lane, delta in self.shown if shown_lane == lane)


def client(url: str, **settings: Any) -> LlmClient:
    return LlmClient(ModelsConfig(ModelConfig(url, "a-model", **settings)))


async def ask(llm: LlmClient, asked: Asked | None = None, session_id: str = "s") -> Reply:
    asked = asked or Asked()
    request = attrs.evolve(REQUEST, session_id=session_id)
    return await llm.complete(request, on_delta=asked.on_delta, on_discard=asked.on_discard)
