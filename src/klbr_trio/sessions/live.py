"""Live chunks: what is happening now, for whoever looks; never stored.

A chunk that comes alone is published at once; what comes in a burst is gathered for up to
`GATHER_S`. All of it is flushed before each commit, so that a chunk reaches every connection's
queue before the event that makes it moot.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import trio

from klbr_trio.domain.text import clean
from klbr_trio.wire.server import LiveChunk, LiveDiscard, LiveMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

GATHER_S: Final = 0.002
"""The least time between two frames: a burst becomes one, and 200 tokens a second are not held."""

DELTA_CHARS: Final = 65_536
"""The longest delta: in JSON form it stays far below a frame."""

Publish: TypeAlias = "Callable[[LiveMessage], None]"


@attrs.define(eq=False)
class LiveHub:
    """Who looks at which session."""

    _lookers: dict[str, list[Publish]] = attrs.field(factory=dict)

    def publish(self, message: LiveMessage) -> None:
        """Give the message to everyone who looks at its session."""
        for looker in tuple(self._lookers.get(message.session_id, ())):
            looker(message)

    @contextlib.contextmanager
    def look(self, session_id: str, looker: Publish) -> Generator[None]:
        """Inside the block `looker` is called, without waiting, with each live message."""
        lookers = self._lookers.setdefault(session_id, [])
        lookers.append(looker)
        try:
            yield
        finally:
            lookers.remove(looker)
            if not lookers:
                self._lookers.pop(session_id, None)


@attrs.define(eq=False)
class _Piece:
    """What was streamed of one kind without another between."""

    lane: str
    step: int
    call_id: str | None
    texts: list[str]

    def is_of(self, lane: str, step: int, call_id: str | None) -> bool:
        return self.lane == lane and self.step == step and self.call_id == call_id


@attrs.define(eq=False)
class LiveStream:
    """What one attempt streams; `run` is its task."""

    session_id: str
    attempt_id: str
    _publish: Publish
    _pieces: list[_Piece] = attrs.field(factory=list)
    _bell: trio.Event = attrs.field(factory=trio.Event)

    def push(self, lane: str, delta: str, *, step: int, call_id: str | None = None) -> None:
        """Take a piece; it is published within `GATHER_S` or at the next `flush`."""
        if not delta:
            return
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.is_of(lane, step, call_id):
            last.texts.append(delta)
            return
        self._pieces.append(_Piece(lane, step, call_id, [delta]))
        self._bell.set()

    def discard(self, step: int) -> None:
        """What was streamed as scratchpad and reasoning of this step does not count."""
        self._pieces = [
            piece
            for piece in self._pieces
            if piece.step != step or piece.lane not in ("scratchpad", "reasoning")
        ]
        self.flush()
        self._publish(
            LiveDiscard(session_id=self.session_id, attempt_id=self.attempt_id, step=step)
        )

    def flush(self) -> None:
        """Everything taken so far is published."""
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            text = clean("".join(piece.texts))
            for start in range(0, len(text), DELTA_CHARS):
                self._publish(self._chunk(piece, text[start : start + DELTA_CHARS]))

    def _chunk(self, piece: _Piece, delta: str) -> LiveChunk:
        return LiveChunk(
            session_id=self.session_id,
            lane=piece.lane,
            delta=delta,
            attempt_id=self.attempt_id,
            step=piece.step,
            call_id=piece.call_id,
        )

    async def run(self) -> None:
        """Publish what is gathered, again and again, until cancelled."""
        not_before = trio.current_time()
        while True:
            await self._bell.wait()
            await trio.sleep_until(not_before)
            self._bell = trio.Event()
            self.flush()
            not_before = trio.current_time() + GATHER_S
