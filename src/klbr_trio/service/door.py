"""The outbound door of one connection: everything goes out through it, in one order.

Three verbs: `reply` answers a request, `events` sends committed records, `chunk` sends
what is live. One dropping rule: live chunks, and only these, are dropped for a client
that has `LIVE_QUEUE` of them waiting, and it is told how many.

Whoever comes while nobody writes writes all that has gathered, in one go; what gathers
meanwhile is written by the door's own task.
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
    from collections.abc import Iterable

    from klbr_trio.wire.server import ServerMessage

UNSENT_BYTES: Final = 2 * 1024 * 1024
"""Past so much no more is read from, or for, a client that does not read: a page each."""


@attrs.define(eq=False)
class Door:
    """What waits to be sent on one connection.

    Attributes:
        chunks: How many live chunks were admitted and are not sent yet.
    """

    _connection: Connection
    chunks: int = attrs.field(default=0, init=False)
    _frames: list[bytes] = attrs.field(factory=list, init=False)
    _bytes: int = attrs.field(default=0, init=False)
    _chunks_queued: int = attrs.field(default=0, init=False)
    _dropped: dict[str, int] = attrs.field(factory=dict, init=False)
    _is_writing: bool = attrs.field(default=False, init=False)
    _bell: trio.Event = attrs.field(factory=trio.Event, init=False)
    _written: trio.Event = attrs.field(factory=trio.Event, init=False)
    _batches: int = attrs.field(default=0, init=False)

    @property
    def is_empty(self) -> bool:
        """Whether everything that was put in has been sent."""
        return not (self._frames or self._dropped or self._is_writing)

    def queue(self, message: ServerMessage) -> None:
        """Answer a request, never dropped, with the next `flush` or whatever else is sent."""
        self._put(frame(encode(message)))

    async def flush(self) -> None:
        """Write what is queued, unless it is being written already.

        Raises:
            ConnectionGone: The client has gone.
        """
        if self._is_writing:
            self._bell.set()
        elif self._frames:
            await self._write()

    def reply(self, message: ServerMessage) -> None:
        """Answer a request, never dropped, as soon as the door's task runs."""
        self.reply_text(encode(message))

    def reply_text(self, text: str) -> None:
        """As `reply`, with a message that is encoded already."""
        self._put(frame(text))
        self._bell.set()

    async def events(self, session_id: str, frames: Iterable[bytes]) -> None:
        """Send committed records of a session and return once they are out; never dropped.

        Raises:
            ConnectionGone: The client has gone.

        Cancellation: only the end of the connection cancels this.
        """
        self._tell_dropped(session_id)
        for one in frames:
            self._put(one)
        if not self._is_writing:
            await self._write()
            return
        # What is being written now does not have them; the batch after it does.
        theirs = self._batches + 2
        self._bell.set()
        while self._batches < theirs:
            await self._written.wait()

    def admit_chunk(self) -> bool:
        """Whether one more live chunk may wait; if so it counts from now on."""
        if self.chunks >= LIVE_QUEUE:
            return False
        self.chunks += 1
        return True

    def chunk(self, session_id: str, data: bytes) -> None:
        """Send a live chunk that was admitted."""
        self._tell_dropped(session_id)
        self._chunks_queued += 1
        self.notice(data)

    def notice(self, data: bytes) -> None:
        """Send what is live and never dropped."""
        self._put(data)
        self._bell.set()

    def drop(self, session_id: str, count: int) -> None:
        """So many chunks of the session were not admitted: the client is told after what waits."""
        self._dropped[session_id] = self._dropped.get(session_id, 0) + count
        self._bell.set()

    def forget(self, session_id: str, chunks: int) -> None:
        """Nobody follows the session any more: `chunks` admitted ones will not be sent."""
        self.chunks -= chunks
        self._dropped.pop(session_id, None)

    async def room(self) -> None:
        """Return when the client has taken enough of what waits for it."""
        while self._bytes > UNSENT_BYTES:
            await self._written.wait()

    async def drained(self) -> None:
        """Return when everything has been sent."""
        while not self.is_empty:
            await self._written.wait()

    async def run(self) -> None:
        """Write what gathers while nobody else writes it, until cancelled.

        Raises:
            ConnectionGone: The client has gone, or took nothing for too long.
        """
        while True:
            await self._bell.wait()
            self._bell = trio.Event()
            if not self._is_writing:
                await self._write()

    async def _write(self) -> None:
        self._is_writing = True
        chunks = self._chunks_queued
        frames = self._take()
        size = self._bytes
        if frames:
            await self._connection.send_frames(frames)
        self._is_writing = False
        self._batches += 1
        self._bytes -= size
        self.chunks -= chunks
        self._written.set()
        self._written = trio.Event()
        if self._frames or self._dropped:
            self._bell.set()

    def _take(self) -> list[bytes]:
        for session_id in tuple(self._dropped):
            self._tell_dropped(session_id)
        frames, self._frames = self._frames, []
        self._chunks_queued = 0
        return frames

    def _tell_dropped(self, session_id: str) -> None:
        dropped = self._dropped.pop(session_id, 0)
        if dropped:
            self._put(frame(encode(LiveGap(session_id=session_id, dropped=dropped))))

    def _put(self, data: bytes) -> None:
        self._frames.append(data)
        self._bytes += len(data)
