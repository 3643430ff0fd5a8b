"""Sessions' states, as clients are shown them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klbr_trio.domain.session import Draining, Stopped
from klbr_trio.errors import UnknownSession
from klbr_trio.wire.server import SessionList, SessionStatus, encode

if TYPE_CHECKING:
    from klbr_trio.sessions.registry import SessionRegistry
    from klbr_trio.store.reader import Status

_LIST_BYTES: Final = 1024 * 1024 - 4096


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


def list_message(
    registry: SessionRegistry, after: str | None, limit: int, request_id: str | None
) -> SessionList:
    """A page of sessions, ascending by id; it ends early at 1 MiB."""
    found = registry.store.statuses(after or "", limit + 1)
    sessions: list[SessionStatus] = []
    size = 0
    for status in found[:limit]:
        message = _message(registry, status, None)
        size += len(encode(message).encode()) + 1
        if size > _LIST_BYTES:
            break
        sessions.append(message)
    more = len(found) > len(sessions) and sessions
    return SessionList(
        sessions=tuple(sessions),
        next=sessions[-1].session_id if more else None,
        request_id=request_id,
    )


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
        request_id=request_id,
    )
