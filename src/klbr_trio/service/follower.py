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
    """Keeps a session's events and chunks back while an input of this client is in flight.

    Its `ack` has to come before its event. What was acknowledged may go out.

    Attributes:
        acked: The highest seq that was acknowledged on this connection.
    """

    acked: int = 0
    _held: bool = False
    _released: trio.Event = attrs.field(factory=trio.Event)

    @property
    def is_held(self) -> bool:
        """Whether an input is in flight."""
        return self._held

    def begin(self) -> None:
        """An input is in flight."""
        self._held = True

    def end(self, acked: int) -> None:
        """Its answer is in the door."""
        self.acked = max(self.acked, acked)
        self._held = False
        self._released.set()
        self._released = trio.Event()

    def passes(self, seq: int) -> bool:
        """Whether the event of that seq may be sent now."""
        return not self._held or seq <= self.acked

    async def wait(self) -> None:
        """Return when the input in flight has its answer."""
        if self._held:
            await self._released.wait()


@attrs.define(eq=False)
class Follower:
    """Follows a session from a cursor on.

    Attributes:
        cursor: The seq of the last event sent.
        over: Set when its task has ended.
    """

    session_id: str
    cursor: int
    _door: Door
    _store: Store
    _records: Records
    _hold: Hold
    over: trio.Event = attrs.field(factory=trio.Event)
    _ended: bool = False
    _pause: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def end(self) -> None:
        """Send nothing after what is being sent."""
        self._ended = True
        self._pause.cancel()

    async def run(self) -> None:
        """Send every event after the cursor, as it is committed, until `end`."""
        try:
            while not self._ended:
                ticket = self._store.ticket(self.session_id)
                if not await self._send_what_is_there():
                    await self._wait(ticket)
        finally:
            self.over.set()

    async def caught_up(self) -> None:
        """Return when everything that is committed has been sent."""
        while not self._ended and self.cursor < self._store.head(self.session_id):
            await trio.lowlevel.checkpoint()

    async def _send_what_is_there(self) -> bool:
        """Send a page; False if there is nothing that may be sent now."""
        records = self._passing(self._records.newest(self.session_id, self.cursor))
        if not records:
            return False
        self.cursor = records[-1].seq
        await self._door.events([data for record in records for data in record.live()])
        return True

    def _passing(self, records: list[Record]) -> list[Record]:
        return [record for record in records if self._hold.passes(record.seq)]

    async def _wait(self, ticket: trio.Event) -> None:
        with trio.CancelScope() as self._pause:
            if self._ended:
                return
            if self._hold.is_held:
                await self._hold.wait()
            elif self.cursor >= self._store.head(self.session_id):
                await ticket.wait()
