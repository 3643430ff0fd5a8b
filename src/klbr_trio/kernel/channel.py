"""The host's end of the socket to a worker."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import attrs
import trio

from klbr_trio.kernel.messages import LARGEST_FRAME, ProtocolViolation, decode, encode

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from klbr_trio.kernel.messages import Message

_READ = 64 * 1024


class FrameBuffer:
    """Bytes as they come, frames as they are complete."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self) -> bytes | None:
        """The next whole frame's body, if there is one.

        Raises:
            ProtocolViolation: The next frame states a length that no worker sends.
        """
        if len(self._data) < 4:
            return None
        size = int.from_bytes(self._data[:4], "big")
        if size > LARGEST_FRAME:
            raise ProtocolViolation(f"a frame of {size:,} bytes")
        if len(self._data) < 4 + size:
            return None
        body = bytes(self._data[4 : 4 + size])
        del self._data[: 4 + size]
        return body


@attrs.define(eq=False)
class Channel:
    """Whole messages to and from one worker."""

    _stream: trio.SocketStream
    _buffer: FrameBuffer = attrs.field(factory=FrameBuffer)
    _sending: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock)
    _half_sent: bool = False
    ended: trio.Event = attrs.field(factory=trio.Event)
    """Set once the worker's end is closed."""

    @classmethod
    def over(cls, sock: socket.socket) -> Channel:
        """Takes responsibility for closing `sock`."""
        return cls(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))

    async def send(self, message: Mapping[str, object]) -> None:
        """Sends one message; a worker that is gone is not this function's business.

        Cancellation: part of the frame may have been sent; nothing is sent after it any more,
        and the kernel must be killed.
        """
        frame = encode(message)
        async with self._sending:
            if self._half_sent:
                return
            self._half_sent = True
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._stream.send_all(frame)
            self._half_sent = False

    async def receive(self) -> Message | None:
        """The next message; None once the worker's end is closed.

        Raises:
            ProtocolViolation: It isn't one.
        """
        while (body := self._buffer.next()) is None:
            try:
                data = await self._stream.receive_some(_READ)
            except trio.BrokenResourceError:
                data = b""
            if not data:
                self.ended.set()
                return None
            self._buffer.feed(data)
        return decode(body)

    def close(self) -> None:
        self._stream.socket.close()
