"""A cancelled step: the provider sees it leave, and nothing stays behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from asking import Asked, ask, client
from fakes.provider import (
    Scripted,
    ScriptedProvider,
    chunk,
    drip,
    hang,
    open_provider,
    refuse,
    sse,
    text_reply,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SAID = sse(chunk({"content": "word "}), done=False)


async def test_a_stopped_step_closes_the_request_at_once() -> None:
    for silent in (hang(), drip(SAID, after="hang"), drip(after="hang")):
        async with open_provider([silent]) as provider:
            asked = Asked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, client(provider.url), asked)
                await provider.wait_requests(1)
                nursery.cancel_scope.cancel()
            with trio.fail_after(1):
                await provider.wait_disconnected(0)
            assert asked.discards == 0


def _slow() -> Scripted:
    return drip(*[SAID] * 40, sse(chunk(finish="stop")))


SITUATIONS: dict[str, Callable[[], list[Scripted]]] = {
    "answering": lambda: [_slow()],
    "silent": lambda: [hang()],
    "retrying": lambda: [refuse(503, "x")],
    "limited": lambda: [refuse(429, "x", headers={"retry-after": "0.02"})],
}


@pytest.mark.parametrize("name", SITUATIONS)
async def test_a_cancel_at_any_moment_leaves_nothing(name: str) -> None:
    """Sixty moments from before the first byte to behind the last one."""
    async with open_provider(SITUATIONS[name]()) as provider:
        llm = client(provider.url, max_requests=1)
        for moment in range(60):
            with trio.move_on_after(moment * 0.0007):
                await ask(llm)
            assert llm.gate(llm.models.llm).statistics().in_use == 0
        await _everybody_left(provider)
        provider.answers = [text_reply("fine")]
        with trio.fail_after(5):
            assert (await ask(llm)).text == "fine"


async def _everybody_left(provider: ScriptedProvider) -> None:
    """Every request was answered to its end or left by its client."""
    with trio.fail_after(5):
        for request in provider.requests:
            await request.over.wait()


async def test_a_cancel_while_many_wait_loses_no_place() -> None:
    async with open_provider([hang()]) as provider:
        llm = client(provider.url, max_requests=3)
        for _ in range(5):
            with trio.move_on_after(0.03):
                async with trio.open_nursery() as nursery:
                    for number in range(10):
                        nursery.start_soon(ask, llm, None, f"s{number}")
        stands = llm.gate(llm.models.llm).statistics()
        assert (stands.in_use, stands.waiting) == (0, 0)
