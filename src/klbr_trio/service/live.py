"""Live messages on their way to clients: built once, dropped by one rule, in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from klbr_trio.service.door import Door
from klbr_trio.service.port.frames import frame
from klbr_trio.wire.server import LiveChunk, LiveGap, LiveMessage, encode

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.define(eq=False)
class LiveFrames:
    """Live messages as frames, each built once however many look at it.

    Attributes:
        dropped: Chunks that slow clients missed, all together.
    """

    dropped: int = attrs.field(default=0, init=False)
    _message: LiveMessage | None = attrs.field(default=None, init=False)
    _frame: bytes = attrs.field(default=b"", init=False)

    def of(self, message: LiveMessage) -> bytes:
        """The message's frame."""
        # Everyone who looks is given the same message, one after the other.
        if message is not self._message:
            self._message, self._frame = message, frame(encode(message))
        return self._frame


@attrs.define(eq=False)
class Lane:
    """One session's live messages for one client; they can be held, and keep their order."""

    _session_id: str
    _door: Door
    _frames: LiveFrames
    _is_held: bool = attrs.field(default=False, init=False)
    _waiting: list[LiveMessage | LiveGap] = attrs.field(factory=list, init=False)

    def take(self, message: LiveMessage) -> None:
        """Send the message, now or when the lane is released; waits for nobody."""
        if isinstance(message, LiveChunk) and not self._door.admit_chunk():
            self._drop()
        elif self._is_held:
            self._waiting.append(message)
        else:
            self._send(message)

    def hold(self) -> None:
        """From here on messages wait."""
        self._is_held = True

    def release(self) -> None:
        """What waits is sent, and what comes is sent at once."""
        self._is_held = False
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            if isinstance(message, LiveGap):
                self._door.drop(self._session_id, message.dropped)
            else:
                self._send(message)

    def close(self) -> None:
        """Nobody looks any more: what waits is forgotten."""
        self._is_held = False
        self._door.forget(self._session_id, sum(1 for _ in self._waiting_chunks()))
        self._waiting.clear()

    def _waiting_chunks(self) -> Iterator[LiveChunk]:
        return (message for message in self._waiting if isinstance(message, LiveChunk))

    def _send(self, message: LiveMessage) -> None:
        data = self._frames.of(message)
        if isinstance(message, LiveChunk):
            self._door.chunk(self._session_id, data)
        else:
            self._door.notice(data)

    def _drop(self) -> None:
        self._frames.dropped += 1
        if not self._is_held:
            self._door.drop(self._session_id, 1)
            return
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, LiveGap):
            self._waiting[-1] = attrs.evolve(last, dropped=last.dropped + 1)
        else:
            self._waiting.append(LiveGap(session_id=self._session_id, dropped=1))
