"""One WebSocket over a real socket: what it says, what it survives, how it ends."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
import trio
import trio_websocket
from port_house import (
    BINARY,
    CEILING,
    CLOSE,
    CONTINUATION,
    GOOD,
    PING,
    PONG,
    TEXT,
    RawClient,
    client_frame,
    close_payload,
    open_house,
)
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from klbr_trio.service.port.connection import Connection, ConnectionGone
from klbr_trio.service.port.frames import frame
from klbr_trio.service.port.limits import PortLimits

MIB = 1024 * 1024


class Guests:
    """Keeps what handlers learn: their connections and the codes they ended with."""

    def __init__(self) -> None:
        self._met, self.connections = trio.open_memory_channel[Connection](100)
        self._ended, self.codes = trio.open_memory_channel[int](100)

    async def __call__(self, connection: Connection) -> None:
        self._met.send_nowait(connection)
        try:
            while True:
                message = await connection.receive()
                await connection.send_frames([frame(str(message)[:100])])
        except ConnectionGone as gone:
            self._ended.send_nowait(gone.code)
            raise

    async def connection(self) -> Connection:
        with trio.fail_after(CEILING):
            return await self.connections.receive()

    async def code(self) -> int:
        with trio.fail_after(CEILING):
            return await self.codes.receive()


async def test_messages_come_whole_and_in_order() -> None:
    async with open_house() as house, house.socket() as client:
        await client.send(client_frame(TEXT, "größe".encode()[:4], fin=False))
        await client.send(client_frame(PING, b"between"))
        await client.send(client_frame(CONTINUATION, "größe".encode()[4:]))
        await client.send(client_frame(BINARY, b"\xff\x00\xff"))
        await client.say("")
        assert await client.frame() == (PONG, b"between")
        assert await client.text() == "größe"
        assert await client.text() == "binary 3"
        assert await client.text() == ""


async def test_bytes_behind_the_handshake_are_not_lost() -> None:
    async with open_house() as house, house.connect() as client:
        early = b"".join(client_frame(TEXT, b"early %d" % n) for n in range(600))
        await client.send(house.request(upgrade=True) + early)
        assert (await client.head()).status == 101
        assert [await client.text() for _ in range(600)] == [f"early {n}" for n in range(600)]


async def test_a_goodbye_is_answered_with_its_code_and_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guests = Guests()
    async with open_house(guests) as house, house.socket() as client:
        await client.send(client_frame(CLOSE, close_payload(1001, "going away")))
        assert await client.close_code() == 1001
        assert await client.is_cut()
        assert await guests.code() == 1001
        await house.at_rest()
    assert not caplog.records


async def test_a_client_that_just_goes_is_1006_and_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guests = Guests()
    async with open_house(guests) as house:
        async with house.socket() as client:
            await client.say("bye")
            assert await client.text() == "bye"
        assert await guests.code() == 1006
        await house.at_rest()
    assert not caplog.records


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (client_frame(TEXT, b"x" * (MIB + 1)), 1009),
        (client_frame(TEXT, ("\N{GRINNING FACE}" * (MIB // 4 + 1)).encode()), 1009),
        (client_frame(BINARY, b"x" * (8 * MIB)), 1009),
        (client_frame(TEXT, b"", fin=False) + client_frame(CONTINUATION, fin=False) * 20_000, 1009),
        (client_frame(TEXT, b"x", rsv=4), 1002),
        (client_frame(TEXT, b"x", masked=False), 1002),
        (client_frame(0x7, b"x"), 1002),
        (client_frame(TEXT, b"\xff\xfe"), 1007),
        (client_frame(CLOSE, b"\x00"), 1002),
        (client_frame(CLOSE, close_payload(1006)), 1002),
    ],
)
async def test_what_is_refused_closes_with_its_code_and_harms_nobody(
    sent: bytes, code: int
) -> None:
    guests = Guests()
    async with open_house(guests) as house, house.socket() as good:
        async with house.socket() as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_send_what_goes, client.stream, sent)
                assert await client.close_code() == code
                nursery.cancel_scope.cancel()
            await client.ended()
        assert await guests.code() == code
        await house.at_rest(connections=1)
        await good.say("still here")
        assert await good.text() == "still here"


async def _send_what_goes(stream: trio.SocketStream, data: bytes) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(data)


async def test_a_message_of_exactly_the_bound_is_taken() -> None:
    async with open_house(Guests()) as house, house.socket() as client:
        await client.send(client_frame(TEXT, b"x" * MIB))
        assert await client.text() == "x" * 100


async def test_messages_before_a_violation_in_the_same_packet_are_delivered() -> None:
    async with open_house() as house, house.socket() as client:
        await client.send(client_frame(TEXT, b"good") + client_frame(TEXT, b"x", rsv=1))
        assert await client.text() == "good"
        assert await client.close_code() == 1002


async def test_a_message_that_never_ends_is_ended() -> None:
    limits = PortLimits(message_seconds=0.2)
    async with open_house(limits=limits) as house, house.socket() as client:
        await client.say("in time")
        assert await client.text() == "in time"
        await client.send(client_frame(TEXT, b"x", fin=False))
        await client.send(client_frame(PING))
        assert await client.frame() == (PONG, b"")
        assert await client.close_code() == 1013


async def test_half_a_frame_is_a_message_that_never_ends_too() -> None:
    limits = PortLimits(message_seconds=0.1)
    async with open_house(limits=limits) as house, house.socket() as client:
        await client.send(client_frame(TEXT, b"x" * 100)[:3])
        assert await client.close_code() == 1013


@pytest.mark.parametrize("crossing", [PING, TEXT])
async def test_what_crosses_our_close_is_no_failure(
    crossing: int, caplog: pytest.LogCaptureFixture
) -> None:
    guests = Guests()
    limits = PortLimits(close_seconds=0.3)
    async with open_house(guests, limits=limits) as house, house.socket() as client:
        connection = await guests.connection()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.close, 1012, "over")
            assert await client.close_code() == 1012
            payload = b"x" * 50 if crossing == PING else b"x" * (MIB + 5)
            await client.send(client_frame(crossing, payload))
            await client.send(client_frame(CLOSE, close_payload(1012)))
        assert await client.is_cut(), "nothing follows a close frame"
        assert await guests.code() == 1012
        await house.at_rest()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_close_that_is_not_answered_is_forced() -> None:
    guests = Guests()
    limits = PortLimits(close_seconds=0.2)
    async with open_house(guests, limits=limits) as house, house.socket() as client:
        connection = await guests.connection()
        with trio.fail_after(CEILING):
            await connection.close(1000)
        assert connection.is_closing
        assert await client.close_code() == 1000
        await client.ended()
        await house.at_rest()


async def test_closing_twice_or_by_two_at_once_is_closing() -> None:
    guests = Guests()
    async with open_house(guests) as house, house.socket() as client:
        connection = await guests.connection()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(connection.close, 1013, "busy")
            assert await client.close_code() == 1013
            await client.send(client_frame(CLOSE, close_payload(1013)))
        await connection.close()
        assert await client.is_cut()
        with pytest.raises(ConnectionGone) as gone:
            await connection.send_frames([frame("late")])
        assert gone.value.code == 1013


async def test_a_close_drains_messages_that_nobody_takes() -> None:
    """The handler is gone, the client floods: the close still gets through."""

    async def deaf(connection: Connection) -> None:
        await connection.receive()

    async with open_house(deaf) as house, house.socket() as client:
        flood = client_frame(TEXT, b"x" * 1000) * 100
        await client.send(flood)
        assert await client.close_code() == 1000
        await client.send(flood + client_frame(CLOSE, close_payload(1000)))
        with trio.fail_after(1.5):
            await client.ended()
        await house.at_rest()


async def test_an_abort_ends_both_sides_at_once() -> None:
    guests = Guests()
    async with open_house(guests) as house, house.socket() as client:
        connection = await guests.connection()
        connection.abort()
        connection.abort()
        await client.ended()
        assert await guests.code() == 1006
        await house.at_rest()


async def test_a_silent_client_is_pinged_and_lives_as_long_as_it_answers() -> None:
    limits = PortLimits(ping_seconds=0.05, pong_seconds=0.2)
    async with open_house(limits=limits) as house, house.socket() as client:
        for _ in range(4):
            assert await client.frame() == (PING, b"")
            await client.send(client_frame(PONG))
        await client.say("alive")
        while (found := await client.frame())[0] != TEXT:
            await client.send(client_frame(PONG))
        assert found == (TEXT, b"alive")


async def test_a_client_that_does_not_answer_is_cut() -> None:
    guests = Guests()
    limits = PortLimits(ping_seconds=0.05, pong_seconds=0.1)
    async with open_house(guests, limits=limits) as house, house.socket() as client:
        assert await client.frame() == (PING, b"")
        await client.ended()
        assert await guests.code() == 1006
        await house.at_rest()


async def test_a_busy_handler_is_not_its_clients_silence() -> None:
    gate = trio.Event()

    async def slow(connection: Connection) -> None:
        await connection.receive()
        await gate.wait()
        while True:
            await connection.send_frames([frame(str(await connection.receive()))])

    limits = PortLimits(ping_seconds=0.02, pong_seconds=0.05)
    async with open_house(slow, limits=limits) as house, house.socket() as client:
        for text in ("begin", "one", "two", "three"):
            await client.say(text)
        for _ in range(3):
            assert await client.frame() == (PING, b"")
        gate.set()
        heard: list[bytes] = []
        while len(heard) < 3:
            opcode, payload = await client.frame()
            if opcode == TEXT:
                heard.append(payload)
            await client.send(client_frame(PONG))
        assert heard == [b"one", b"two", b"three"]


async def test_a_client_that_takes_nothing_is_cut_and_costs_nobody_else() -> None:
    ended, endings = trio.open_memory_channel[int](1)

    async def pour(connection: Connection) -> None:
        if await connection.receive() != "pour":
            await connection.send_frames([frame("not poured")])
            await connection.receive()
        batch = [frame("x" * 100_000)] * 10
        try:
            while True:
                await connection.send_frames(batch)
        except ConnectionGone as gone:
            ended.send_nowait(gone.code)
            raise

    limits = PortLimits(stall_seconds=0.3)
    async with open_house(pour, limits=limits) as house:
        async with house.socket() as stuck, house.socket() as good:
            await stuck.say("pour")
            await good.say("hello")
            assert await good.text() == "not poured"
            with trio.fail_after(CEILING):
                assert await endings.receive() == 1013
            await house.at_rest(connections=1)


async def test_a_slow_client_is_not_cut_while_it_takes_something() -> None:
    """It takes far longer than the stall bound and the ping bound together, and gets all."""

    async def pour(connection: Connection) -> None:
        await connection.receive()
        await connection.send_frames([frame(b"%07d" % n + b"x" * 50_000) for n in range(100)])
        await connection.receive()

    limits = PortLimits(stall_seconds=1.2, ping_seconds=0.2, pong_seconds=0.8)
    async with open_house(pour, limits=limits) as house, house.socket() as client:
        await client.say("pour")
        seen = 0
        while seen < 100:
            opcode, payload = await client.frame()
            if opcode == PING:
                await client.send(client_frame(PONG))
                continue
            assert payload[:7] == b"%07d" % seen
            seen += 1
            if seen % 10 == 0:
                await trio.sleep(0.3)


async def test_pongs_and_batches_never_interleave() -> None:
    async def pour(connection: Connection) -> None:
        async with trio.open_nursery() as nursery:
            for writer in range(3):
                nursery.start_soon(write, connection, writer)
            while True:
                await connection.receive()

    async def write(connection: Connection, writer: int) -> None:
        for number in range(40):
            head = f"{writer} {number} ".encode()
            await connection.send_frames([frame(head + b"x" * size) for size in (1, 200, 70_000)])

    async with open_house(pour) as house, house.socket() as client:
        async with trio.open_nursery() as nursery:

            async def ping() -> None:
                for number in range(200):
                    await client.send(client_frame(PING, b"%d" % number))

            nursery.start_soon(ping)
            pongs: list[int] = []
            texts: dict[bytes, list[int]] = {}
            while len(pongs) < 200 or sum(map(len, texts.values())) < 360:
                opcode, payload = await client.frame()
                if opcode == PONG:
                    pongs.append(int(payload))
                else:
                    writer, number, filler = payload.split(b" ")
                    assert filler == b"x" * len(filler)
                    texts.setdefault(writer, []).append(int(number))
        assert pongs == list(range(200))
        assert all(numbers == sorted(numbers) for numbers in texts.values())


async def test_a_send_cancelled_half_way_ends_the_connection() -> None:
    guests = Guests()
    async with open_house(guests) as house, house.socket() as client:
        connection = await guests.connection()
        with trio.move_on_after(0.2) as scope:
            await connection.send_frames([frame("x" * 1_000_000)] * 30)
        assert scope.cancelled_caught
        with pytest.raises(ConnectionGone):
            await connection.send_frames([frame("after")])
        assert await guests.code() == 1006
        with pytest.raises(EOFError):
            await _read_frames(client, (TEXT, b"x" * 1_000_000))


async def _read_frames(client: RawClient, expected: tuple[int, bytes]) -> None:
    while True:
        assert await client.frame() == expected


async def test_a_send_cancelled_before_its_first_byte_leaves_the_connection_whole() -> None:
    guests = Guests()
    async with open_house(guests) as house, house.socket() as client:
        connection = await guests.connection()
        with trio.CancelScope() as scope:
            scope.cancel()
            await connection.send_frames([frame("never")])
        assert scope.cancelled_caught
        await client.say("whole")
        assert await client.text() == "whole"


async def test_a_stuck_send_does_not_hold_up_the_close() -> None:
    guests = Guests()
    limits = PortLimits(close_seconds=0.3)
    async with open_house(guests, limits=limits) as house, house.socket():
        connection = await guests.connection()
        async with trio.open_nursery() as nursery:

            async def pour() -> None:
                with pytest.raises(ConnectionGone):
                    await connection.send_frames([frame("x" * 1_000_000)] * 100)

            nursery.start_soon(pour)
            await trio.sleep(0.2)
            with trio.fail_after(3):
                await connection.close(1013, "too slow")
        await house.at_rest()


async def test_cancelled_handlers_say_1012() -> None:
    async with open_house() as house, house.socket() as first, house.socket() as second:
        house.handlers.cancel_scope.cancel()
        for client in (first, second):
            assert await client.close_code() == 1012
            await client.ended()
        await house.at_rest()


async def test_ordinary_clients_get_along_with_it() -> None:
    async with open_house() as house:
        url = f"ws://{house.host}/"
        await trio.to_thread.run_sync(partial(_talk_by_websockets, url))
        async with trio_websocket.open_websocket_url(
            url, extra_headers=[(b"Authorization", f"Bearer {GOOD}".encode())]
        ) as ws:
            await ws.send_message("from trio")
            assert await ws.get_message() == "from trio"
            await ws.ping(b"pong")
        await house.at_rest()


def _talk_by_websockets(url: str) -> None:
    headers = {"Authorization": f"Bearer {GOOD}"}
    with connect(url, additional_headers=headers, proxy=None) as ws:
        assert ws.response is not None
        assert "Sec-WebSocket-Extensions" not in ws.response.headers
        ws.send("x" * 300_000)
        assert len(ws.recv()) == 300_000
        assert ws.ping().wait(CEILING)
        ws.send(["frag", "men", "ted"])
        assert ws.recv() == "fragmented"
    with connect(url, subprotocols=["klbr.v2", "klbr.token.wrong"], proxy=None) as ws:  # type: ignore[list-item]
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(CEILING)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401
