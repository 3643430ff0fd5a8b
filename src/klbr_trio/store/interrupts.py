"""Interrupts: an attempt ends by something that is not its own.

One function for shutdown, abort and recovery; the operator's Stop shares its first
half and adds the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.domain import work
from klbr_trio.domain.events import TurnInterrupted
from klbr_trio.store.calls import finish, results_of
from klbr_trio.store.turns import leave

if TYPE_CHECKING:
    from klbr_trio.store.rows import SessionRow, WorkRow
    from klbr_trio.store.tx import Tx

TOO_OFTEN: Final = "interrupted_too_often"

BECAUSE: Final = {
    "stopped": "the operator stopped the session",
    "shutdown": "the service was shut down",
    "aborted": "the turn was aborted",
    "crash": "the service crashed",
}
"""What the model is told of a call that an interrupt broke off, by `why`."""


@attrs.frozen
class CrashRule:
    """What becomes of items whose attempts crashes break off.

    Attributes:
        max_crashes: The crash that ends an item.
        observe: Whether the agent then gets a turn to say so.
    """

    max_crashes: int = 3
    observe: bool = True


def interrupt(
    tx: Tx, session_id: str, attempt_id: str, *, why: str, rule: CrashRule | None = None
) -> bool:
    """The attempt is interrupted and its items are pending again; False if it had ended.

    Args:
        tx: The transaction.
        session_id: Its session.
        attempt_id: The attempt.
        why: `shutdown`, `aborted` or `crash`.
        rule: Of `crash`: what becomes of an item that crashes broke off too often.
    """
    row = tx.session(session_id)
    if row is None or row.attempt_id != attempt_id:
        return False
    finish(tx, row, results_of(tx, row, because=BECAUSE[why]))
    rule = rule or CrashRule()
    failed = []
    recovery_wanted = False
    for found in tx.work_of(attempt_id):
        if why == "crash" and _too_often(found, rule):
            failed.append(found.item.id)
            status: work.WorkStatus = work.fail(found.item.status, reason=TOO_OFTEN)
            recovery_wanted |= not isinstance(found.item.cause, work.Recovery)
        else:
            status = work.release(found.item.status)
        tx.set_status(found, status, crashes=int(why == "crash"))
    tx.append(row, TurnInterrupted(attempt_id, why, tuple(failed)))
    if why == "crash":
        row.recovered_attempt = attempt_id
        if recovery_wanted and rule.observe:
            _make_recovery(tx, row, attempt_id)
    leave(tx, row, how="interrupted")
    return True


def _too_often(found: WorkRow, rule: CrashRule) -> bool:
    return isinstance(found.item.cause, work.Recovery) or found.crashes + 1 >= rule.max_crashes


def _make_recovery(tx: Tx, row: SessionRow, attempt_id: str) -> None:
    item = work.WorkItem.new(
        tx.free_work_id(f"work-recovery-{attempt_id}"),
        "say what crashes broke off",
        work.Recovery(attempt_id),
        work.ConsequenceMetadata(),
        work.Provenance.system("recovery", tx.now_ms),
        tx.now_ms,
    )
    tx.add_work(tx.next_work(), item.with_session(row.session_id))


def stop_attempt(tx: Tx, row: SessionRow) -> None:
    """The open attempt, if any, is interrupted by the operator's Stop; what it held is cancelled."""
    attempt_id = row.attempt_id
    if attempt_id is None:
        return
    finish(tx, row, results_of(tx, row, because=BECAUSE["stopped"]))
    for found in tx.work_of(attempt_id):
        tx.set_status(found, work.cancel(found.item.status, why="stopped"))
    tx.append(row, TurnInterrupted(attempt_id, "stopped", ()))
    leave(tx, row, how="interrupted")
