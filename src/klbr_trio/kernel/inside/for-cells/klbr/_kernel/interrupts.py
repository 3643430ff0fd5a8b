"""SIGINT: what it interrupts, and when it must not.

The handler runs between any two bytecodes of the main thread. It raises KeyboardInterrupt only
while the frame of `guarded` or `guarded_async` is on the stack. Their callers have a `try` round
them, so the exception always lands there, and the worker's own code can't be hit.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import FrameType

    from klbr._kernel.loop import CellLoop

T = TypeVar("T")


class Interrupts:
    """The SIGINT handler of the main thread."""

    def __init__(self, loop: CellLoop) -> None:
        self._loop = loop
        self._main = threading.get_ident()
        self._held = 0
        self._missed = False
        self._late = False
        self.task: asyncio.Task[object] | None = None
        """The running cell's task, if it has one."""
        self.wanted: object = None
        """The last cell that the host wanted to be interrupted; set by the channel's thread."""
        self.answered = False
        """Whether the host's last wish has been fulfilled."""
        self.delivered = False
        """Whether the running cell was interrupted."""

    def arm(self) -> None:
        """Installs the handler for a new cell, whatever an earlier one has put there."""
        self.task = None
        self.delivered = False
        self._missed = False
        signal.signal(signal.SIGINT, self._on_signal)

    def guarded(self, function: Callable[[], T]) -> T:
        """Calls `function` where SIGINT may interrupt it."""
        self._catch_up()
        return function()

    async def guarded_async(self, function: Callable[[], Awaitable[T]]) -> T:
        """Awaits `function()` where SIGINT may interrupt it."""
        self._catch_up()
        return await function()

    def _catch_up(self) -> None:
        if self._missed:
            self._missed = False
            self._deliver()
            raise KeyboardInterrupt

    def _deliver(self) -> None:
        self.answered = self.delivered = True

    def expect(self, cell: int) -> None:
        """Cell `cell` is the running one; an interrupt that has come before it did counts."""
        if self.wanted == cell:
            self._missed = True

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Puts an interrupt of the main thread off until it has left the block."""
        if threading.get_ident() != self._main:
            yield
            return
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if self._late and not self._held:
                self._late = False
                signal.raise_signal(signal.SIGINT)

    def _cancel(self, task: asyncio.Task[object]) -> None:
        """In the loop: only now the wish is fulfilled; a loop that is kept busy never gets here."""
        if task.cancel():
            self._deliver()

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        if self._held:
            self._late = True
        elif _is_guarded(frame):
            self._deliver()
            raise KeyboardInterrupt
        elif self.task is not None and not self.task.done():
            self._loop.asyncio.call_soon_threadsafe(self._cancel, self.task)
            if asyncio.current_task(self._loop.asyncio) is not None:
                raise KeyboardInterrupt  # a task of an earlier cell keeps the loop busy
        else:
            self._missed = True  # before the cell's first line, or after its last
            if asyncio.current_task(self._loop.asyncio) is not None:
                raise KeyboardInterrupt  # between cells, such a task keeps the next one waiting


_GUARDED = (Interrupts.guarded.__code__, Interrupts.guarded_async.__code__)


def _is_guarded(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _GUARDED:
            return True
        frame = frame.f_back
    return False
