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
    from klbr_trio.store import EventRow

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
class Records:
    """Reads sessions' records and keeps the newest ones as frames."""

    _store: Store
    _tails: OrderedDict[str, deque[Record]] = attrs.field(factory=OrderedDict)

    def page(self, session_id: str, after_seq: int, limit: int) -> list[Record]:
        """A page of a replay, at most `limit` records after `after_seq`."""
        rows = self._store.page(session_id, after_seq, min(limit, PAGE), PAGE_BYTES)
        return [_record(row, with_speech=False) for row in rows]

    def newest(self, session_id: str, after_seq: int) -> list[Record]:
        """What a live follower lacks after `after_seq`, a page at the most."""
        tail = self._tails.get(session_id)
        if tail and tail[0].seq <= after_seq + 1 <= tail[-1].seq:
            self._tails.move_to_end(session_id)
            if tail[-1].seq == self._store.head(session_id):
                return [record for record in tail if record.seq > after_seq]
        rows = self._store.page(session_id, after_seq, PAGE, PAGE_BYTES)
        records = [_record(row, with_speech=True) for row in rows]
        self._keep(session_id, records)
        return records

    def _keep(self, session_id: str, records: list[Record]) -> None:
        if not records:
            return
        tail = self._tails.setdefault(session_id, deque(maxlen=_TAIL))
        self._tails.move_to_end(session_id)
        if tail and records[0].seq != tail[-1].seq + 1:
            if records[-1].seq <= tail[-1].seq:
                return
            tail.clear()
        tail.extend(records)
        size = sum(len(record.event) for record in tail)
        while size > _TAIL_BYTES and len(tail) > 1:
            size -= len(tail.popleft().event)
        while len(self._tails) > _SESSIONS:
            self._tails.popitem(last=False)


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
