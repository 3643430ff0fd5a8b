"""Clients that do not read: they cost themselves, and only for so long."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from client_house import open_clients
from port_house import CEILING, TEXT, client_frame
from service_house import open_service

from klbr_trio.service.port.limits import PortLimits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from port_house import House, RawClient

MEGABYTE = 1024 * 1024
IMPATIENT = PortLimits(stall_seconds=1.0, close_seconds=0.5)


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.asynccontextmanager
async def deaf_client(house: House) -> AsyncGenerator[RawClient]:
    """A client with next to no room for what it does not read."""
    async with house.connect() as client:
        client.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        await client.send(house.request(upgrade=True, token=None))
        assert (await client.head()).status == 101
        yield client


async def test_a_deaf_client_is_cut_and_costs_the_others_nothing(tmp_path: Path) -> None:
    async with open_clients(tmp_path, IMPATIENT) as service:
        await service.store.ensure_session("s")
        async with contextlib.AsyncExitStack() as stack:
            deaf = [await stack.enter_async_context(deaf_client(service.house)) for _ in range(5)]
            good = await stack.enter_async_context(service.house.socket())
            for client in [*deaf, good]:
                await client.say('{"type":"subscribe","session_id":"s"}')
                assert json.loads(await client.text())["type"] == "sync_started"
                assert json.loads(await client.text())["type"] == "sync_completed"
            before = resident()
            for number in range(600):
                await service.store.append("s", "scratchpad", {"text": "x" * 8000})
                event = json.loads(await good.text())
                assert event["record"]["seq"] == number + 1
            assert resident() - before < 30 * MEGABYTE
            with trio.fail_after(CEILING):
                while service.shared.clients > 1:
                    await service.shared.client_left.wait()
            for client in deaf:
                await client.ended()
            await service.store.append("s", "scratchpad", {"text": "still here"})
            assert json.loads(await good.text())["record"]["seq"] == 601
        await service.house.at_rest()


async def test_a_deaf_client_that_follows_many_sessions_takes_little_memory(tmp_path: Path) -> None:
    """Each follower could hold a page for it; together they hold a bound."""
    count = 60
    async with open_service(tmp_path) as service:
        async with service.raw(receive_buffer=65536) as client, service.caller() as good:
            for number in range(count):
                await client.say(f'{{"type":"subscribe","session_id":"s{number}"}}')
                assert json.loads(await client.text())["type"] == "sync_started"
                assert json.loads(await client.text())["type"] == "sync_completed"
            before = resident()
            # Ten at once are one commit, so that a follower finds a whole page.
            for number in range(count):
                await service.store.ensure_session(f"s{number}")
                async with trio.open_nursery() as nursery:
                    for _ in range(10):
                        nursery.start_soon(
                            service.store.append, f"s{number}", "a.note", {"text": "x" * 25_000}
                        )
            assert await good.ask("ping") == {"type": "pong"}
            assert resident() - before < 10 * MEGABYTE, "a page for each would be fifteen"
            heard: dict[str, list[int]] = {}
            for _ in range(count * 10):
                record = json.loads(await client.text())["record"]
                heard.setdefault(record["session_id"], []).append(record["seq"])
            assert all(seqs == list(range(1, 11)) for seqs in heard.values())


async def test_a_flood_of_pings_from_a_deaf_client_keeps_memory_flat(tmp_path: Path) -> None:
    ping = client_frame(TEXT, b'{"type":"ping","request_id":"' + b"r" * 100 + b'"}')
    flood = ping * 500
    async with open_service(tmp_path) as service:
        async with service.raw(receive_buffer=4096) as client, service.caller() as good:
            before = resident()
            sent = 0
            stuck = False
            while not stuck:
                with trio.move_on_after(1.0) as patience:
                    await client.stream.send_all(flood)
                    sent += 500
                stuck = patience.cancelled_caught
                assert await good.ask("ping") == {"type": "pong"}
                assert resident() - before < 20 * MEGABYTE
            for _ in range(sent):
                assert json.loads(await client.text())["type"] == "pong"


async def test_requests_that_wait_have_a_bound(tmp_path: Path) -> None:
    """Inputs of a session that is busy with a replay that nobody takes are not read for ever."""
    text = "x" * 200_000
    one = client_frame(
        TEXT,
        json.dumps({"type": "send_input", "session_id": "s", "source": "t", "text": text}).encode(),
    )
    async with open_service(tmp_path) as service:
        await service.notes("s", 600, text="x" * 8000)
        async with service.raw(receive_buffer=4096) as client:
            await client.say('{"type":"subscribe","session_id":"s","after_seq":1}')
            before = resident()
            sent = 0
            stuck = False
            while not stuck:
                with trio.move_on_after(0.3) as patience:
                    await client.stream.send_all(one)
                    sent += 1
                stuck = patience.cancelled_caught
                assert sent < 200
            assert resident() - before < 30 * MEGABYTE
            acked = 0
            while acked < sent:
                acked += json.loads(await client.text())["type"] == "ack"
            assert service.store.head("s") >= 600 + sent
