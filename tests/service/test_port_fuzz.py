"""Thousands of hostile connections, the same ones each time; then all is as before."""

from __future__ import annotations

import json
import random
import resource
import socket
import struct
from collections.abc import Callable
from pathlib import Path

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
from service_house import Service, open_service

from klbr_trio.service.port.accept import Port
from klbr_trio.service.port.gate import Policy, bound_hosts
from klbr_trio.service.port.limits import PortLimits
from klbr_trio.wire.client import TYPES

Frames = Callable[[random.Random], bytes]

CONNECTIONS = 3_600
TALKS = 1_800
WARMING = 200
AT_ONCE = 40
MEMORY_MIB = 30
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


async def attack(house: House, seed: int, frames: Frames) -> None:
    rng = random.Random(seed)
    shakes_hands = rng.random() < 0.6
    data = (
        house.request(upgrade=True) + frames(rng)
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


def hostile_message(rng: random.Random) -> bytes:
    """What a client may say, almost; none of it changes the good client's session."""
    fields: dict[str, object] = {
        "type": rng.choice((*TYPES, "approve", "ack", "")),
        "session_id": rng.choice(("bad", "../bad", "", "b" * 129, 7, None, "b\x00d")),
        "source": rng.choice(("fuzz", "", "\n", 1.5)),
        "text": rng.choice(("x", "\ud800", "\x00", "y" * 5000, [], 10**400)),
        "client_request_id": rng.choice((None, "k", "k" * 129)),
        "request_id": rng.choice((None, "r", {}, True)),
        "after_seq": rng.choice((0, -1, 2**53, 2**70, "1", 0.5)),
        "before_seq": rng.choice((1, 0, 2**53)),
        "limit": rng.choice((1, 0, -5, 10**9, None)),
        "role": "admin",
    }
    for name in rng.sample(sorted(fields), rng.randrange(4)):
        del fields[name]
    text = json.dumps(fields).encode()
    if rng.random() < 0.3:
        text = mutate(rng, text)
    if rng.random() < 0.05:
        text = b'{"type":' + b"[" * 20_000
    return client_frame(TEXT, text, masked=rng.random() < 0.98)


def hostile_talk(rng: random.Random) -> bytes:
    frames = [
        hostile_message(rng) if rng.random() < 0.8 else hostile_frame(rng)
        for _ in range(rng.randint(1, 12))
    ]
    return b"".join(frames)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def storm(house: House, seeds: range, frames: Frames) -> None:
    """Every attack of the seeds, so many at once."""
    places = trio.CapacityLimiter(AT_ONCE)

    async def one(seed: int) -> None:
        async with places:
            await attack(house, seed, frames)

    with trio.fail_after(6 * CEILING):
        async with trio.open_nursery() as nursery:
            for seed in seeds:
                nursery.start_soon(one, seed)


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


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
        await storm(house, range(WARMING), hostile_frames)
        await house.at_rest(connections=1)
        memory_before = resident_mib()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storm, house, range(WARMING, CONNECTIONS), hostile_frames)
            for number in range(20):
                await good.say(f"still here {number}")
                assert await good.text() == f"still here {number}"
        await house.at_rest(connections=1)
        assert resident_mib() - memory_before < MEMORY_MIB
        assert trio.lowlevel.current_statistics().tasks_living == tasks_before
        assert house.port.statistics().sockets == 1
        await good.say("and now")
        assert await good.text() == "and now"
        assert await house.is_alive()
        assert (await house.ask(house.request("/metrics", token=GOOD))).status == 200
    assert failures(caplog) == []


@pytest.mark.slow
async def test_a_whole_service_outlives_what_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_service(tmp_path, auth=GOOD) as service, service.caller(GOOD) as good:
        policy = Policy(hosts=bound_hosts([service.address]), tokens=None)
        async with trio.open_nursery() as nobody:
            house = House(service.address, Port(policy=policy), nobody)
            await service.store.ensure_session("calm")
            await good.replay("subscribe", "calm")
            await storm(house, range(WARMING), hostile_talk)
            await alone(service)
            tasks_before = trio.lowlevel.current_statistics().tasks_living
            memory_before = resident_mib()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(storm, house, range(WARMING, TALKS), hostile_talk)
                for number in range(10):
                    await service.store.append("calm", "scratchpad", {"text": str(number)})
                    record = await good.hear_event("scratchpad")
                    assert record["payload"]["text"] == str(number)
            await alone(service)
            assert resident_mib() - memory_before < MEMORY_MIB
            await no_more_tasks_than(tasks_before)
            assert (await good.ask("ping", timestamp=1))["timestamp"] == 1
            assert (await service.get("/readyz"))[0] == 200
            assert await service.store.history("calm", 10, 10) == []
    assert failures(caplog) == []


async def no_more_tasks_than(count: int) -> None:
    with trio.fail_after(CEILING):
        while trio.lowlevel.current_statistics().tasks_living > count:  # noqa: ASYNC110 - as above
            await trio.sleep(0.01)


async def alone(service: Service) -> None:
    """Wait until the service has nobody but the good client, and us who ask."""
    with trio.fail_after(CEILING):
        while True:
            _, body = await service.get("/metrics", token=GOOD)
            if "\nklbr_connections 2.0\n" in body:
                return
