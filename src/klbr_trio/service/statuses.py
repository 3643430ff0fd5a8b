"""Sessions' states, as clients are shown them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from klbr_trio.domain.session import Draining, Stopped
from klbr_trio.errors import UnknownSession
from klbr_trio.wire.client import PAGE_MAX
from klbr_trio.wire.codec import dumps
from klbr_trio.wire.server import SessionStatus, encode

if TYPE_CHECKING:
    from klbr_trio.sessions.registry import SessionRegistry
    from klbr_trio.store.reader import Status
    from klbr_trio.wire.client import ListSessions

LIST_BYTES: Final = 1024 * 1024 - 4096
"""What the sessions of one page may take together."""

_STEP: Final = 50
"""Sessions read at a time: about a millisecond, then the other clients have their turn."""


def status_message(
    registry: SessionRegistry, session_id: str, request_id: str | None
) -> SessionStatus:
    """The session's state.

    Raises:
        UnknownSession: No such session was ever made.
    """
    status = registry.store.status(session_id)
    if status is None:
        raise UnknownSession(f"no session {session_id!r}; the first input makes one")
    return _message(registry, status, request_id)


async def list_text(registry: SessionRegistry, asked: ListSessions) -> str:
    """A `session_list` as JSON: a page ascending by id, which ends early at 1 MiB."""
    limit = min(asked.limit, PAGE_MAX)
    page: list[str] = []
    last, size, has_more = asked.after or "", 0, True
    while has_more and len(page) < limit and size < LIST_BYTES:
        await trio.lowlevel.checkpoint()
        count = min(_STEP, limit - len(page))
        found = registry.store.statuses(last, count + 1)
        has_more = len(found) > count
        for status in found[:count]:
            text = encode(_message(registry, status, None))
            size += len(text.encode()) + 1
            if size > LIST_BYTES:
                has_more = True
                break
            page.append(text)
            last = status.row.session_id
    fields = [f'{{"type":"session_list","sessions":[{",".join(page)}]']
    if has_more and page:
        fields.append(f'"next":{dumps(last)}')
    if asked.request_id is not None:
        fields.append(f'"request_id":{dumps(asked.request_id)}')
    return ",".join(fields) + "}"


def _message(registry: SessionRegistry, status: Status, request_id: str | None) -> SessionStatus:
    row = status.row
    entry = registry.get(row.session_id)
    state = row.state_name
    draining = registry.closing.is_set() if entry is None else isinstance(entry.state, Draining)
    if draining and not isinstance(row.state, Stopped):
        state = "draining"
    return SessionStatus(
        session_id=row.session_id,
        state=state,
        wake_at_ms=row.wake_at_ms,
        reason=None if row.wait is None else row.wait.reason,
        attempt_id=row.attempt_id,
        head_seq=row.head_seq,
        fold_seq=row.fold_seq,
        pending=status.pending,
        release=status.release,
        hook_epoch=row.hook_epoch,
        usage=status.usage or None,
        request_id=request_id,
    )
