"""The framed stream alone, over a socket pair, where each moment can be held still."""

from __future__ import annotations

import socket

import pytest
import trio
from port_house import CEILING, TEXT, client_frame
from trio.testing import wait_all_tasks_blocked

from klbr_trio.service.port.frames import frame
from klbr_trio.service.port.limits import PortLimits
from klbr_trio.service.port.stream import FRAMES_A_READ, FrameStream

HANDSHAKE = b"a handshake of ours"
ANSWER = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"


def stream_pair(
    held: bytes = b"", *, limits: PortLimits | None = None
) -> tuple[FrameStream, trio.SocketStream]:
    ours, theirs = socket.socketpair()
    return (
        FrameStream(
            trio.SocketStream(trio.socket.from_stdlib_socket(ours)),
            HANDSHAKE,
            held,
            limits or PortLimits(),
        ),
        trio.SocketStream(trio.socket.from_stdlib_socket(theirs)),
    )


async def opened(
    held: bytes = b"", *, limits: PortLimits | None = None
) -> tuple[FrameStream, trio.SocketStream]:
    stream, peer = stream_pair(held, limits=limits)
    assert await stream.receive_some() == HANDSHAKE
    await stream.send_all(ANSWER)
    assert await peer.receive_some(1000) == ANSWER
    return stream, peer


async def test_nothing_is_read_behind_the_handshake_before_its_answer_is_out() -> None:
    early = client_frame(TEXT, b"early")
    stream, peer = stream_pair(early)
    async with peer:
        assert await stream.receive_some() == HANDSHAKE
        read: list[bytes] = []

        async def reader() -> None:
            read.append(await stream.receive_some())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader)
            await wait_all_tasks_blocked()
            assert read == []
            await stream.send_all(ANSWER)
        assert read == [early]
        stream.abort()


async def test_a_read_passes_so_many_frames_and_keeps_the_rest() -> None:
    many = client_frame(TEXT, b"x") * (FRAMES_A_READ * 2 + 3)
    stream, peer = await opened(many)
    async with peer:
        reads = [await stream.receive_some() for _ in range(3)]
        assert b"".join(reads) == many
        assert [len(read) // len(client_frame(TEXT, b"x")) for read in reads] == [
            FRAMES_A_READ,
            FRAMES_A_READ,
            3,
        ]
        stream.abort()


async def test_after_aclose_nothing_is_read_and_the_socket_is_still_open() -> None:
    stream, peer = await opened()
    async with peer:
        await stream.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()
        await stream.send_frames([frame("last words")])
        assert await peer.receive_some(1000) == frame("last words")
        stream.abort()


@pytest.mark.parametrize("steps", range(12))
async def test_a_batch_cancelled_anywhere_is_sent_whole_or_not_at_all_or_ends_the_stream(
    steps: int,
) -> None:
    """Also between two frames: whole ones went out, yet nobody knows which."""
    batch = [frame("x" * 150_000), frame("y" * 150_000)]
    whole = sum(map(len, batch))
    stream, peer = await opened()
    async with peer:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_frames, batch)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        got = 0
        with trio.move_on_after(0.02):
            while data := await peer.receive_some(65_536):
                got += len(data)
        assert stream.is_shut or got in {0, whole}
        stream.abort()


async def test_a_waiting_batch_that_is_cancelled_leaves_the_one_before_it_whole() -> None:
    stream, peer = await opened()
    async with peer, trio.open_nursery() as nursery:
        big = frame("x" * 1_000_000)
        nursery.start_soon(stream.send_frames, [big])
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as waiting:
                waiting.start_soon(stream.send_frames, [frame("never")])
                await wait_all_tasks_blocked()
                scope.cancel()
        assert not stream.is_shut
        got = b""
        with trio.fail_after(CEILING):
            while len(got) < len(big):
                got += await peer.receive_some(65_536)
            await stream.send_frames([frame("after")])
            got += await peer.receive_some(1000)
        assert got == big + frame("after")
        stream.abort()


async def test_a_peer_that_takes_a_little_now_and_then_is_not_stalled() -> None:
    """A blocked writer is woken only once much room is free; taking less counts too."""
    stream, peer = await opened(limits=PortLimits(stall_seconds=0.2))
    async with peer, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_frames, [frame("x" * 900_000)])
        got = 0
        with trio.fail_after(CEILING):
            for _ in range(20):
                got += len(await peer.receive_some(30_000))
                await trio.sleep(0.04)
            assert not stream.is_shut
            while got < len(frame("x" * 900_000)):
                got += len(await peer.receive_some(65_536))
        stream.abort()


async def test_a_peer_that_takes_nothing_is_stalled() -> None:
    stream, peer = await opened(limits=PortLimits(stall_seconds=0.2))
    async with peer:
        with trio.fail_after(CEILING), pytest.raises(trio.BrokenResourceError):
            await stream.send_frames([frame("x" * 1_000_000)] * 3)
        assert stream.is_shut
        assert stream.close_code == 1013


async def test_an_abort_wakes_whoever_waits() -> None:
    stream, peer = await opened()
    async with peer, trio.open_nursery() as nursery:

        async def reads() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive_some()

        async def writes() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await stream.send_frames([frame("x" * 1_000_000)] * 3)

        for task in (reads, writes, writes):
            nursery.start_soon(task)
        await wait_all_tasks_blocked()
        stream.abort()


async def test_frames_refused_after_a_close_frame() -> None:
    stream, peer = await opened()
    async with peer, trio.open_nursery() as nursery:
        nursery.start_soon(stream.farewell, 1000, "")
        await wait_all_tasks_blocked()
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_frames([frame("late")])
        await stream.send_all(b"\x8a\x00")  # a pong of the library: dropped, no error
        assert await peer.receive_some(1000) == b"\x88\x02\x03\xe8"
        await stream.aclose()
        await peer.send_eof()
    assert stream.is_shut
