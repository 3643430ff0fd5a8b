"""One cell on the host's side, from `run` to its result."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.kernel.messages import Call, printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from klbr_trio.kernel.messages import Done

CALLS_WAITING: Final = 64
"""Calls read from the channel and not yet answered; more wait in the socket and in the cell."""


@attrs.frozen(kw_only=True)
class CellResult:
    """What became of a cell."""

    ok: bool
    output: str
    value: str | None
    """The repr of the last expression."""
    error: str | None
    """What the model is to be told, if the cell was not ok."""
    truncated: bool
    """Whether parts of the output were left out."""
    duration_ms: int
    died: str | None = None
    """Why the kernel is gone, when it is."""


class RunningCell:
    """A cell that the kernel has been asked to run."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.done: Done | None = None
        self.limit: str | None = None
        """The limit that it has broken, in words."""
        self.over = trio.Event()
        """Set once its result is known."""
        self._ended = False
        self._scope: trio.CancelScope | None = None
        self._began = trio.current_time()
        self._send, self._calls = trio.open_memory_channel[Call](CALLS_WAITING)

    @property
    def ended(self) -> bool:
        """Whether it is done, or will never be since its kernel is doomed."""
        return self._ended

    async def add_call(self, call: Call) -> None:
        """Puts a call in line; waits while too many are."""
        with contextlib.suppress(trio.BrokenResourceError):
            await self._send.send(call)

    async def calls_within(self, seconds: float, answer: Callable[[Call], Awaitable[None]]) -> None:
        """Answers calls until the cell has ended, has broken a limit, or the time is over.

        Cancellation: the same as when the time is over: the call at hand is not answered.
        """
        if self._ended:
            return
        with trio.move_on_after(seconds) as self._scope:
            async for call in self._calls:
                await answer(call)

    def finish(self, done: Done) -> None:
        """The kernel says that the cell has ended; calls that came before are still answered."""
        self.done = done
        self._ended = True
        self._send.close()

    def abandon(self) -> None:
        """The kernel is doomed; the call at hand is given up."""
        self._ended = True
        self._send.close()
        if self.done is None and self._scope is not None:
            self._scope.cancel()

    def break_limit(self, limit: str) -> None:
        """The cell is to be interrupted, since it has broken `limit`. The first one stays."""
        if self.limit is None:
            self.limit = limit
            if self._scope is not None:
                self._scope.cancel()

    def close(self) -> None:
        """Nobody answers calls any more, and its result is known."""
        self._calls.close()
        self.over.set()

    def result(self, output: tuple[str, bool], *, died: str | None, by_itself: bool) -> CellResult:
        """The result of a cell that has ended."""
        done = self.done
        error = None if done is None else done.error
        if done is None:
            assert died is not None
            error = f"the kernel died: {died}; its variables are gone" if by_itself else died
        elif done.error is not None and done.interrupted:
            cause = "the cell was interrupted"
            if self.limit is not None:
                cause += f": {self.limit}"
            error = f"{cause}. The kernel goes on, and its variables are kept.\n\n{done.error}"
        text, truncated = output
        return CellResult(
            ok=error is None,
            output=printable(text),
            value=None if done is None else done.value,
            error=error,
            truncated=truncated,
            duration_ms=round((trio.current_time() - self._began) * 1000),
            died=died,
        )
