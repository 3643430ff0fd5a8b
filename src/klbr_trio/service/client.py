"""A client handler: reads one client's messages and sees to it that each is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.config import IN_FLIGHT
from klbr_trio.errors import BadRequest, RequestError
from klbr_trio.service.desk import Desk
from klbr_trio.service.door import Door
from klbr_trio.service.faults import refusal_of
from klbr_trio.service.floor import Floor, Shared
from klbr_trio.service.port.accept import STOPPING
from klbr_trio.service.port.connection import Binary, Connection
from klbr_trio.service.rights import permitted
from klbr_trio.service.statuses import list_text
from klbr_trio.wire import client as asks, server as says
from klbr_trio.wire.client import Context, Refused, decode

if TYPE_CHECKING:
    from klbr_trio.wire.client import ClientMessage

IN_FLIGHT_CHARS: Final = 4 * 1024 * 1024
"""Text of requests that wait for their answers; past it no more are read yet."""

_NO_BINARY: Final = BadRequest("a frame must be text, not binary")


@attrs.define(eq=False)
class Client:
    """One client; `run` serves it until it leaves."""

    _connection: Connection
    _shared: Shared
    _door: Door
    _floor: Floor
    _nursery: trio.Nursery
    _desks: dict[str, Desk] = attrs.field(factory=dict, init=False)
    _in_flight: int = attrs.field(default=0, init=False)
    _chars: int = attrs.field(default=0, init=False)
    _served: trio.Event = attrs.field(factory=trio.Event, init=False)

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
                await self._take(permitted(decode(message), self._connection))
            await self._door.room()
            while self._in_flight >= IN_FLIGHT or self._chars > IN_FLIGHT_CHARS:
                await self._served.wait()

    async def part(self, leave: trio.Event) -> None:
        """Once the client is asked to leave: it hears the last words and a goodbye."""
        await leave.wait()
        while self._in_flight:
            await self._served.wait()
        for desk in tuple(self._desks.values()):
            await desk.subscription.caught_up()
        await self._door.drained()
        await self._connection.close(STOPPING, "the service stops or restarts")
        self._nursery.cancel_scope.cancel()

    async def _take(self, message: ClientMessage | Refused) -> None:
        match message:
            case Refused(error, context):
                self._refuse(error, context)
            case asks.Ping():
                self._door.reply(
                    says.Pong(timestamp=message.timestamp, request_id=message.request_id)
                )
            case asks.ListSessions():
                refusal = await refusal_of(self._list(message))
                if refusal is not None:
                    self._refuse(refusal, Context(message.request_id))
            case asks.Stop():
                self._begin(message)
                self._desk(message.session_id).stop(message)
            case _:
                self._begin(message)
                self._desk(message.session_id).ask(message)

    async def _list(self, message: asks.ListSessions) -> None:
        self._door.reply_text(await list_text(self._shared.registry, message))

    def _refuse(self, error: RequestError, context: Context) -> None:
        self._door.reply(says.Error.of(error.code, str(error), context))

    def _begin(self, message: ClientMessage) -> None:
        self._in_flight += 1
        self._chars += _chars(message)

    def _end(self, message: ClientMessage) -> None:
        self._in_flight -= 1
        self._chars -= _chars(message)
        self._served.set()
        self._served = trio.Event()

    def _desk(self, session_id: str) -> Desk:
        desk = self._desks.get(session_id)
        if desk is None:
            desk = self._desks[session_id] = Desk.of(
                session_id, self._floor, self._door, self._nursery, self._end, self._close_desk
            )
        return desk

    def _close_desk(self, desk: Desk) -> None:
        if desk.is_idle:
            del self._desks[desk.session_id]


def _chars(message: ClientMessage) -> int:
    return len(message.text) if isinstance(message, asks.SendInput) else 0


async def serve_client(connection: Connection, shared: Shared, leave: trio.Event) -> None:
    """Serve one WebSocket until it ends, or until it is asked to leave.

    Raises:
        ConnectionGone: The client has left; the ordinary end.
    """
    door, floor = Door(connection), Floor(shared)
    shared.clients += 1
    try:
        async with trio.open_nursery() as nursery:
            client = Client(connection, shared, door, floor, nursery)
            nursery.start_soon(door.run, name="door")
            nursery.start_soon(client.part, leave, name="goodbye")
            await client.run()
    finally:
        floor.close()
        shared.leave()
