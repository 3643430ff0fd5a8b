"""The outbound door of one connection: everything goes out through it, in one order.

Three verbs: `reply` answers a request, `events` sends committed records, `chunk` sends
what is live. One dropping rule: live chunks, and only these, are dropped for a client
that has `LIVE_QUEUE` of them waiting, and it is told how many. One task writes, all that
has gathered in one go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.config import LIVE_QUEUE
from klbr_trio.service.port.connection import Connection
from klbr_trio.service.port.frames import frame
from klbr_trio.wire.server import LiveGap, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klbr_trio.wire.server import ServerMessage

_QUEUED_BYTES: Final = 2 * 1024 * 1024
"""Unsent bytes past which no more requests are read from a client that does not read."""


@attrs.define(eq=False)
class Door:
    """What waits to be sent on one connection.

    Attributes:
        chunks: How many live chunks wait, held ones included.
    """

    _connection: Connection
    chunks: int = 0
    _frames: list[bytes] = attrs.field(factory=list)
    _bytes: int = 0
    _chunks_queued: int = 0
    _sent: list[trio.Event] = attrs.field(factory=list)
    _dropped: dict[str, int] = attrs.field(factory=dict)
    _bell: trio.Event = attrs.field(factory=trio.Event)
    _emptied: trio.Event = attrs.field(factory=trio.Event)
    _sending: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether everything that was put in has been sent."""
        return not self._frames and not self._sending

    def reply(self, message: ServerMessage) -> None:
        """Answer a request; never dropped."""
        self._put(frame(encode(message)))

    async def events(self, frames: Sequence[bytes]) -> None:
        """Send committed records and return once they are out; never dropped.

        Cancellation: they go out all the same, unless the connection ends.
        """
        if not frames:
            return
        sent = trio.Event()
        for one in frames:
            self._put(one)
        self._sent.append(sent)
        await sent.wait()

    def admit_chunk(self, session_id: str) -> bool:
        """Whether one more live chunk may wait; if not it is counted as dropped."""
        if self.chunks >= LIVE_QUEUE:
            self._dropped[session_id] = self._dropped.get(session_id, 0) + 1
            self._bell.set()
            return False
        self.chunks += 1
        return True

    def chunk(self, data: bytes) -> None:
        """Send a live chunk that was admitted."""
        self._chunks_queued += 1
        self._put(data)

    def discard(self, data: bytes) -> None:
        """Send the notice that chunks do not count; never dropped."""
        self._put(data)

    def forget_chunks(self, count: int) -> None:
        """So many admitted chunks will not be sent: nobody follows any more."""
        self.chunks -= count

    def _put(self, data: bytes) -> None:
        self._frames.append(data)
        self._bytes += len(data)
        self._bell.set()

    async def room(self) -> None:
        """Return when the client has read enough of what waits for it."""
        while self._bytes > _QUEUED_BYTES:
            await self._emptied.wait()

    async def drained(self) -> None:
        """Return when everything has been sent."""
        while not self.is_empty:
            await self._emptied.wait()

    async def run(self) -> None:
        """Write what is put in, until cancelled.

        Raises:
            ConnectionGone: The client has gone, or took nothing for too long.
        """
        while True:
            await self._bell.wait()
            self._bell = trio.Event()
            frames, sent = self._take()
            self._sending = True
            if frames:
                await self._connection.send_frames(frames)
            self._sending = False
            for waiter in sent:
                waiter.set()
            self._emptied.set()
            self._emptied = trio.Event()

    def _take(self) -> tuple[list[bytes], list[trio.Event]]:
        frames, self._frames = self._frames, []
        sent, self._sent = self._sent, []
        self._bytes = 0
        self.chunks -= self._chunks_queued
        self._chunks_queued = 0
        # What was dropped came after what waits, and before whatever comes next.
        for session_id, dropped in self._dropped.items():
            frames.append(frame(encode(LiveGap(session_id=session_id, dropped=dropped))))
        self._dropped.clear()
        return frames, sent
