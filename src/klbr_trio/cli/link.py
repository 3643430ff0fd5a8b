"""One WebSocket to the service: messages out, frames in."""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import h11
import trio
import trio_websocket
import wsproto.utilities

from klbr_trio.cli.exits import OF_WIRE_CODE, Exit, Problem
from klbr_trio.cli.place import Place, TcpPlace, UnixPlace
from klbr_trio.errors import sole
from klbr_trio.service.port.gate import SUBPROTOCOL
from klbr_trio.service.port.local_socket import socket_address
from klbr_trio.wire.codec import dumps

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from klbr_trio.wire.client import ClientMessage

Frame: TypeAlias = dict[str, Any]

CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0
"""> the service's own five seconds for Stop and Reset, and a slow disk's commit."""

_FRAME_BYTES: Final = 2 * 1024 * 1024
_STOPPING: Final = 1012
_UNAUTHORISED: Final = 4401
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid


# What the library's reader raises is up to what it was sent.
_NO_WEBSOCKET: Final = (
    trio_websocket.HandshakeError,
    trio_websocket.ConnectionClosed,
    wsproto.utilities.ProtocolError,
    h11.ProtocolError,
)


class LinkLost(Exception):
    """The connection has ended.

    Attributes:
        code: The WebSocket close code, 1006 if there was none.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def problem(self) -> Problem:
        """What a command says that does not connect again."""
        if self.code == _UNAUTHORISED:
            return Problem(Exit.UNAUTHORISED, "the token is not the service's")
        if self.code == _STOPPING:
            return Problem(Exit.TRY_AGAIN, "the service is stopping; try again when it is back")
        return Problem(
            Exit.UNREACHABLE, f"the service closed the connection ({self.code}); try again"
        )


@attrs.define(eq=False)
class Link:
    """An open connection; make it with `open_link`."""

    _socket: trio_websocket.WebSocketConnection
    _asked: int = 0

    async def send(self, message: ClientMessage) -> str:
        """The message is on its way; what answers it carries the id that this returns.

        Raises:
            LinkLost: The connection has ended.
        """
        self._asked += 1
        request_id = f"cli-{self._asked}"
        values = attrs.asdict(attrs.evolve(message, request_id=request_id))
        present = {name: value for name, value in values.items() if value is not None}
        try:
            await self._socket.send_message(dumps({"type": message.type, **present}))
        except trio_websocket.ConnectionClosed as exc:
            raise _lost(exc) from None
        return request_id

    async def receive(self) -> Frame:
        """The next frame.

        Raises:
            LinkLost: The connection has ended.
        """
        try:
            text = await self._socket.get_message()
        except trio_websocket.ConnectionClosed as exc:
            raise _lost(exc) from None
        frame = json.loads(text)
        if not isinstance(frame, dict):
            raise Problem(Exit.FAILED, "what answers there is not a klbr service")
        return frame

    async def reply(self, *request_ids: str) -> Frame:
        """The next frame that answers one of these requests; others are passed over.

        Raises:
            LinkLost: The connection has ended.
            Problem: None came in time.
        """
        with trio.move_on_after(ANSWER_S):
            while True:
                frame = await self.receive()
                if frame.get("request_id") in request_ids:
                    return frame
        raise Problem(Exit.UNREACHABLE, f"the service gave no answer within {ANSWER_S:.0f} s")

    async def ask(self, message: ClientMessage) -> Frame:
        """The answer to the message.

        Raises:
            LinkLost: The connection has ended.
            Problem: The answer is an error, or none came in time.
        """
        frame = await self.reply(await self.send(message))
        check(frame)
        return frame


def check(frame: Frame) -> None:
    """Nothing, if the frame is no error.

    Raises:
        Problem: It is one.
    """
    if frame.get("type") == "error":
        code = str(frame.get("code"))
        raise Problem(OF_WIRE_CODE.get(code, Exit.FAILED), str(frame.get("message")))


@asynccontextmanager
async def open_link(places: Sequence[Place]) -> AsyncGenerator[Link]:
    """A connection to the first of the places that answers.

    Raises:
        Problem: None answers, or the service refuses us.
    """
    stream, place = await _connect(places)
    try:
        async with trio.open_nursery() as nursery:
            yield Link(await _handshake(nursery, stream, place))
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise _meant(sole(group)) from None
    finally:
        await trio.aclose_forcefully(stream)


def _meant(error: BaseException) -> BaseException:
    """What an error of the library's reader, or of our own talk, is to a command."""
    if isinstance(error, trio_websocket.ConnectionRejected):
        return _rejected(error.status_code)
    if isinstance(error, _NO_WEBSOCKET):
        return Problem(
            Exit.UNREACHABLE, "what answers there speaks no WebSocket; check the address"
        )
    return error


async def _handshake(
    nursery: trio.Nursery,
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
    place: Place,
) -> trio_websocket.WebSocketConnection:
    headers = [] if place.token is None else [(b"authorization", f"Bearer {place.token}".encode())]
    with trio.move_on_after(CONNECT_S):
        return await trio_websocket.wrap_client_stream(
            nursery,
            stream,
            place.name if isinstance(place, TcpPlace) else "localhost",
            "/",
            subprotocols=[SUBPROTOCOL],
            extra_headers=headers,
            max_message_size=_FRAME_BYTES,
            receive_buffer_size=65_536,
        )
    raise Problem(Exit.UNREACHABLE, f"the service did not answer within {CONNECT_S:.0f} s")


async def _connect(
    places: Sequence[Place],
) -> tuple[trio.SocketStream | trio.SSLStream[trio.SocketStream], Place]:
    failure = ""
    for place in places:
        try:
            with trio.fail_after(CONNECT_S):
                return await _open(place), place
        except* (OSError, trio.TooSlowError) as group:
            failure = str(sole(group)) or "no answer in time"
    where = places[-1].name if isinstance(places[-1], TcpPlace) else str(places[-1].path)
    raise Problem(
        Exit.UNREACHABLE, f"the service at {where} can't be reached: {failure}; is it running?"
    )


async def _open(place: Place) -> trio.SocketStream | trio.SSLStream[trio.SocketStream]:
    match place:
        case UnixPlace(path):
            with socket_address(path) as address:
                stream = await trio.open_unix_socket(address)
            _check_owner(stream, path)
            return stream
        case TcpPlace(host, port):
            if place.tls:
                return await _open_tls(place)
            return await trio.open_tcp_stream(host, port)


async def _open_tls(place: TcpPlace) -> trio.SSLStream[trio.SocketStream]:
    context = ssl.create_default_context()
    stream = await trio.open_ssl_over_tcp_stream(
        place.host, place.port, ssl_context=context, https_compatible=True
    )
    shaken = False
    try:
        await stream.do_handshake()
        shaken = True
    except trio.BrokenResourceError as exc:
        raise Problem(
            Exit.UNREACHABLE,
            f"{place.name} is not trusted: {exc.__cause__}; SSL_CERT_FILE names a file with the "
            "certificates to trust",
        ) from None
    finally:
        if not shaken:
            stream.transport_stream.socket.close()
    return stream


def _check_owner(stream: trio.SocketStream, path: os.PathLike[str]) -> None:
    """The token goes to no other user's process."""
    raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    assert isinstance(raw, bytes)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.geteuid():
        raise Problem(Exit.CONFIGURATION, f"{path}: another user's process listens there")


def _rejected(status: int) -> Problem:
    known: Mapping[int, tuple[Exit, str]] = {
        401: (Exit.UNAUTHORISED, "the service wants its token; name it with --token-file"),
        403: (Exit.UNAUTHORISED, "the service does not take us"),
        421: (Exit.CONFIGURATION, "the service does not go by that name; check --url"),
        429: (Exit.TRY_AGAIN, "too many wrong tokens were tried; try again later"),
        503: (Exit.TRY_AGAIN, "the service is stopping or full; try again"),
    }
    code, message = known.get(
        status, (Exit.UNREACHABLE, f"what answers there is no klbr service (HTTP {status})")
    )
    return Problem(code, message)


def _lost(exc: trio_websocket.ConnectionClosed) -> LinkLost:
    return LinkLost(1006 if exc.reason is None else int(exc.reason.code))
