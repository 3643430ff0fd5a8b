"""Thousands of hostile connections, the same ones each time; then all is as before."""

from __future__ import annotations

import random
import socket
import struct

import pytest
import trio
from port_house import (
    BINARY,
    CEILING,
    CLOSE,
    CONTINUATION,
    GOOD,
    PING,
    PONG,
    TEXT,
    House,
    client_frame,
    close_payload,
    open_house,
)

from klbr_trio.service.port.limits import PortLimits

CONNECTIONS = 2_400
AT_ONCE = 40
ODD_BYTES = (b"\xff", b"\0", b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b",", b"\x80", b"\x7f")
ODD_HEADERS = (
    b"Host: xn--a",
    b"Host: \xff",
    b"Connection: \xff",
    b"Sec-WebSocket-Protocol: \xff",
    b"Sec-WebSocket-Protocol: klbr.v2, klbr.token.\xff",
    b"Sec-WebSocket-Extensions: permessage-deflate; \xff",
    b"Sec-WebSocket-Key: ",
    b"Sec-WebSocket-Version: 99999999999999999999",
    b"Content-Length: 99999999999999999999999",
    b"Content-Length: -1",
    b"Transfer-Encoding: chunked",
    b"Expect: 100-continue",
    b" folded: line",
    b"Origin: null",
    b"Upgrade: h2c",
)


def mutate(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0:
                changed[at:at] = rng.choice(ODD_BYTES)
            case 1:
                del changed[at : at + rng.randint(1, 8)]
            case 2 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case _:
                changed[at:at] = changed[at : at + rng.randint(1, 20)]
    return bytes(changed)


def hostile_head(rng: random.Random, house: House) -> bytes:
    head = house.request(upgrade=rng.random() < 0.7)
    lines = head.split(b"\r\n")
    for _ in range(rng.randrange(3)):
        lines.insert(rng.randrange(1, len(lines) - 1), rng.choice(ODD_HEADERS))
    head = b"\r\n".join(lines)
    return mutate(rng, head) if rng.random() < 0.8 else head


def hostile_frame(rng: random.Random) -> bytes:
    opcode = rng.choice((TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG, rng.randrange(16)))
    payload = rng.randbytes(rng.choice((0, 1, 2, 5, 125, 126, 127, 300, 70_000)))
    if opcode == CLOSE and rng.random() < 0.7:
        payload = close_payload(rng.choice((1000, 1005, 1006, 1015, 999, 5000, 2000)), "\u00e9")
    return client_frame(
        opcode,
        payload,
        fin=rng.random() < 0.7,
        rsv=rng.choice((0, 0, 0, 0, 1, 2, 4, 7)),
        masked=rng.random() < 0.95,
    )


def hostile_frames(rng: random.Random) -> bytes:
    data = b"".join(hostile_frame(rng) for _ in range(rng.randint(1, 8)))
    return mutate(rng, data) if rng.random() < 0.5 else data


async def attack(house: House, seed: int) -> None:
    rng = random.Random(seed)
    shakes_hands = rng.random() < 0.6
    data = (
        house.request(upgrade=True) + hostile_frames(rng)
        if shakes_hands
        else hostile_head(rng, house) + (hostile_frames(rng) if rng.random() < 0.5 else b"")
    )
    stream = await trio.open_tcp_stream(*house.address)
    try:
        while data:
            size = rng.choice((1, 7, 100, len(data), len(data)))
            await stream.send_all(data[:size])
            data = data[size:]
            if size < len(data) and rng.random() < 0.1:
                await trio.lowlevel.checkpoint()
            if rng.random() < 0.02:
                break
        await part(rng, stream)
    except trio.BrokenResourceError:
        pass
    finally:
        await trio.aclose_forcefully(stream)


async def part(rng: random.Random, stream: trio.SocketStream) -> None:
    match rng.randrange(4):
        case 0:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        case 1:
            await stream.send_eof()
            with trio.move_on_after(0.05):
                while await stream.receive_some(65_536):
                    pass
        case 2:
            with trio.move_on_after(0.05):
                await stream.receive_some(65_536)
        case _:
            pass


@pytest.mark.slow
async def test_hostile_connections_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    limits = PortLimits(
        head_seconds=1,
        linger_seconds=0.1,
        message_seconds=1,
        close_seconds=0.2,
        message_bytes=65_536,
    )
    async with open_house(limits=limits) as house, house.socket() as good:
        await good.say("here")
        assert await good.text() == "here"
        tasks_before = trio.lowlevel.current_statistics().tasks_living
        places = trio.CapacityLimiter(AT_ONCE)
        with trio.fail_after(3 * CEILING):
            async with trio.open_nursery() as nursery:

                async def one(seed: int) -> None:
                    async with places:
                        await attack(house, seed)

                for seed in range(CONNECTIONS):
                    nursery.start_soon(one, seed)
                for number in range(20):
                    await good.say(f"still here {number}")
                    assert await good.text() == f"still here {number}"
        await house.at_rest(connections=1)
        assert trio.lowlevel.current_statistics().tasks_living == tasks_before
        assert house.port.statistics().sockets == 1
        await good.say("and now")
        assert await good.text() == "and now"
        assert await house.is_alive()
        assert (await house.ask(house.request("/metrics", token=GOOD))).status == 200
    failures = [record for record in caplog.records if record.levelname == "ERROR"]
    assert not failures, failures[0].exc_info
