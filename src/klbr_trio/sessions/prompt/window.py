"""The part of a session's log that a prompt may show, read once and kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.domain.events import Event
from klbr_trio.domain.work import InputReady
from klbr_trio.wire.records import decode_event

if TYPE_CHECKING:
    from klbr_trio.store import EventRow, Store

_PAGE: Final = 64
_LOOK_BACK: Final = 32
"""Events read at a time while the window's start is looked for: some may be a quarter MiB."""

_INPUT_PREFIX: Final = "work-input-"


@attrs.define
class Window:
    """The newest events above the fold, at least as long as the budget.

    Attributes:
        summary: The fold's last seq and its text, or None.
        inputs: The `input.admitted` of each work item that `events` names.
        left_out: How many events above the fold are older than the window.
        read_to: The seq up to which the log has been read.
    """

    session_id: str
    events: list[Event] = attrs.field(factory=list)
    inputs: dict[str, Event] = attrs.field(factory=dict)
    summary: tuple[int, str] | None = None
    left_out: int = 0
    read_to: int = 0

    @classmethod
    async def read(
        cls, store: Store, session_id: str, *, budget_chars: int, started_seq: int
    ) -> Window:
        """The window of the session as it stands.

        Args:
            store: The store.
            session_id: The session.
            budget_chars: How long the prompt may be; the window holds at least as much.
            started_seq: The open attempt's `turn.started`: it is in the window, always.
        """
        frontier = store.frontier(session_id)
        window = cls(session_id)
        floor = 0
        if frontier is not None:
            floor = min(frontier.drained_through_seq, started_seq - 1)
            window.summary = (frontier.drained_through_seq, frontier.summary)
        start = await _start(store, session_id, floor, budget_chars)
        window.read_to = min(start, started_seq - 1)
        window.left_out = window.read_to - floor
        await window.refresh(store)
        return window

    async def refresh(self, store: Store) -> None:
        """The window holds what was committed since it was read."""
        while rows := store.event_rows(self.session_id, self.read_to, _PAGE):
            for row in rows:
                self._add(store, row)
            self.read_to = rows[-1].seq
            await trio.lowlevel.checkpoint()

    def _add(self, store: Store, row: EventRow) -> None:
        event = decode_event(row.seq, row.session_id, row.kind, row.payload, row.created_ms)
        self.events.append(event)
        if event.kind == "input.admitted":
            self.inputs[event.payload["work_item_id"]] = event
        elif event.kind == "turn.started":
            for item_id in event.payload["work_items"]:
                if item_id.startswith(_INPUT_PREFIX) and item_id not in self.inputs:
                    self._find_input(store, item_id)

    def _find_input(self, store: Store, item_id: str) -> None:
        """An input that lies below the window enters at the turn that names it."""
        item = store.work_item(item_id)
        if item is None or not isinstance(item.cause, InputReady):
            return
        for row in store.event_rows(self.session_id, item.cause.seq - 1, 1):
            self.inputs[item_id] = decode_event(
                row.seq, row.session_id, row.kind, row.payload, row.created_ms
            )


async def _start(store: Store, session_id: str, floor: int, budget_chars: int) -> int:
    """The seq after which the window begins: `floor`, or where twice the budget lies above."""
    before = store.head(session_id)
    size = 0
    while before > floor:
        after = max(floor, before - _LOOK_BACK)
        for row in reversed(store.event_rows(session_id, after, before - after)):
            size += len(row.payload)
            if size > 2 * budget_chars:
                return row.seq - 1
        before = after
        await trio.lowlevel.checkpoint()
    return floor
