"""Records as frames: each built once, however many follow its session."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.service.port.frames import frame
from klbr_trio.store import Store
from klbr_trio.wire.records import event_frame
from klbr_trio.wire.server import LiveChunk, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klbr_trio.store import EventRow, SessionRow

_TAIL: Final = 128
_TAIL_BYTES: Final = 512 * 1024
_SESSIONS: Final = 128
"""A cache of at most 128 sessions' newest records: those that are being followed."""

PAGE: Final = 250
PAGE_BYTES: Final = 256 * 1024


@attrs.frozen
class Record:
    """A stored event, ready to be sent.

    Attributes:
        speech: The live chunk that goes before a live `local.sent`.
    """

    seq: int
    event: bytes
    speech: bytes | None

    def live(self) -> tuple[bytes, ...]:
        """What a follower sends of it."""
        return (self.event,) if self.speech is None else (self.speech, self.event)


@attrs.define(eq=False)
class _Tail:
    """A followed session's newest records, without a gap; `head` follows every commit."""

    head: int
    records: deque[Record] = attrs.field(factory=lambda: deque(maxlen=_TAIL))

    def after(self, seq: int) -> list[Record]:
        """The records after `seq`, if the first of them is here."""
        records = self.records
        if not records or not records[0].seq <= seq + 1 <= records[-1].seq:
            return []
        skip = seq + 1 - records[0].seq
        return list(records)[skip:]

    def keep(self, records: list[Record]) -> None:
        """Take a page that begins where these end, or one that is newer than all of them."""
        if self.records and records[0].seq != self.records[-1].seq + 1:
            if records[-1].seq <= self.records[-1].seq:
                return
            self.records.clear()
        self.records.extend(records)
        size = sum(len(record.event) for record in self.records)
        while size > _TAIL_BYTES and len(self.records) > 1:
            size -= len(self.records.popleft().event)


@attrs.define(eq=False)
class Records:
    """Reads sessions' records and keeps the newest ones as frames.

    It works while `note` watches the store's commits.
    """

    _store: Store
    _tails: OrderedDict[str, _Tail] = attrs.field(factory=OrderedDict, init=False)

    def note(self, touched: Mapping[str, SessionRow]) -> None:
        """A commit left these rows."""
        for session_id, row in touched.items():
            tail = self._tails.get(session_id)
            if tail is not None:
                tail.head = row.head_seq

    def head(self, session_id: str) -> int:
        """The newest event's seq; 0 for none."""
        tail = self._tails.get(session_id)
        return self._store.head(session_id) if tail is None else tail.head

    def page(self, session_id: str, after_seq: int, limit: int) -> list[Record]:
        """A page of a replay, at most `limit` records after `after_seq`."""
        rows = self._store.page(session_id, after_seq, min(limit, PAGE), PAGE_BYTES)
        return [_record(row, with_speech=False) for row in rows]

    def newest(self, session_id: str, after_seq: int) -> list[Record]:
        """What a live follower lacks after `after_seq`, a page at the most.

        Only records that `head` covers: what a commit of which nobody has been told
        left in the file waits for it to be told.
        """
        tail = self._tail(session_id)
        found = tail.after(after_seq)
        if not found and after_seq < tail.head:
            limit = min(PAGE, tail.head - after_seq)
            rows = self._store.page(session_id, after_seq, limit, PAGE_BYTES)
            found = [_record(row, with_speech=True) for row in rows]
            if found:
                tail.keep(found)
        return found

    def _tail(self, session_id: str) -> _Tail:
        tail = self._tails.get(session_id)
        if tail is None:
            tail = self._tails[session_id] = _Tail(self._store.head(session_id))
            if len(self._tails) > _SESSIONS:
                self._tails.popitem(last=False)
        self._tails.move_to_end(session_id)
        return tail


def _record(row: EventRow, *, with_speech: bool) -> Record:
    event = frame(event_frame(row.seq, row.session_id, row.kind, row.payload, row.created_ms))
    speech = None
    if with_speech and row.kind == "local.sent":
        said = json.loads(row.payload)
        chunk = LiveChunk(
            session_id=row.session_id,
            lane="speech",
            delta=said["text"],
            attempt_id=said["attempt_id"],
            step=said["step"],
            call_id=said["call_id"],
        )
        speech = frame(encode(chunk))
    return Record(row.seq, event, speech)
