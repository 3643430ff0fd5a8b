"""The port: accepts connections, answers HTTP, and hands over WebSockets.

Whatever one client does ends with its own connection: this is the boundary at which
the failures of a connection are contained, logged with an id and forgotten.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import trio
import trio_websocket
import wsproto.utilities

from klbr_trio.service.port.connection import Connection, ConnectionGone, open_connection
from klbr_trio.service.port.gate import Policy, Refuse, Serve, Upgrade, decide
from klbr_trio.service.port.guesses import Guesses
from klbr_trio.service.port.head import Head, HeadReader, HeadRefused
from klbr_trio.service.port.limits import PortLimits
from klbr_trio.service.port.lobby import Lobby
from klbr_trio.service.port.peer import Peer, peer_of
from klbr_trio.service.port.reply import Response
from klbr_trio.service.port.tls import serve_tls

if TYPE_CHECKING:
    import ssl

UNAUTHORISED: Final = 4401
INTERNAL: Final = 1011
STOPPING: Final = 1012
NORMAL: Final = 1000
LIVENESS_PATH: Final = "/healthz"

# So many addresses may fill their places in the lobby; one such share is for replies.
_ADDRESSES: Final = 3

OnSocket: TypeAlias = Callable[[Connection], Awaitable[None]]
OnHttp: TypeAlias = Callable[[str], Response]

logger: Final = logging.getLogger("klbr_trio.service")

# Ways in which a peer goes, however surprising; none of them is our failure.
_GOODBYES: Final = (
    ConnectionGone,
    trio_websocket.ConnectionClosed,
    wsproto.utilities.ProtocolError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    UnicodeError,
)


@attrs.frozen(kw_only=True)
class PortStatistics:
    """What a port holds at the moment.

    Attributes:
        connections: Everything accepted and not closed yet.
        unfinished_heads: Those whose request is not complete.
        sockets: Open WebSockets.
    """

    connections: int
    unfinished_heads: int
    sockets: int


def _lobby(port: Port) -> Lobby:
    limits = port.limits
    return Lobby(
        places=limits.unfinished_heads,
        all_places=_ADDRESSES * limits.unfinished_heads,
        seconds=limits.head_seconds,
    )


@attrs.define(eq=False, kw_only=True)
class Port:
    """What the port grants, and whom it has.

    Attributes:
        policy: Who may pass. It may be replaced at any time; the next request is
            judged by the new one. `enforce` also judges those who are inside.
        is_draining: While it is set, new WebSockets are refused with 503.
        connections: How many were accepted and are not closed yet.
        sockets: How many of them are open WebSockets.
        lobby: Those whose request is not complete.
        guesses: The wrong tokens of late.
        ids: What the next connections are called in the log.
    """

    policy: Policy
    limits: PortLimits = attrs.field(factory=PortLimits)
    is_draining: bool = False
    connections: int = attrs.field(default=0, init=False)
    sockets: int = attrs.field(default=0, init=False)
    lobby: Lobby = attrs.field(default=attrs.Factory(_lobby, takes_self=True), init=False)
    guesses: Guesses = attrs.field(factory=Guesses, init=False)
    ids: Iterator[int] = attrs.field(factory=lambda: itertools.count(1), init=False)
    _guests: dict[trio.CancelScope, Upgrade] = attrs.field(factory=dict, init=False)

    @property
    def most_connections(self) -> int:
        """Beyond so many a connection is closed without a word."""
        return self.limits.sockets + (_ADDRESSES + 1) * self.limits.unfinished_heads

    def enforce(self, policy: Policy) -> None:
        """From here on `policy` holds; sockets that it would not open are closed with 4401."""
        self.policy = policy
        for scope, upgrade in self._guests.items():
            if not policy.still_grants(upgrade):
                scope.cancel()

    @contextmanager
    def hosting(self, upgrade: Upgrade) -> Generator[trio.CancelScope]:
        """Inside the block a socket is served; cancelled when its token counts no more."""
        with trio.CancelScope() as scope:
            self._guests[scope] = upgrade
            try:
                # It may have been rotated since the head was read.
                if not self.policy.still_grants(upgrade):
                    scope.cancel()
                yield scope
            finally:
                del self._guests[scope]

    def statistics(self) -> PortStatistics:
        """What is held at the moment."""
        return PortStatistics(
            connections=self.connections,
            unfinished_heads=self.lobby.waiting,
            sockets=self.sockets,
        )


async def serve_port(
    listeners: Sequence[trio.SocketListener],
    *,
    handler_nursery: trio.Nursery,
    port: Port,
    on_socket: OnSocket,
    on_http: OnHttp,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the listeners until cancelled.

    Args:
        listeners: This takes responsibility for closing them.
        handler_nursery: One task a connection is spawned here; none of them raises.
            Cancelled, they close their WebSockets with 1012 and end.
        port: What is granted; it also counts who is there.
        on_socket: Serves one WebSocket; the connection is closed when it returns.
        on_http: Answers the paths that the policy names, `/healthz` excepted.
        task_status: Given the listeners once they are served.
    """
    desk = _Desk(port, on_socket, on_http)
    await trio.serve_listeners(
        desk.serve, list(listeners), handler_nursery=handler_nursery, task_status=task_status
    )


async def serve_encrypted_port(  # noqa: PLR0913 - a port's parts, and what TLS adds to them
    listeners: Sequence[trio.SocketListener],
    *,
    context: ssl.SSLContext,
    relay_nursery: trio.Nursery,
    handler_nursery: trio.Nursery,
    port: Port,
    on_socket: OnSocket,
    on_http: OnHttp,
    task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED,
) -> None:
    """As `serve_port`, behind TLS; `relay_nursery` has to outlive `handler_nursery`."""
    desk = _Desk(port, on_socket, on_http)

    def hand_over(stream: trio.SocketStream, peer: Peer, served: trio.Event) -> None:
        if handler_nursery.cancel_scope.cancel_called:
            # A handshake that ended after the port did: nobody is there to serve it.
            stream.socket.close()
            served.set()
        else:
            handler_nursery.start_soon(desk.serve_decrypted, stream, peer, served)

    await serve_tls(
        listeners,
        context,
        relay_nursery=relay_nursery,
        port=port,
        hand_over=hand_over,
        task_status=task_status,
    )


@attrs.define(eq=False)
class _Desk:
    """Serves one connection after another; each in a task of its own."""

    _port: Port
    _on_socket: OnSocket
    _on_http: OnHttp

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end. Only a cancel comes out of here."""
        await self._serve(stream, lambda: peer_of(stream))

    async def serve_decrypted(
        self, stream: trio.SocketStream, peer: Peer, served: trio.Event
    ) -> None:
        """As `serve`, for the plain half of a connection whose other half `peer` has."""
        try:
            await self._serve(stream, lambda: peer)
        finally:
            stream.socket.close()
            served.set()

    async def _serve(self, stream: trio.SocketStream, find_peer: Callable[[], Peer | None]) -> None:
        port = self._port
        if port.connections >= port.most_connections:
            return
        connection_id = next(port.ids)
        port.connections += 1
        try:
            await self._answer(stream, find_peer(), connection_id)
        except* _GOODBYES:
            logger.debug("connection %d has gone", connection_id)
        except* Exception:
            logger.exception("connection %d failed", connection_id)
        finally:
            port.connections -= 1

    async def _answer(
        self, stream: trio.SocketStream, peer: Peer | None, connection_id: int
    ) -> None:
        if peer is None:
            logger.warning("connection %d comes from another user, closed", connection_id)
            return
        reader = HeadReader()
        decision: Refuse | Serve | Upgrade | None = None
        with self._port.lobby.wait_in(peer.address) as place:
            decision = await self._judge(stream, reader, peer)
        if place.cancelled_caught:
            decision = Refuse(Response.line(408, "The request did not arrive in time."))
        if _is_guess(decision) and not await self._port.guesses.wait_turn():
            decision = Refuse(Response.line(429, "Too many wrong tokens; try again later."))
        match decision:
            case Upgrade():
                await self._open(
                    stream, decision, rest=reader.rest, peer=f"{peer} #{connection_id}"
                )
            case Refuse(response):
                await self._reply(stream, response)
            case Serve(path):
                await self._reply(stream, self._response(path, connection_id))
            case None:
                pass

    async def _judge(
        self, stream: trio.SocketStream, reader: HeadReader, peer: Peer
    ) -> Refuse | Serve | Upgrade | None:
        try:
            head = await _read_head(stream, reader)
        except HeadRefused as exc:
            return Refuse(Response.line(400, str(exc)))
        if head is None:
            return None
        policy = self._port.policy
        decision = decide(head, attrs.evolve(policy, hosts=policy.hosts | peer.extra_hosts))
        if isinstance(decision, Refuse):
            logger.debug(
                "%s: %.16r %.256r: %d", peer, head.method, head.path, decision.response.status
            )
        return decision

    def _response(self, path: str, connection_id: int) -> Response:
        if path == LIVENESS_PATH:
            return Response.line(200, "ok")
        response = Response.line(500, f"Internal error; look for {connection_id} in the log.")
        try:
            response = self._on_http(path)
        except* Exception:
            logger.exception("connection %d: no answer to %.256r", connection_id, path)
        return response

    async def _reply(self, stream: trio.SocketStream, response: Response) -> None:
        """Send a reply and close; a client that doesn't take it or hang up is cut."""
        with trio.move_on_after(self._port.limits.linger_seconds):
            await stream.send_all(response.encode())
            await stream.send_eof()
            # Closing on unread bytes would make the kernel reset the connection, and
            # the reply would be lost to who is still sending.
            while await stream.receive_some(65_536):
                pass

    async def _open(
        self, stream: trio.SocketStream, upgrade: Upgrade, *, rest: bytes, peer: str
    ) -> None:
        refusal = self._socket_refusal()
        if refusal is not None:
            await self._reply(stream, refusal)
            return
        self._port.sockets += 1
        try:
            async with open_connection(
                stream, upgrade, rest=rest, peer=peer, limits=self._port.limits
            ) as connection:
                if upgrade.authorised:
                    await self._converse(connection, upgrade)
                else:
                    await connection.close(UNAUTHORISED, "the token is not the service's")
        finally:
            self._port.sockets -= 1

    def _socket_refusal(self) -> Response | None:
        if self._port.is_draining:
            return Response.line(503, "The service is stopping.")
        if self._port.sockets >= self._port.limits.sockets:
            return Response.line(503, "Too many clients are connected.")
        return None

    async def _converse(self, connection: Connection, upgrade: Upgrade) -> None:
        code, reason = STOPPING, "the service stops or restarts"
        try:
            with self._port.hosting(upgrade) as place:
                await self._on_socket(connection)
            code, reason = NORMAL, ""
            if place.cancelled_caught:
                code, reason = UNAUTHORISED, "the token is not the service's any more"
        except* ConnectionGone:
            code, reason = NORMAL, ""
        except* Exception:
            logger.exception("%s: its handler failed", connection.peer)
            code, reason = INTERNAL, "internal error"
        finally:
            with trio.move_on_after(self._port.limits.close_seconds, shield=True):
                await connection.close(code, reason)


def _is_guess(decision: Refuse | Serve | Upgrade | None) -> bool:
    match decision:
        case Refuse():
            return decision.guess
        case Upgrade():
            return not decision.authorised
        case _:
            return False


async def _read_head(stream: trio.SocketStream, reader: HeadReader) -> Head | None:
    """The request's head, or nothing if the client goes before it is whole."""
    while data := await stream.receive_some(reader.room):
        head = reader.feed(bytes(data))
        if head is not None:
            return head
    return None
