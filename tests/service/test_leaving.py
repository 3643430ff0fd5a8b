"""A client may go at any moment, and its handler be cancelled at any: nothing is left of it."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest
import trio
from client_house import open_clients
from port_house import CEILING, TEXT, client_frame

from klbr_trio import check
from klbr_trio.service.port.limits import PortLimits
from klbr_trio.wire.server import LiveChunk

if TYPE_CHECKING:
    from pathlib import Path

    from client_house import Clients

LIMITS = PortLimits(close_seconds=0.02)
MOMENTS = 40


def message(type_: str, **fields: object) -> bytes:
    return client_frame(TEXT, json.dumps({"type": type_, **fields}).encode())


EVERYTHING = b"".join(
    [
        message("subscribe", session_id="s", after_seq=1),
        message("send_input", session_id="s", source="t", text="one"),
        message("subscribe", session_id="t"),
        message("send_input", session_id="t", source="t", text="two"),
        message("history", session_id="s", before_seq=300, limit=300),
        message("list_sessions"),
        message("session_status", session_id="s"),
        message("subscribe", session_id="s"),
        message("reset_kernel", session_id="t"),
        message("unsubscribe", session_id="t"),
        message("stop", session_id="u"),
        message("send_input", session_id="s", source="t", text="three"),
        message("ping"),
    ]
)


async def prepare(clients: Clients) -> None:
    for session_id in ("s", "t", "u"):
        await clients.store.ensure_session(session_id)
    async with trio.open_nursery() as nursery:
        for _ in range(120):
            nursery.start_soon(clients.store.append, "s", "scratchpad", {"text": "x" * 2000})


async def nothing_is_left(clients: Clients) -> None:
    await clients.house.at_rest()
    assert clients.shared.clients == 0
    assert clients.registry.live._lookers == {}
    with trio.fail_after(CEILING):
        while clients.registry._nursery.child_tasks:  # noqa: ASYNC110 - asks trio itself
            await trio.sleep(0.001)


async def come_and_stay(clients: Clients, *, reads: bool) -> None:
    """A client asks for everything at once, while its sessions live, until it is cut."""
    async with clients.house.socket() as client, trio.open_nursery() as nursery:
        nursery.start_soon(live, clients)
        await client.send(EVERYTHING)
        with contextlib.suppress(EOFError):
            while reads:
                await client.frame()
        await client.ended()
        nursery.cancel_scope.cancel()


async def live(clients: Clients) -> None:
    while True:
        clients.registry.live.publish(
            LiveChunk(session_id="s", lane="scratchpad", delta="d", attempt_id="a", step=1)
        )
        await clients.store.append("s", "scratchpad", {"text": "live"})


@pytest.mark.parametrize("reads", [True, False])
async def test_cancelled_at_any_moment_a_handler_leaves_nothing(
    tmp_path: Path, reads: bool
) -> None:
    async with open_clients(tmp_path, LIMITS) as clients:
        await prepare(clients)
        for clients.moment in range(1, 13 * MOMENTS, 13):
            with trio.fail_after(CEILING):
                await come_and_stay(clients, reads=reads)
            await nothing_is_left(clients)
        assert await check(clients.store) == []


@pytest.mark.parametrize("rude", [True, False])
async def test_a_client_that_goes_at_any_moment_leaves_nothing(tmp_path: Path, rude: bool) -> None:
    async with open_clients(tmp_path, LIMITS) as clients:
        await prepare(clients)
        for moment in range(MOMENTS):
            async with clients.house.socket() as client:
                await client.send(EVERYTHING)
                for _ in range(moment):
                    await client.frame()
                if not rude:
                    await client.send(client_frame(0x8, b"\x03\xe8"))
                    await client.ended()
            await nothing_is_left(clients)
        assert await check(clients.store) == []
