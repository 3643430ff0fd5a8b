"""What the driver is to look at: sessions that may be runnable, deadlines that may be nearer."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from klbr_trio.store import SessionRow


@attrs.define(eq=False)
class Wakeful:
    """A bell with a list; ringing it costs nothing and waits for nobody.

    Attributes:
        attended: Whether a driver takes what is noted; else nothing is kept for it.
        runnable: Set when a session may have become runnable, or may find a place now.
        nearer: Set when a deadline was armed that comes before `next_ms`.
        next_ms: The deadline that the driver waits for; None: it looks for one.
    """

    attended: bool = False
    next_ms: int | None = None

    runnable: trio.Event = attrs.field(factory=trio.Event)
    nearer: trio.Event = attrs.field(factory=trio.Event)
    _sessions: OrderedDict[str, None] = attrs.field(factory=OrderedDict)
    _unsettled: dict[str, str] = attrs.field(factory=dict)
    _trouble: bool = False

    def note(self, row: SessionRow) -> None:
        """A commit left this row."""
        wake_at_ms = row.wake_at_ms
        if wake_at_ms is not None and (self.next_ms is None or wake_at_ms < self.next_ms):
            self.nearer.set()
        if self.attended and not row.stopped and row.attempt_id is None:
            self.add(row.session_id)

    def add(self, session_id: str) -> None:
        """The session may be runnable; it is looked at after those that came before it."""
        self._sessions[session_id] = None
        self.ring()

    def ring(self) -> None:
        """There is something to look at, or a place for those that wait."""
        self.runnable.set()

    def look(self) -> None:
        """From here on anything that rings is new."""
        self.runnable = trio.Event()

    def next(self) -> str | None:
        """The session to look at next; it is off the list then."""
        return self._sessions.popitem(last=False)[0] if self._sessions else None

    def hold_off(self, session_id: str) -> None:
        """The session could not be run since the store could not be written."""
        self._trouble = True
        self.add(session_id)

    def unsettled(self, session_id: str, attempt_id: str) -> None:
        """The attempt is open though nobody runs it: its interrupt could not be written."""
        self._unsettled[attempt_id] = session_id
        self._trouble = True
        self.ring()

    def take_unsettled(self) -> list[tuple[str, str]]:
        """Session and id of each unsettled attempt; the list is empty then."""
        taken = [(session_id, attempt_id) for attempt_id, session_id in self._unsettled.items()]
        self._unsettled.clear()
        return taken

    def has_trouble(self) -> bool:
        """Whether the store could not be written since this was asked last."""
        trouble, self._trouble = self._trouble, False
        return trouble

    def look_for_deadline(self) -> None:
        """From here on any deadline that is armed is a nearer one."""
        self.nearer = trio.Event()
        self.next_ms = None
