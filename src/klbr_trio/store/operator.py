"""What only the operator does: Stop, and Reset, the one way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klbr_trio.domain import session as sessions, work
from klbr_trio.domain.events import SessionReopened, SessionStopped
from klbr_trio.store.interrupts import stop_attempt
from klbr_trio.store.points import CommitPoint
from klbr_trio.store.turns import reset_kernel_facts

if TYPE_CHECKING:
    from klbr_trio.store.tx import Tx

_PAGE: Final = 500


def stop(tx: Tx, session_id: str) -> bool:
    """The session is stopped, in one commit; False if it was.

    Inputs that no attempt holds stay pending; everything else that is pending or
    held is cancelled, and the deadline goes.

    Raises:
        UnknownSession: No such session was ever made.
    """
    row = tx.known(session_id)
    if row.stopped:
        return False
    stop_attempt(tx, row)
    while unwanted := tx.pending_not_inputs(session_id, _PAGE):
        for found in unwanted:
            tx.set_status(found, work.cancel(found.item.status, why="stopped"))
    sessions.stop(row.state)
    row.wait = None
    row.stopped = True
    row.kernel_boot = None
    tx.append(row, SessionStopped())
    tx.arm(row)
    tx.save(row)
    return True


def reset(tx: Tx, session_id: str) -> bool:
    """A stopped session is ready again (True); any other gets a fresh kernel (False).

    Raises:
        UnknownSession: No such session was ever made.
    """
    row = tx.known(session_id)
    reopened = row.stopped
    if reopened:
        tx.point = CommitPoint.REOPEN
        sessions.reopen(row.state)
        row.stopped = False
        row.kernel_boot = None
        row.hook_epoch += 1
        tx.append(row, SessionReopened(row.hook_epoch))
    else:
        reset_kernel_facts(tx, row, "operator")
    tx.save(row)
    return reopened


def kernel_gone(tx: Tx, session_id: str, *, why: str) -> int:
    """The log says that the session's kernel is gone; returns the new hook epoch."""
    row = tx.known(session_id)
    reset_kernel_facts(tx, row, why)
    tx.save(row)
    return row.hook_epoch
