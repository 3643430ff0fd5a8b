"""The bytes of one WebSocket: whole frames out, measured frames in.

`FrameStream` stands between a socket and the WebSocket library. Rules that hold here
and nowhere else:

- Bytes go out under one lock, a whole frame or a whole batch of frames at a time. A
  write that ends half-way, for whatever reason, ends the connection by force.
- The close frame is the last frame. What would follow it is dropped or refused.
- A write may take as long as it likes while the peer takes anything at all.
- The library reads a handshake that we wrote, then nothing until its answer is out,
  then only bytes that the meter has passed.
- Only `abort` and `farewell` close the socket; the library's `aclose` ends its reading.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Final

import attrs
import trio
from typing_extensions import override

from klbr_trio.service.port.frames import close_frame, is_close
from klbr_trio.service.port.limits import PortLimits
from klbr_trio.service.port.meter import Meter, Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

RECEIVE_BYTES: Final = 65_536
SEND_BYTES: Final = 262_144  # a batch is written in joins of this size
# What a client that doesn't read may cost the kernel, which would give it megabytes.
SEND_BUFFER_BYTES: Final = 262_144
FRAMES_A_READ: Final = 256  # then the other tasks get their turn
SENDS_A_STALL: Final = 10

TOO_SLOW: Final = 1013
ABNORMAL: Final = 1006


@attrs.define(eq=False)
class FrameStream(trio.abc.Stream):
    """One socket after its handshake was judged.

    Attributes:
        heard_at: When the peer last sent anything, on Trio's clock.
        unheard_bytes: How much was written since then.
        close_code: The code that the connection ended with, as far as it is known here.
        reading_over: Set once the library's reader will ask for nothing more.
        is_listening: Whether the peer would be heard now; it is not while the library
            hands over what came before.
    """

    _transport: trio.SocketStream
    _handshake: bytes
    _held: bytes
    _limits: PortLimits
    heard_at: float = attrs.field(factory=trio.current_time, init=False)
    unheard_bytes: int = attrs.field(default=0, init=False)
    close_code: int | None = attrs.field(default=None, init=False)
    reading_over: trio.Event = attrs.field(factory=trio.Event, init=False)
    is_listening: bool = attrs.field(default=False, init=False)
    _answered: trio.Event = attrs.field(factory=trio.Event, init=False)
    _sending: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock, init=False)
    _parting: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _meter: Meter = attrs.field(init=False)
    _close_sent: bool = attrs.field(default=False, init=False)
    _peer_gone: bool = attrs.field(default=False, init=False)
    _shut: bool = attrs.field(default=False, init=False)
    _units_seen: int = attrs.field(default=0, init=False)
    _unit_began: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._meter = Meter(
            message_bytes=self._limits.message_bytes, pieces=self._limits.message_pieces
        )
        self._transport.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    @property
    def is_shut(self) -> bool:
        """Whether the socket has been closed from this side."""
        return self._shut

    @property
    def is_closing(self) -> bool:
        """Whether the close frame is out or the socket closed; no frame can follow."""
        return self._close_sent or self._shut

    @override
    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next bytes that are fit to be parsed, or nothing at the end.

        A violation is answered with a close frame and read as the end.
        """
        data = b""
        try:
            data = await self._next_bytes()
        finally:
            if not data:
                self.reading_over.set()
        return data

    @override
    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write one frame of the library's own: the handshake's answer, a pong, a close."""
        frame = bytes(data)
        async with self._sending:
            if self._close_sent:
                return
            self._close_sent = self._answered.is_set() and is_close(frame)
            await self._write(frame)
            self._answered.set()

    @override
    async def wait_send_all_might_not_block(self) -> None:
        await self._transport.wait_send_all_might_not_block()

    async def send_frames(self, frames: Sequence[bytes]) -> None:
        """Write ready frames, in order; no other frame comes between those of one join.

        Raises:
            trio.ClosedResourceError: The connection was closed from this side.
            trio.BrokenResourceError: The peer has gone, or takes nothing any more.

        Cancellation: before the first byte nothing happened; after it the connection
        is ended by force, since half a batch can't be taken back.
        """
        begun = finished = False
        try:
            for join in _joins(frames):
                await self._send_join(join)
                begun = True
            finished = True
        finally:
            if begun and not finished and not self._close_sent:
                self.abort()

    async def farewell(self, code: int, reason: str) -> None:
        """Send a close frame unless one is out, and close once the peer has hung up.

        The library's reader must be ending or somebody must take its messages. The
        caller bounds the time.
        """
        async with self._parting:
            if self._shut:
                return
            await self._send_close(code, reason)
            await self.reading_over.wait()
            if not (self._peer_gone or self._meter.peer_closed):
                self._transport.socket.shutdown(socket.SHUT_WR)
                while await self._transport.receive_some(RECEIVE_BYTES):
                    pass
            self._shut = True
            self._transport.socket.close()

    def abort(self) -> None:
        """Close the socket by force: what the peer has not taken is thrown away."""
        if self._shut:
            return
        self._shut = True
        if self.close_code is None:
            self.close_code = ABNORMAL
        with contextlib.suppress(OSError):
            self._transport.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.socket.close()
        self._answered.set()

    @override
    async def aclose(self) -> None:
        """End the library's reading; the socket stays open for the farewell."""
        self.reading_over.set()
        await trio.lowlevel.checkpoint()

    async def _next_bytes(self) -> bytes:
        if self._handshake:
            await trio.lowlevel.checkpoint()
            handshake, self._handshake = self._handshake, b""
            return handshake
        await self._answered.wait()
        if self._shut or self.reading_over.is_set():
            raise trio.ClosedResourceError("this connection has been closed")
        fit = b""
        if self._meter.violation is None:
            fit = self._measure(await self._take_held() or await self._receive())
        if self._meter.violation is not None and not fit:
            await self._send_close(self._meter.violation.code, self._meter.violation.reason)
        return fit

    def _measure(self, data: bytes) -> bytes:
        size = self._meter.take(data, frames=FRAMES_A_READ)
        self._held = data[size:]
        if self._meter.units != self._units_seen:
            self._units_seen = self._meter.units
            self._unit_began = trio.current_time()
        return data[:size]

    async def _take_held(self) -> bytes:
        held, self._held = self._held, b""
        if held:
            await trio.lowlevel.checkpoint()
        return held

    async def _receive(self) -> bytes:
        deadline = float("inf")
        if self._meter.unfinished:
            deadline = self._unit_began + self._limits.message_seconds
        with trio.move_on_at(deadline):
            return await self._hear()
        self._meter.violation = Violation(TOO_SLOW, "a message took too long to arrive")
        return b""

    async def _hear(self) -> bytes:
        self.is_listening = True
        try:
            data = bytes(await self._transport.receive_some(RECEIVE_BYTES))
        finally:
            self.is_listening = False
        self.heard_at, self.unheard_bytes = trio.current_time(), 0
        self._peer_gone = not data
        return data

    async def _send_close(self, code: int, reason: str) -> None:
        async with self._sending:
            if not self._close_sent:
                self._close_sent = True
                self.close_code = code
                await self._write(close_frame(code, reason))

    async def _send_join(self, join: bytes) -> None:
        # A free lock is taken without a pass of the scheduler: the write has its own,
        # and with many followers these passes are most of what a frame costs.
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            if self._close_sent:
                raise trio.ClosedResourceError("the close frame has been sent")
            await self._write(join)
        finally:
            self._sending.release()

    async def _write(self, data: bytes) -> None:
        view, at = memoryview(data), 0
        try:
            while at < len(view):
                if self._shut:
                    raise trio.ClosedResourceError("this connection has been closed")
                at += await self._send_some(view[at:])
        except OSError as exc:
            self._peer_gone = not self._shut
            raise trio.BrokenResourceError(f"the peer has gone: {exc}") from exc
        finally:
            self.unheard_bytes += at
            if 0 < at < len(view):
                self.abort()

    async def _send_some(self, view: memoryview) -> int:
        # The kernel calls a full socket writable only once a third of its buffer is
        # free. Asking again after a while takes what is free, so that a client counts
        # as stalled when it took nothing, and not when it took little.
        given_up_at = trio.current_time() + self._limits.stall_seconds
        while trio.current_time() < given_up_at:
            with trio.move_on_after(self._limits.stall_seconds / SENDS_A_STALL):
                return await self._transport.socket.send(view)
            if self._shut:
                raise trio.ClosedResourceError("this connection has been closed")
        self.close_code = TOO_SLOW
        self.abort()
        raise trio.BrokenResourceError("the peer takes nothing")


def _joins(frames: Sequence[bytes]) -> list[bytes]:
    joins: list[bytes] = []
    batch: list[bytes] = []
    size = 0
    for frame in frames:
        if batch and size + len(frame) > SEND_BYTES:
            joins.append(b"".join(batch))
            batch, size = [], 0
        batch.append(frame)
        size += len(frame)
    if batch:
        joins.append(b"".join(batch))
    return joins
