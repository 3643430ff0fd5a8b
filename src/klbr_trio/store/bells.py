"""Bells: they tell that a session has something new, never what."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Iterable

Ticket: TypeAlias = trio.Event


@attrs.define(eq=False)
class Bells:
    """One bell a session, for as long as somebody holds a ticket of it.

    A follower takes a ticket, then reads, then waits on that ticket: taken after the
    read it could miss what was committed in between.
    """

    _tickets: WeakValueDictionary[str, trio.Event] = attrs.field(factory=WeakValueDictionary)

    def ticket(self, session_id: str) -> Ticket:
        """An event that is set by the session's next commit."""
        ticket = self._tickets.get(session_id)
        if ticket is None:
            ticket = self._tickets[session_id] = trio.Event()
        return ticket

    def ring(self, session_ids: Iterable[str]) -> None:
        """End the tickets of these sessions."""
        for session_id in session_ids:
            ticket = self._tickets.pop(session_id, None)
            if ticket is not None:
                ticket.set()
