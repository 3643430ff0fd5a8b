"""Failed turns: one repair at the most, and no wake used up by an outage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.domain import work
from klbr_trio.domain.events import Retry, TurnFailed
from klbr_trio.store.calls import finish, results_of
from klbr_trio.store.turns import Results, leave, take, wait_until

if TYPE_CHECKING:
    from klbr_trio.store.rows import SessionRow, WorkRow
    from klbr_trio.store.turns import Turn
    from klbr_trio.store.tx import Tx

_MINUTE_MS: Final = 60_000
_FIRST_DELAYS_MS: Final = (1 * _MINUTE_MS, 5 * _MINUTE_MS, 15 * _MINUTE_MS)
_LATER_DELAY_MS: Final = 60 * _MINUTE_MS
_GIVE_UP_AFTER_MS: Final = 7 * 24 * 60 * _MINUTE_MS


@attrs.frozen
class Failure:
    """Why a turn failed.

    Attributes:
        code: `provider_unavailable`, `bound_steps` …
        message: For the operator and the model: what is wrong and what to do.
        retryable: Whether the same turn may succeed later.
    """

    code: str
    message: str
    retryable: bool


def fail(tx: Tx, turn: Turn, failure: Failure, *, results: Results) -> None:
    """The turn has failed: its items with it; a repair is made, or a wake armed again.

    A call that has no result, here or before, gets one that says what is known of it.

    Raises:
        ClaimLost: The attempt or one of the calls has ended.
    """
    row = tx.held(turn.session_id, turn.attempt_id)
    take(tx, row, results)
    finish(tx, row, results_of(tx, row, because=f"the turn failed: {failure.code}"))
    items = tx.work_of(turn.attempt_id)
    for found in items:
        tx.set_status(found, work.fail(found.item.status, reason=failure.code))
    if failure.retryable:
        _arm_again(tx, row, items, failure)
    tx.append(
        row,
        TurnFailed(
            "turn_failed", turn.attempt_id, failure.code, failure.message, failure.retryable
        ),
    )
    if any(not isinstance(found.item.cause, work.Repair) for found in items):
        _make_repair(tx, row, turn.attempt_id, failure)
    leave(tx, row, how="failed")


def _make_repair(tx: Tx, row: SessionRow, attempt_id: str, failure: Failure) -> None:
    item = work.WorkItem.new(
        tx.free_work_id(f"work-repair-{attempt_id}"),
        f"make good what failed: {failure.code}",
        work.Repair(attempt_id),
        work.ConsequenceMetadata(),
        work.Provenance.system("turn.failed", tx.now_ms),
        tx.now_ms,
    )
    tx.add_work(tx.next_work(), item.with_session(row.session_id))


def _arm_again(tx: Tx, row: SessionRow, items: list[WorkRow], failure: Failure) -> None:
    """If the repair of a wake failed, the session is woken again, later and later."""
    if row.wake_at_ms is not None:
        return
    retries = [
        _next_retry(tx, wake, found.item.cause.of)
        for found in items
        if isinstance(found.item.cause, work.Repair)
        for wake in tx.work_of(found.item.cause.of)
        if isinstance(wake.item.cause, work.DeadlineWake) and wake.item.session_id == row.session_id
    ]
    if not retries:
        return
    retry = max(retries, key=lambda one: one.of_ms)
    wake_at_ms = tx.now_ms + delay_ms(retry.n)
    if wake_at_ms > retry.of_ms + _GIVE_UP_AFTER_MS:
        return
    wait_until(
        tx,
        row,
        wake_at_ms=wake_at_ms,
        reason=f"try {retry.n} again of the wake that failed: {failure.message}",
        receipt=None if row.wait is None else row.wait.receipt,
        retry=retry,
    )


def _next_retry(tx: Tx, wake: WorkRow, attempt_id: str) -> Retry:
    """The retry after that of a wake which `attempt_id` held; a completed attempt ends a series."""
    ended = tx.completed_since(str(wake.item.session_id), tx.started_seq(attempt_id))
    if wake.retry is not None and not ended:
        return Retry(wake.retry.of_ms, wake.retry.n + 1)
    assert isinstance(wake.item.cause, work.DeadlineWake)
    return Retry(wake.item.cause.wake_at_ms, 1)


def delay_ms(n: int) -> int:
    """How long after its `n`th failure a wake is tried again: 1, 5, 15, then 60 minutes."""
    return _FIRST_DELAYS_MS[n - 1] if n <= len(_FIRST_DELAYS_MS) else _LATER_DELAY_MS
