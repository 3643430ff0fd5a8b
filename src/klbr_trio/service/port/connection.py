"""One client's WebSocket as the rest of the service sees it.

`Connection` has text in, ready frames out, and one way to end. The library that parses
and answers pings stays behind it; every way in which a peer can go is `ConnectionGone`.
"""

from __future__ import annotations

import contextlib
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import attrs
import trio
import trio_websocket
from typing_extensions import override

from klbr_trio.errors import KlbrError
from klbr_trio.service.port.frames import ping_frame
from klbr_trio.service.port.limits import PortLimits
from klbr_trio.service.port.reply import SAFE_HEADERS
from klbr_trio.service.port.stream import ABNORMAL, RECEIVE_BYTES, FrameStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from klbr_trio.service.port.gate import Upgrade

NORMAL: Final = 1000
# What may lie in the kernels' buffers between us and a client that reads slowly must
# not count as its silence: so much more patience for each byte it has yet to read.
_SLOWEST_BYTES_PER_SECOND: Final = 65_536
_BUFFERED_BYTES: Final = 8 * 1024 * 1024
_PARSER_FAULTS: Final = frozenset({1002, 1007})  # the library notes them and says nothing

logger: Final = logging.getLogger("klbr_trio.service")


class ConnectionGone(KlbrError):
    """The connection has ended; a goodbye, not a failure.

    Attributes:
        code: The WebSocket close code, 1006 if there was none.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@attrs.frozen
class Binary:
    """Stands for a binary message; what it held is not kept."""

    size: int


@attrs.define(eq=False, repr=False)
class Connection:
    """An open WebSocket.

    One task calls `receive` in a loop and never waits for long in between, since only
    a connection that is read sees pings, closes and vanished peers. Any task may send.

    Attributes:
        peer: Who it is, for logs.
        may_write: False for who came with a token that only lets one look.
    """

    peer: str
    _socket: trio_websocket.WebSocketConnection
    _stream: FrameStream
    _limits: PortLimits
    may_write: bool = True

    @override
    def __repr__(self) -> str:
        state = "closing" if self._stream.is_closing else "open"
        return f"<Connection {self.peer} {state}>"

    @property
    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._stream.is_closing

    async def receive(self) -> str | Binary:
        """The next message.

        Raises:
            ConnectionGone: There is no next message.
        """
        try:
            message = await self._socket.get_message()
        except trio_websocket.ConnectionClosed as exc:
            raise ConnectionGone(self._code(exc)) from None
        if self._stream.is_closing:
            raise ConnectionGone(self._code())
        return message if isinstance(message, str) else Binary(len(message))

    async def send_frames(self, frames: Sequence[bytes]) -> None:
        """Write ready frames in one go; they are with the kernel when this returns.

        Raises:
            ConnectionGone: The connection is closing, or the client has gone, or it
                took nothing for the time that the limits name.

        Cancellation: before the first byte nothing happened; after it the connection
        is cut by force.
        """
        try:
            await self._stream.send_frames(frames)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ConnectionGone(self._code()) from None

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Say goodbye and close; by force after the time that the limits name.

        From here on nothing is sent or received. Doing it again is harmless.

        Cancellation: shielded for that time.
        """
        if self._stream.is_shut:
            return
        fault = self._socket.closed
        if fault is not None and fault.code in _PARSER_FAULTS:
            code, reason = fault.code, "the frames can't be read"
        with trio.move_on_after(self._limits.close_seconds, shield=True):
            await self._part(code, reason)
        self._stream.abort()

    def abort(self) -> None:
        """Cut the connection by force, at once."""
        self._stream.abort()

    async def keep_alive(self) -> None:
        """Ping a silent client and cut it when it stays silent; ends with the connection."""
        with contextlib.suppress(ConnectionGone):
            while True:
                await trio.sleep_until(self._stream.heard_at + self._limits.ping_seconds)
                asked_at = trio.current_time()
                if self._stream.heard_at + self._limits.ping_seconds > asked_at:
                    continue
                await self.send_frames([ping_frame()])
                await trio.sleep(self._patience())
                if self._stream.heard_at < asked_at and self._stream.is_listening:
                    logger.debug("%s does not answer pings, cut", self.peer)
                    self._stream.abort()
                    return

    def _patience(self) -> float:
        unread = min(self._stream.unheard_bytes, _BUFFERED_BYTES)
        return self._limits.pong_seconds + unread / _SLOWEST_BYTES_PER_SECOND

    async def _part(self, code: int, reason: str) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._discard)
                await self._stream.farewell(code, reason)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass

    async def _discard(self) -> None:
        # The library's reader stops at a message that nobody takes, and then sees
        # neither the peer's close frame nor its end.
        with contextlib.suppress(trio_websocket.ConnectionClosed):
            while True:
                await self._socket.get_message()
        self._stream.reading_over.set()

    def _code(self, closed: trio_websocket.ConnectionClosed | None = None) -> int:
        if self._stream.close_code is not None:
            return self._stream.close_code
        reason = closed.reason if closed is not None else self._socket.closed
        return int(reason.code) if reason is not None else ABNORMAL


@asynccontextmanager
async def open_connection(
    transport: trio.SocketStream, upgrade: Upgrade, *, rest: bytes, peer: str, limits: PortLimits
) -> AsyncGenerator[Connection]:
    """Accept the handshake, and keep the connection read and alive until the block ends.

    Who opens it says goodbye by `Connection.close`; else the end of the block cuts it.

    Args:
        transport: The accepted connection; it is closed when the block ends.
        upgrade: The handshake as it was judged.
        rest: The bytes that came behind the handshake's head.
        peer: Who it is, for logs.
        limits: The bounds of sizes and times.
    """
    stream = FrameStream(transport, _handshake(upgrade), rest, limits)
    try:
        async with trio.open_nursery() as nursery:
            request = await trio_websocket.wrap_server_stream(
                nursery,
                stream,
                max_message_size=limits.message_bytes,
                receive_buffer_size=RECEIVE_BYTES,
            )
            socket = await request.accept(
                subprotocol=upgrade.subprotocol,
                extra_headers=[(k.encode(), v.encode()) for k, v in SAFE_HEADERS],
            )
            connection = Connection(peer, socket, stream, limits, upgrade.may_write)
            nursery.start_soon(connection.keep_alive)
            yield connection
            nursery.cancel_scope.cancel()
    finally:
        stream.abort()


def _handshake(upgrade: Upgrade) -> bytes:
    """The handshake that the library reads: ours, with nothing of the client's but its key."""
    lines = [
        "GET / HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {upgrade.key}",
    ]
    if upgrade.subprotocol is not None:
        lines.append(f"Sec-WebSocket-Protocol: {upgrade.subprotocol}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")
