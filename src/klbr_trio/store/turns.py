"""Turns: what an attempt commits, from its claim to its closing event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.domain import session as sessions, work
from klbr_trio.domain.clock import within_reach
from klbr_trio.domain.events import (
    CellFinished,
    CellRequested,
    KernelReset,
    LocalSent,
    ReplyReceived,
    Retry,
    Scratchpad,
    SessionWaiting,
    TurnCompleted,
    TurnStarted,
)
from klbr_trio.domain.project import Wait
from klbr_trio.domain.text import TEXT_BYTES
from klbr_trio.errors import ClaimLost, IllegalTransition
from klbr_trio.store.calls import finish, request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from klbr_trio.store.rows import SessionRow, WorkRow
    from klbr_trio.store.tx import Tx

INPUTS_PER_TURN: Final = 100


@attrs.frozen
class Turn:
    """An open attempt and what it is for.

    Attributes:
        started_seq: The seq of its `turn.started`.
        hook_epoch: The hook epoch at which it began.
    """

    session_id: str
    attempt_id: str
    causes: tuple[work.RunCause, ...]
    items: tuple[work.WorkItem, ...]
    started_seq: int
    hook_epoch: int


@attrs.frozen
class Results:
    """Results of calls, and the end of the kernel that ran them.

    Attributes:
        kernel_gone: Why the kernel is gone (`died`), or None while it lives.
    """

    finished: tuple[CellFinished, ...] = ()
    kernel_gone: str | None = None


@attrs.frozen
class WaitFor:
    """What a cell asked for with `runtime.wait`."""

    wake_at_ms: int
    reason: str | None


def claim(
    tx: Tx, session_id: str, *, attempt_id: str, release: str | None, model: str | None
) -> Turn | None:
    """Every runnable item of the session belongs to a new attempt; None if nothing is runnable."""
    row = tx.session(session_id)
    if row is None or not _is_free(row):
        return None
    chosen = _choose(tx, session_id)
    if not chosen:
        return None
    return _start(tx, row, chosen, attempt_id=attempt_id, now_ms=tx.now_ms, source=(release, model))


def claim_item(tx: Tx, item_id: str, *, attempt_id: str, now_ms: int) -> Turn | None:
    """That one item belongs to a new attempt; None if it can't be claimed."""
    found = tx.work_item(item_id)
    if found is None or not isinstance(found.item.status, work.Pending):
        return None
    row = tx.known(str(found.item.session_id))
    if not _is_free(row):
        return None
    return _start(tx, row, [found], attempt_id=attempt_id, now_ms=now_ms, source=(None, None))


def _is_free(row: SessionRow) -> bool:
    return not row.stopped and row.attempt_id is None


def _choose(tx: Tx, session_id: str) -> list[WorkRow]:
    """The items of the next turn: the oldest pending ones; maintenance goes alone."""
    chosen: list[WorkRow] = []
    size = 0
    for row in tx.pending_work(session_id, 2 * INPUTS_PER_TURN):
        cause = row.item.cause
        if isinstance(cause, work.MaintenanceReady):
            if not chosen:
                return [row]
            continue
        if isinstance(cause, work.InputReady):
            size += tx.input_bytes(session_id, cause.seq)
        if chosen and (size > TEXT_BYTES or len(chosen) >= INPUTS_PER_TURN):
            break
        chosen.append(row)
    return chosen


def _start(
    tx: Tx,
    row: SessionRow,
    chosen: Sequence[WorkRow],
    *,
    attempt_id: str,
    now_ms: int,
    source: tuple[str | None, str | None],
) -> Turn:
    if tx.attempt_exists(attempt_id):
        raise IllegalTransition(f"attempt id {attempt_id} was used before; take a fresh one")
    sessions.begin(row.state, attempt_id=attempt_id, epoch=row.hook_epoch)
    items = tuple(found.item for found in chosen)
    causes: tuple[work.RunCause, ...] = tuple(item.cause for item in items)
    if row.recovered_attempt is not None and work.Recovery(row.recovered_attempt) not in causes:
        causes = (work.Recovery(row.recovered_attempt), *causes)
    row.recovered_attempt = None
    for found in chosen:
        status = work.claim(found.item.status, attempt_id=attempt_id, now_ms=now_ms)
        tx.set_status(found, status)
    release, model = source
    started = tx.append(
        row,
        TurnStarted(attempt_id, causes, tuple(item.id for item in items), release, model),
    )
    row.attempt_id = attempt_id
    if row.kernel_boot is not None and row.kernel_boot != tx.boot:
        reset_kernel_facts(tx, row, "restart")
    tx.open_attempt(row, attempt_id, started_seq=started, release=release)
    tx.save(row)
    return Turn(row.session_id, attempt_id, causes, items, started, row.hook_epoch)


def reset_kernel_facts(tx: Tx, row: SessionRow, why: str) -> None:
    """The log says that the session's kernel is gone; the next one has a new epoch."""
    row.hook_epoch += 1
    row.kernel_boot = tx.boot if row.open_calls else None  # what is open runs in the next one
    tx.append(row, KernelReset(why, row.hook_epoch))


def reply(
    tx: Tx,
    turn: Turn,
    received: ReplyReceived,
    *,
    scratchpad: str | None,
    calls: Sequence[CellRequested],
    refused: Iterable[CellFinished],
) -> None:
    """The model's reply is in the log, with its calls and the results of those that can't run.

    Raises:
        ClaimLost: The attempt has ended.
    """
    row = tx.held(turn.session_id, turn.attempt_id)
    tx.append(row, received)
    tx.count_usage(turn.session_id, received.usage)
    if scratchpad:
        tx.append(row, Scratchpad(scratchpad, turn.attempt_id, received.step))
    for call in calls:
        request(tx, row, call)
    finish(tx, row, refused)
    tx.save(row)


def say(tx: Tx, turn: Turn, said: LocalSent, *, hook_epoch: int) -> int:
    """The words are in the log; returns their seq.

    Args:
        tx: The transaction.
        turn: The attempt that says them.
        said: The words, and the call that says them (None: the reply itself).
        hook_epoch: That of the kernel that asks.

    Raises:
        ClaimLost: The attempt or the call has ended, or the kernel was reset.
    """
    row = tx.held(turn.session_id, turn.attempt_id)
    if said.call_id is not None:
        if row.hook_epoch != hook_epoch:
            raise ClaimLost("the kernel was reset; what it says is not taken any more")
        if said.call_id not in row.open_calls:
            raise ClaimLost(f"call {said.call_id} has ended")
    seq = tx.append(row, said)
    tx.save(row)
    return seq


def result(tx: Tx, turn: Turn, results: Results) -> None:
    """The results of calls are in the log.

    Raises:
        ClaimLost: The attempt or one of the calls has ended.
    """
    row = tx.held(turn.session_id, turn.attempt_id)
    take(tx, row, results)
    tx.save(row)


def take(tx: Tx, row: SessionRow, results: Results) -> None:
    """The log has the results of calls, and the end of their kernel after them."""
    finish(tx, row, results.finished)
    if results.kernel_gone is not None:
        reset_kernel_facts(tx, row, results.kernel_gone)


def complete(
    tx: Tx,
    turn: Turn,
    *,
    outcome: str,
    wait: WaitFor | None,
    results: Results,
    usage: Mapping[str, Any] | None,
) -> None:
    """The turn has ended well: its items are completed, its wait is armed.

    Args:
        tx: The transaction.
        turn: The attempt.
        outcome: `waiting` (then `wait` is given), `done` or `replied`.
        wait: The deadline to arm.
        results: The last results.
        usage: The turn's tokens, summed.

    Raises:
        ClaimLost: The attempt or one of the calls has ended.
        IllegalTransition: A call has no result yet.
        ValueError: There is no `wait` although the outcome says so, or the reverse.
    """
    if (wait is not None) != (outcome == "waiting"):
        raise ValueError(f"outcome {outcome!r} does not go with wait {wait!r}")
    row = tx.held(turn.session_id, turn.attempt_id)
    take(tx, row, results)
    if row.open_calls:
        raise IllegalTransition(f"calls without a result: {', '.join(row.open_calls)}")
    if wait is not None:
        wait_until(tx, row, wake_at_ms=wait.wake_at_ms, reason=wait.reason)
    elif outcome == "done":
        row.wait = None
    if row.wait is not None:
        row.wait = attrs.evolve(row.wait, retry=None)
    tx.append(row, TurnCompleted(turn.attempt_id, outcome, usage))
    for found in tx.work_of(turn.attempt_id):
        tx.set_status(found, work.complete(found.item.status, how=outcome))
    tx.forget_retries(turn.session_id)
    leave(tx, row, how="completed")


def wait_until(
    tx: Tx,
    row: SessionRow,
    *,
    wake_at_ms: int | None,
    reason: str | None,
    receipt: str | None = None,
    retry: Retry | None = None,
) -> None:
    """`session.waiting` is in the log, and ends any earlier wait.

    A time that can't be stored is the nearest one that can.
    """
    if wake_at_ms is not None:
        wake_at_ms = within_reach(wake_at_ms)
    waiting = SessionWaiting(wake_at_ms, reason, receipt, retry)
    seq = tx.append(row, waiting)
    row.wait = Wait(seq, waiting.wake_at_ms, waiting.receipt, waiting.reason, waiting.retry)


def leave(tx: Tx, row: SessionRow, *, how: str) -> None:
    """The open attempt has ended; the session is ready, or waits as it did."""
    assert row.attempt_id is not None
    state = row.state
    if row.wait is None:
        sessions.settle(state)
    else:
        wait = row.wait
        sessions.wait(state, receipt=wait.receipt, wake_at_ms=wait.wake_at_ms, reason=wait.reason)
    tx.end_attempt(row.attempt_id, how)
    row.attempt_id = None
    tx.arm(row)
    tx.save(row)


__all__ = [
    "Results",
    "Retry",
    "Turn",
    "WaitFor",
    "claim",
    "claim_item",
    "complete",
    "leave",
    "reply",
    "reset_kernel_facts",
    "result",
    "say",
    "take",
    "wait_until",
]
