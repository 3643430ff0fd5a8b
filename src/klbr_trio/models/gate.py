"""The way in to one provider.

At most N requests at a time, fair between sessions, and a pause for all when the provider says
that there are too many.

The HTTP pool itself has no limit: a limited one loses a slot whenever a request that waits in it
is cancelled at the wrong moment.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@attrs.frozen
class GateStatistics:
    """How it stands."""

    in_use: int
    waiting: int
    paused_s: float
    """How long nobody is let in."""


@attrs.define(eq=False, repr=False)
class Gate:
    """Lets requests in; those that wait are taken one session after the other."""

    limit: int
    _in_use: int = attrs.field(default=0, init=False)
    _waiting: OrderedDict[str, deque[trio.Event]] = attrs.field(factory=OrderedDict, init=False)
    _not_before: float = attrs.field(default=float("-inf"), init=False)

    @override
    def __repr__(self) -> str:
        """The status line."""
        now = self.statistics()
        return f"<Gate {now.in_use}/{self.limit} in use, {now.waiting} waiting, paused {now.paused_s:.1f} s>"

    def statistics(self) -> GateStatistics:
        """How many are in, how many wait, and for how long it is closed."""
        waiting = sum(len(tickets) for tickets in self._waiting.values())
        paused = max(0.0, self._not_before - trio.current_time())
        return GateStatistics(self._in_use, waiting, paused)

    def pause(self, seconds: float) -> None:
        """Nobody is let in before this time is over."""
        self._not_before = max(self._not_before, trio.current_time() + seconds)

    @asynccontextmanager
    async def place(self, session_id: str) -> AsyncGenerator[None]:
        """A place inside, for the length of one request.

        Cancellation: a place is taken and given back, or never taken.
        """
        await self._take(session_id)
        try:
            await self._calm()
            yield
        finally:
            self._give_back()

    async def _calm(self) -> None:
        """Waits until the pause is over, also if it is made longer meanwhile."""
        until = self._not_before
        await trio.sleep_until(until)
        if until != self._not_before:
            await self._calm()

    async def _take(self, session_id: str) -> None:
        if self._in_use < self.limit:
            self._in_use += 1
            return
        ticket = trio.Event()
        self._waiting.setdefault(session_id, deque()).append(ticket)
        is_in = False
        try:
            await ticket.wait()
            is_in = True
        finally:
            if not is_in:
                self._withdraw(session_id, ticket)

    def _withdraw(self, session_id: str, ticket: trio.Event) -> None:
        if ticket.is_set():  # let in and cancelled at the same moment
            self._give_back()
            return
        tickets = self._waiting[session_id]
        tickets.remove(ticket)
        if not tickets:
            del self._waiting[session_id]

    def _give_back(self) -> None:
        if not self._waiting:
            self._in_use -= 1
            return
        session_id, tickets = next(iter(self._waiting.items()))
        ticket = tickets.popleft()
        if tickets:
            self._waiting.move_to_end(session_id)
        else:
            del self._waiting[session_id]
        ticket.set()
