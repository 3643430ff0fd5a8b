"""Ranges of a session's log: which events a window, a catch-up or a page of history has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from klbr_trio.service.records import PAGE
from klbr_trio.wire import server as says
from klbr_trio.wire.client import PAGE_MAX, History, Subscribe

if TYPE_CHECKING:
    from klbr_trio.service.door import Door
    from klbr_trio.service.records import Records
    from klbr_trio.store import SessionRow, Store


@attrs.frozen
class Range:
    """The events from `first` to `last`; none if `first` is `last` + 1.

    Attributes:
        fold: The session's fold, told with the range.
    """

    first: int
    last: int
    fold: int | None


def window(message: Subscribe, row: SessionRow | None) -> Range:
    """What a subscription begins with.

    With a cursor every event after it, whatever the limit and the fold say; without one
    at most `limit` of the newest, none at or below the fold.
    """
    head = 0 if row is None else row.head_seq
    fold = None if row is None else row.fold_seq
    if message.after_seq > 0:
        return Range(min(message.after_seq, head) + 1, head, fold)
    return Range(max(head - min(message.limit, PAGE_MAX), fold or 0) + 1, head, fold)


def page_before(message: History, row: SessionRow | None) -> Range:
    """The `limit` events just before `before_seq`."""
    head = 0 if row is None else row.head_seq
    last = min(message.before_seq, head + 1) - 1
    first = max(1, last - min(message.limit, PAGE_MAX) + 1)
    return Range(first, last, None if row is None else row.fold_seq)


async def send_range(
    asked: Subscribe | History, found: Range, *, store: Store, records: Records, door: Door
) -> None:
    """`sync_started`, the range's events and `sync_completed` are given to the door.

    Raises:
        ConnectionGone: The client has gone.
    """
    session_id = asked.session_id
    door.reply(
        says.SyncStarted(
            session_id=session_id,
            from_seq=found.first,
            to_seq=found.last,
            earliest_seq=store.earliest_seq(session_id),
            fold_seq=found.fold,
            request_id=asked.request_id,
        )
    )
    at = found.first - 1
    while at < found.last:
        await door.room()
        page = records.page(session_id, at, min(PAGE, found.last - at))
        at = page[-1].seq
        await door.events(session_id, [record.event for record in page])
    door.reply(
        says.SyncCompleted(session_id=session_id, to_seq=found.last, request_id=asked.request_id)
    )
