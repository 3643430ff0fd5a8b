"""The event loop that lives as long as the kernel.

It runs while a cell awaits and between cells, so tasks that a cell has started go on. Whatever
they do to it (stop it, close it, raise SystemExit through it) ends neither the kernel nor a cell.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
J = TypeVar("J")


class CellLoop:
    """An asyncio loop that is replaced when a cell has closed it."""

    def __init__(self) -> None:
        self.asyncio = asyncio.new_event_loop()
        self.context = contextvars.copy_context()
        """What every cell runs in, so that context variables are kept too."""

    def ensure(self) -> None:
        """Makes the loop usable and the current one, whatever the last cell did to it."""
        if self.asyncio.is_closed():
            self.asyncio = asyncio.new_event_loop()
        asyncio.set_event_loop(self.asyncio)

    def start(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        return self.asyncio.create_task(work, context=self.context)

    def until(self, future: asyncio.Future[T]) -> None:
        """Runs the loop until `future` is done, through everything else that ends a loop's run.

        Only when the loop itself has been closed does it return earlier.
        """
        while not (future.done() or self.asyncio.is_closed()):
            with contextlib.suppress(KeyboardInterrupt, SystemExit, RuntimeError):
                self.asyncio.run_until_complete(future)

    def tasks(self) -> int:
        return 0 if self.asyncio.is_closed() else len(asyncio.all_tasks(self.asyncio))


class Jobs(Generic[J]):
    """What the main thread is to do next, put in by the thread that reads the channel."""

    def __init__(self, loop: CellLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[J] = queue.SimpleQueue()
        self._bell: asyncio.Future[None] | None = None

    def put(self, job: J) -> None:
        self._jobs.put(job)
        with contextlib.suppress(RuntimeError):  # closed by a cell: `next` looks before it waits
            self._loop.asyncio.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    def next(self) -> J:
        """The next job; runs the loop until there is one."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._jobs.get_nowait()
            self._loop.ensure()
            self._bell = self._loop.asyncio.create_future()
            if self._jobs.empty():
                self._loop.until(self._bell)
