"""A client handler: reads one client's messages and sees to it that each is answered."""

from __future__ import annotations

from typing import Final

import attrs
import trio

from klbr_trio.config import IN_FLIGHT
from klbr_trio.errors import BadRequest, KernelError, RequestError, StoreError
from klbr_trio.service.desk import Desk
from klbr_trio.service.door import Door
from klbr_trio.service.floor import Floor, Shared
from klbr_trio.service.port.connection import Binary, Connection, ConnectionGone
from klbr_trio.service.statuses import list_message
from klbr_trio.wire import client as asks, server as says
from klbr_trio.wire.client import PAGE_MAX, Context, Refused, decode

_NO_BINARY: Final = BadRequest("a frame must be text, not binary")


@attrs.define(eq=False)
class Client:
    """One client; `run` serves it until it leaves."""

    _connection: Connection
    _shared: Shared
    _door: Door
    _floor: Floor
    _nursery: trio.Nursery
    _desks: dict[str, Desk] = attrs.field(factory=dict)
    _in_flight: int = 0
    _served: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> None:
        """Serve the client's messages.

        Raises:
            ConnectionGone: It has left.
        """
        while True:
            message = await self._connection.receive()
            if isinstance(message, Binary):
                self._refuse(_NO_BINARY, Context())
            else:
                self._take(message)
            await self._door.room()
            while self._in_flight >= IN_FLIGHT:
                await self._served.wait()

    def _take(self, text: str) -> None:
        message = decode(text)
        match message:
            case Refused(error, context):
                self._refuse(error, context)
            case asks.Ping():
                self._door.reply(
                    says.Pong(timestamp=message.timestamp, request_id=message.request_id)
                )
            case asks.ListSessions():
                limit = min(message.limit, PAGE_MAX)
                self._door.reply(
                    list_message(self._shared.registry, message.after, limit, message.request_id)
                )
            case asks.Stop():
                self._stop(message)
            case _:
                self._in_flight += 1
                self._desk(message.session_id).ask(message)

    def _refuse(self, error: RequestError, context: Context) -> None:
        self._door.reply(says.Error.of(error.code, str(error), context))

    def _desk(self, session_id: str) -> Desk:
        desk = self._desks.get(session_id)
        if desk is None:
            desk = self._desks[session_id] = Desk(
                session_id, self._floor, self._door, self._nursery, self._close_desk, self._count
            )
        return desk

    def _close_desk(self, desk: Desk) -> None:
        if desk.is_idle and self._desks.get(desk.session_id) is desk:
            del self._desks[desk.session_id]

    def _count(self) -> None:
        self._in_flight -= 1
        self._served.set()
        self._served = trio.Event()

    def _stop(self, message: asks.Stop) -> None:
        """Stop acts at once; a reset that comes after it waits for it."""
        desk = self._desk(message.session_id)
        ended = trio.Event()
        desk.stopping.append(ended)
        self._in_flight += 1
        self._nursery.start_soon(self._stop_now, message, desk, ended)

    async def _stop_now(self, message: asks.Stop, desk: Desk, ended: trio.Event) -> None:
        try:
            failure = None
            try:
                await self._shared.registry.stop(message.session_id)
            except (StoreError, KernelError) as exc:
                failure = str(exc)
            self._door.reply(
                says.OperatorAck(
                    session_id=message.session_id,
                    action=message.type,
                    success=failure is None,
                    message=failure,
                    request_id=message.request_id,
                )
            )
        except RequestError as exc:
            self._refuse(exc, Context(message.request_id, message.session_id))
        finally:
            desk.stopping.remove(ended)
            ended.set()
            self._count()
            self._close_desk(desk)

    def leave(self) -> None:
        """The client has gone: nobody looks for it any more."""
        for desk in self._desks.values():
            desk.close()

    async def caught_up(self) -> None:
        """Return when the client has been sent everything that is committed."""
        for desk in tuple(self._desks.values()):
            follower = desk.follower
            if follower is not None:
                await follower.caught_up()
        await self._door.drained()


async def serve_client(connection: Connection, shared: Shared, clients: set[Client]) -> None:
    """Serve one WebSocket until it ends; `clients` holds it meanwhile.

    Raises:
        ConnectionGone: The client has left; the ordinary end.
    """
    door = Door(connection)
    async with trio.open_nursery() as nursery:
        client = Client(connection, shared, door, Floor(shared), nursery)
        nursery.start_soon(door.run)
        clients.add(client)
        try:
            await client.run()
        finally:
            clients.discard(client)
            client.leave()


__all__ = ["Client", "ConnectionGone", "serve_client"]
