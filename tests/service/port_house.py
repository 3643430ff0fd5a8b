"""A port on a free number with an echo behind it, and a client that can do anything."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from klbr_trio.service.port.accept import Port, serve_port
from klbr_trio.service.port.connection import Binary, Connection
from klbr_trio.service.port.frames import frame
from klbr_trio.service.port.gate import Policy, bound_hosts, own_origins
from klbr_trio.service.port.limits import PortLimits
from klbr_trio.service.port.reply import Response

GOOD = "0123456789abcdef0123456789abcdef"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
CEILING = 20.0

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA


def client_frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True
) -> bytes:
    """A frame as a client sends it, or wrongly so."""
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    bit = 0x80 if masked else 0
    size = len(payload)
    if size < 126:
        header = bytes((first, bit | size))
    elif size < 65536:
        header = struct.pack("!BBH", first, bit | 126, size)
    else:
        header = struct.pack("!BBQ", first, bit | 127, size)
    # The mask of zeros is a legal mask and keeps the payload readable.
    return header + (b"\0" * 4 if masked else b"") + payload


def close_payload(code: int, reason: str = "") -> bytes:
    return struct.pack("!H", code) + reason.encode()


@attrs.frozen
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


@attrs.define(eq=False)
class RawClient:
    """A client that is only a socket."""

    stream: trio.SocketStream
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def _more(self) -> bool:
        try:
            data = await self.stream.receive_some(65536)
        except trio.BrokenResourceError:
            return False
        self._buffer += data
        return bool(data)

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not await self._more():
                raise EOFError(bytes(self._buffer))
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def head(self) -> Reply:
        """The status line and headers; what follows stays to be read."""
        with trio.fail_after(CEILING):
            while b"\r\n\r\n" not in self._buffer:
                if not await self._more():
                    raise EOFError(bytes(self._buffer))
        raw, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer[:] = rest
        status, *lines = raw.decode("ascii").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert len(headers) == len(lines), "a header is given twice"
        return Reply(int(status.split(" ")[1]), headers, b"")

    async def reply(self) -> Reply:
        """A whole reply, to the end of the connection."""
        found = await self.head()
        with trio.fail_after(CEILING):
            while await self._more():
                pass
        return attrs.evolve(found, body=bytes(self._buffer))

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: opcode and payload. Asserts that the server's frames are plain."""
        with trio.fail_after(CEILING):
            first, second = await self._take(2)
            assert first & 0xF0 == 0x80, "a server's frame is whole and has no reserved bits"
            assert second < 128, "a server's frame is not masked"
            size = second
            if second == 126:
                size = int.from_bytes(await self._take(2), "big")
            elif second == 127:
                size = int.from_bytes(await self._take(8), "big")
            return first & 0x0F, await self._take(size)

    async def text(self) -> str:
        opcode, payload = await self.frame()
        assert opcode == TEXT, (opcode, payload)
        return payload.decode()

    async def say(self, text: str) -> None:
        await self.send(client_frame(TEXT, text.encode()))

    async def close_code(self) -> int:
        """The code of the server's close frame; other frames before it are skipped."""
        while True:
            opcode, payload = await self.frame()
            if opcode == CLOSE:
                return int.from_bytes(payload[:2], "big")

    async def is_cut(self) -> bool:
        """Wait until the server has closed; whether there was nothing more to read."""
        with trio.fail_after(CEILING):
            while await self._more():
                pass
        return not self._buffer

    async def ended(self) -> None:
        """Wait until the server has closed; what it sent is dropped."""
        with trio.fail_after(CEILING):
            while await self._more():
                self._buffer.clear()


@attrs.define(eq=False)
class House:
    address: tuple[str, int]
    port: Port
    handlers: trio.Nursery

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.address[1]}"

    def request(
        self,
        path: str = "/",
        *,
        method: str = "GET",
        host: str | None = None,
        token: str | None = GOOD,
        upgrade: bool = False,
        version: str = "1.1",
        extra: tuple[str, ...] = (),
    ) -> bytes:
        lines = [f"{method} {path} HTTP/{version}", f"Host: {host or self.host}"]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        if upgrade:
            lines += [
                "Upgrade: websocket",
                "Connection: keep-alive, Upgrade",
                "Sec-WebSocket-Version: 13",
                f"Sec-WebSocket-Key: {KEY}",
            ]
        return "\r\n".join([*lines, *extra, "", ""]).encode("latin-1")

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[RawClient]:
        stream = await trio.open_tcp_stream(*self.address)
        try:
            yield RawClient(stream)
        finally:
            await trio.aclose_forcefully(stream)

    @asynccontextmanager
    async def socket(self, *extra: str) -> AsyncGenerator[RawClient]:
        async with self.connect() as client:
            await client.send(self.request(upgrade=True, extra=extra))
            assert (await client.head()).status == 101
            yield client

    async def ask(self, request: bytes) -> Reply:
        async with self.connect() as client:
            await client.send(request)
            return await client.reply()

    async def is_alive(self) -> bool:
        reply = await self.ask(self.request("/healthz", token=None))
        return (reply.status, reply.body) == (200, b"ok\n")

    async def at_rest(self, *, connections: int = 0) -> None:
        """Wait until there are no more handler tasks than so many connections."""
        with trio.fail_after(CEILING):
            while len(self.handlers.child_tasks) > connections:  # noqa: ASYNC110 - asks trio itself
                await trio.sleep(0.01)
            assert self.port.connections <= connections


async def echo(connection: Connection) -> None:
    while True:
        message = await connection.receive()
        match message:
            case Binary(size=size):
                await connection.send_frames([frame(f"binary {size}")])
            case str():
                await connection.send_frames([frame(message)])


def answer(path: str) -> Response:
    return Response.line(200, f"this is {path}")


OnSocket = Callable[[Connection], Awaitable[None]]


@asynccontextmanager
async def open_house(
    on_socket: OnSocket = echo,
    *,
    on_http: Callable[[str], Response] = answer,
    limits: PortLimits | None = None,
    auth: bool = True,
) -> AsyncGenerator[House]:
    """A port that is served until the block ends."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listeners[0].socket.getsockname()
    hosts = bound_hosts([address])
    policy = Policy(
        hosts=hosts, origins=own_origins(hosts), tokens=(GOOD, "another") if auth else None
    )
    port = Port(policy=policy, limits=limits or PortLimits())
    async with trio.open_nursery() as listening:
        async with trio.open_nursery() as handlers:
            await listening.start(
                partial(
                    serve_port,
                    listeners,
                    handler_nursery=handlers,
                    port=port,
                    on_socket=on_socket,
                    on_http=on_http,
                )
            )
            yield House(address, port, handlers)
            handlers.cancel_scope.cancel()
        listening.cancel_scope.cancel()
