"""A follower: sends one client what one session commits, in order, without a gap.

It has a cursor and pulls: the session's bell only says that there is something to
read. A slow client therefore costs itself alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from klbr_trio.service.door import Door
from klbr_trio.service.records import Records
from klbr_trio.store import Store

if TYPE_CHECKING:
    from klbr_trio.service.records import Record


@attrs.define(eq=False)
class Hold:
    """Keeps a session's newer events back on one connection.

    While an input of the client is in flight its `ack` has to come before its event, so
    only what was there before it may go out; while a range is sent, nothing may.
    """

    _through: int | None = attrs.field(default=None, init=False)
    _released: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def is_held(self) -> bool:
        """Whether something is kept back."""
        return self._through is not None

    def begin(self, through: int) -> None:
        """Events after `through` wait."""
        self._through = through

    def end(self) -> None:
        """Nothing waits any more."""
        self._through = None
        self._released.set()
        self._released = trio.Event()

    def passing(self, records: list[Record]) -> list[Record]:
        """Those of the records that may be sent now."""
        if self._through is None:
            return records
        return [record for record in records if record.seq <= self._through]

    async def released(self) -> None:
        """Return when what is kept back now may go."""
        if self._through is not None:
            await self._released.wait()


@attrs.define(eq=False)
class Follower:
    """Follows a session from a cursor on.

    Attributes:
        cursor: The seq of the last event given to the door.
        over: Set when its task has ended.
    """

    session_id: str
    cursor: int
    _door: Door
    _store: Store
    _records: Records
    _hold: Hold
    over: trio.Event = attrs.field(factory=trio.Event, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    _pause: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _moved: trio.Event = attrs.field(factory=trio.Event, init=False)

    def end(self) -> None:
        """Send nothing after what is being sent."""
        self._ended = True
        self._pause.cancel()

    async def run(self) -> None:
        """Send every event after the cursor, as it is committed, until `end`.

        Raises:
            ConnectionGone: The client has gone.
        """
        try:
            while not self._ended:
                ticket = self._store.ticket(self.session_id)
                if not await self._send_some():
                    await self._wait(ticket)
        finally:
            self.over.set()
            self._moved.set()

    async def caught_up(self) -> None:
        """Return when everything that is committed has been given to the door."""
        while not self._ended and self.cursor < self._records.head(self.session_id):
            await self._moved.wait()

    async def _send_some(self) -> bool:
        """Send a page; False if there is nothing that may be sent now."""
        if self.cursor >= self._records.head(self.session_id):
            return False
        await self._door.room()
        records = self._hold.passing(self._records.newest(self.session_id, self.cursor))
        if not records or self._ended:
            return False
        self.cursor = records[-1].seq
        self._moved.set()
        self._moved = trio.Event()
        frames = [data for record in records for data in record.live()]
        await self._door.events(self.session_id, frames)
        return True

    async def _wait(self, ticket: trio.Event) -> None:
        with trio.CancelScope() as self._pause:
            if self._ended:
                return
            if self._hold.is_held:
                await self._hold.released()
            else:
                await ticket.wait()
