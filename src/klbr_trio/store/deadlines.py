"""Deadlines: armed by a wait, fired exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klbr_trio.domain import session as sessions, work
from klbr_trio.domain.events import SessionWoken
from klbr_trio.domain.text import NOTE_CHARS
from klbr_trio.errors import IllegalTransition
from klbr_trio.store.turns import wait_until

if TYPE_CHECKING:
    from klbr_trio.store.rows import SessionRow
    from klbr_trio.store.tx import Tx

WAKE_CHUNK: Final = 32
"""Deadlines fired in one commit: about a millisecond of statements, so the loop goes on."""


def wake(tx: Tx, *, now_ms: int) -> list[str]:
    """The earliest due deadlines, at most `WAKE_CHUNK`, have fired; returns their sessions."""
    woken = tx.due(now_ms, WAKE_CHUNK)
    n = tx.next_work() if woken else 0
    for session_id in woken:
        _fire(tx, tx.known(session_id), n, now_ms)
        n += 1
    return woken


def _fire(tx: Tx, row: SessionRow, n: int, now_ms: int) -> None:
    wait = row.wait
    assert wait is not None
    assert wait.wake_at_ms is not None
    if row.attempt_id is None:
        sessions.wake(row.state)
    row.wait = None
    tx.append(row, SessionWoken(wait.wake_at_ms, max(0, now_ms - wait.wake_at_ms)))
    item = work.WorkItem.new(
        tx.free_work_id(f"work-wake-{n}"),
        wait.reason or "the deadline came",
        work.DeadlineWake(wait.wake_at_ms),
        work.ConsequenceMetadata(),
        work.Provenance.system("wake_due", now_ms),
        now_ms,
    )
    tx.add_work(n, item.with_session(row.session_id), retry=wait.retry)
    tx.arm(row)
    tx.save(row)


def arm(
    tx: Tx, session_id: str, *, receipt: str | None, wake_at_ms: int | None, reason: str | None
) -> None:
    """The session waits, outside any attempt; an earlier wait has ended.

    Raises:
        ValueError: Neither a time nor a receipt is given, or the receipt is too long.
        IllegalTransition: The session is stopped or has an open attempt.
        UnknownSession: No such session was ever made.
    """
    if wake_at_ms is None and receipt is None:
        raise ValueError("a wait needs a time or a receipt")
    if receipt is not None and len(receipt) > NOTE_CHARS:
        raise ValueError(f"a receipt has at most {NOTE_CHARS} characters")
    row = tx.known(session_id)
    if row.attempt_id is not None:
        raise IllegalTransition(
            f"session {session_id!r} has an open attempt; only that can make it wait"
        )
    sessions.wait(row.state, receipt=receipt, wake_at_ms=wake_at_ms, reason=reason)
    wait_until(tx, row, wake_at_ms=wake_at_ms, reason=reason, receipt=receipt)
    tx.arm(row)
    tx.save(row)
