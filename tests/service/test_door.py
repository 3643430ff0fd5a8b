"""The door alone, in front of a client that reads when the test says so."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import trio
import trio.testing
from port_house import CEILING, open_house

from klbr_trio.config import LIVE_QUEUE
from klbr_trio.service.door import UNSENT_BYTES, Door
from klbr_trio.service.port.frames import frame
from klbr_trio.wire.server import Pong

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from port_house import RawClient

    from klbr_trio.service.port.connection import Connection

BIG = frame("b" * 1_000_000)
"""More than the kernel takes from who is not read."""


@contextlib.asynccontextmanager
async def open_door(
    use: Callable[[Door], Awaitable[None]],
) -> AsyncGenerator[RawClient]:
    """A client at whose door `use` runs; the block may read from it at any time."""
    done = trio.Event()

    async def serve(connection: Connection) -> None:
        door = Door(connection)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.run)
            await use(door)
            await door.drained()
            nursery.cancel_scope.cancel()
        done.set()

    async with open_house(serve) as house, house.socket() as client:
        yield client
        with trio.fail_after(CEILING):
            await done.wait()


async def read(client: RawClient, count: int) -> list[str]:
    """What so many frames say, the big ones by their first letter."""
    return [
        text if len(text) < 1000 else text[0]
        for text in [await client.text() for _ in range(count)]
    ]


def gap(dropped: int) -> str:
    return json.dumps(
        {"type": "live_gap", "session_id": "s", "dropped": dropped}, separators=(",", ":")
    )


async def test_everything_goes_out_in_the_order_in_which_it_was_put_in() -> None:
    async def use(door: Door) -> None:
        door.queue(Pong(timestamp=1))
        await door.events("s", [frame("one"), frame("two")])
        door.reply(Pong(timestamp=2))
        door.queue(Pong(timestamp=3))
        await door.flush()
        assert door.is_empty

    async with open_door(use) as client:
        heard = await read(client, 5)
    assert [text if len(text) == 3 else json.loads(text)["timestamp"] for text in heard] == [
        1, "one", "two", 2, 3,
    ]  # fmt: skip


async def test_events_return_when_they_are_out_and_not_before() -> None:
    returned: list[str] = []
    blocked = trio.Event()

    async def use(door: Door) -> None:
        async def put(name: str, *frames: bytes) -> None:
            await door.events("s", frames)
            returned.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(put, "big", BIG, BIG, BIG)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(put, "first", frame("first"))
            nursery.start_soon(put, "second", frame("second"))
            await trio.testing.wait_all_tasks_blocked()
            assert returned == []
            blocked.set()

    async with open_door(use) as client:
        await blocked.wait()
        heard = await read(client, 5)
        assert heard[:3] == ["b"] * 3
        assert sorted(heard[3:]) == ["first", "second"]
    assert returned[0] == "big"
    assert sorted(returned) == ["big", "first", "second"]


async def test_what_was_dropped_is_told_before_the_next_event() -> None:
    blocked = trio.Event()

    async def use(door: Door) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.events, "s", [BIG, BIG])
            await trio.testing.wait_all_tasks_blocked()
            for number in range(LIVE_QUEUE):
                assert door.admit_chunk()
                door.chunk("s", frame(str(number)))
            assert not door.admit_chunk()
            door.drop("s", 1)
            door.drop("s", 2)
            nursery.start_soon(door.events, "s", [frame("event")])
            await trio.testing.wait_all_tasks_blocked()
            blocked.set()

    async with open_door(use) as client:
        await blocked.wait()
        heard = await read(client, 2 + LIVE_QUEUE + 2)
    assert heard[2:-2] == [str(number) for number in range(LIVE_QUEUE)]
    assert heard[-2:] == [gap(3), "event"]


async def test_what_was_dropped_is_told_before_the_next_chunk() -> None:
    blocked = trio.Event()

    async def use(door: Door) -> None:
        async def big_then_chunk() -> None:
            await door.events("s", [BIG, BIG])
            assert door.admit_chunk()
            door.chunk("s", frame("chunk"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(big_then_chunk)
            await trio.testing.wait_all_tasks_blocked()
            door.drop("s", 5)
            blocked.set()

    async with open_door(use) as client:
        await blocked.wait()
        assert await read(client, 4) == ["b", "b", gap(5), "chunk"]


async def test_a_client_that_reads_again_has_room_for_chunks_again() -> None:
    go_on = trio.Event()

    async def use(door: Door) -> None:
        for number in range(LIVE_QUEUE):
            assert door.admit_chunk()
            door.chunk("s", frame(str(number)))
        assert not door.admit_chunk(), "they wait until they are sent"
        await door.drained()
        assert door.chunks == 0
        assert door.admit_chunk()
        door.forget("s", 1)
        assert door.chunks == 0
        go_on.set()

    async with open_door(use) as client:
        assert await read(client, LIVE_QUEUE) == [str(number) for number in range(LIVE_QUEUE)]
        with trio.fail_after(CEILING):
            await go_on.wait()


async def test_nobody_is_told_what_was_dropped_of_a_session_that_was_left() -> None:
    async def use(door: Door) -> None:
        door.drop("s", 3)
        door.forget("s", 0)
        door.reply(Pong())

    async with open_door(use) as client:
        assert json.loads(await client.text()) == {"type": "pong"}


async def test_there_is_room_once_the_client_has_taken_enough() -> None:
    full = trio.Event()
    had_room = trio.Event()

    async def use(door: Door) -> None:
        async with trio.open_nursery() as nursery:
            await door.room()
            count = UNSENT_BYTES // len(BIG) + 1
            nursery.start_soon(door.events, "s", [BIG] * count)
            await trio.testing.wait_all_tasks_blocked()
            full.set()
            await door.room()
            had_room.set()

    async with open_door(use) as client:
        await full.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert not had_room.is_set()
        await read(client, UNSENT_BYTES // len(BIG) + 1)
        with trio.fail_after(CEILING):
            await had_room.wait()
