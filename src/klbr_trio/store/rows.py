"""The records that operations read and write, and how they lie in the tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import attrs

from klbr_trio.domain import session as sessions, work
from klbr_trio.domain.events import Retry
from klbr_trio.domain.project import Wait
from klbr_trio.wire.codec import cause_from_json, dumps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klbr_trio.domain.session import SessionState

SESSION_COLUMNS: Final = (
    "session_id, created_ms, state, head_seq, hook_epoch, attempt_id, wait_seq, wake_at_ms, "
    "receipt, reason, retry_of_ms, retry_n, fold_epoch, fold_seq, recovered_attempt, kernel_boot, "
    "open_calls"
)

WORK_COLUMNS: Final = (
    "id, purpose, cause, impact, maker_kind, maker, made_ms, created_ms, session_id, status, "
    "attempt_id, claimed_ms, outcome, crashes, retry_of_ms, retry_n"
)

_NO_CALLS: Final = "{}"


@attrs.define
class SessionRow:
    """One session's facts, as an operation reads, changes and saves them.

    Attributes:
        saved_head: `head_seq` as it stands in the table: the fence of the next save.
        recovered_attempt: An attempt that a crash broke off, until a turn mentions it.
        kernel_boot: The service in which a kernel ran cells, until its end is announced.
        open_calls: The open attempt's calls without a result, in order → their step.
    """

    session_id: str
    created_ms: int
    head_seq: int = 0
    stopped: bool = False
    attempt_id: str | None = None
    wait: Wait | None = None
    hook_epoch: int = 1
    fold_epoch: int = 0
    fold_seq: int | None = None
    recovered_attempt: str | None = None
    kernel_boot: int | None = None
    open_calls: dict[str, int] = attrs.field(factory=dict)
    saved_head: int | None = None

    @property
    def state(self) -> SessionState:
        """The stored state as a value."""
        if self.stopped:
            return sessions.Stopped()
        if self.attempt_id is not None:
            return sessions.Executing(self.attempt_id, self.hook_epoch)
        if self.wait is not None:
            return sessions.Waiting(self.wait.receipt, self.wait.wake_at_ms, self.wait.reason)
        return sessions.Ready()

    @property
    def state_name(self) -> str:
        """The stored state's word."""
        return type(self.state).__name__.lower()

    @property
    def wake_at_ms(self) -> int | None:
        """The armed deadline."""
        return None if self.wait is None else self.wait.wake_at_ms

    def columns(self) -> tuple[Any, ...]:
        """The values of every column after `session_id` and `created_ms`."""
        wait = self.wait
        retry = None if wait is None else wait.retry
        return (
            self.state_name,
            self.head_seq,
            self.hook_epoch,
            self.attempt_id,
            None if wait is None else wait.seq,
            self.wake_at_ms,
            None if wait is None else wait.receipt,
            None if wait is None else wait.reason,
            None if retry is None else retry.of_ms,
            None if retry is None else retry.n,
            self.fold_epoch,
            self.fold_seq,
            self.recovered_attempt,
            self.kernel_boot,
            dumps(self.open_calls) if self.open_calls else _NO_CALLS,
        )


def session_row(values: Sequence[Any]) -> SessionRow:
    """A row in the order of `SESSION_COLUMNS`."""
    (sid, created, state, head, epoch, attempt, wait_seq, wake_at, receipt, reason,
     retry_of, retry_n, fold_epoch, fold_seq, recovered, kernel_boot, calls) = values  # fmt: skip
    retry = None if retry_of is None else Retry(retry_of, retry_n)
    return SessionRow(
        session_id=sid,
        created_ms=created,
        head_seq=head,
        stopped=state == "stopped",
        attempt_id=attempt,
        wait=None if wait_seq is None else Wait(wait_seq, wake_at, receipt, reason, retry),
        hook_epoch=epoch,
        fold_epoch=fold_epoch,
        fold_seq=fold_seq,
        recovered_attempt=recovered,
        kernel_boot=kernel_boot,
        open_calls={} if calls == _NO_CALLS else json.loads(calls),
        saved_head=head,
    )


@attrs.frozen
class WorkRow:
    """A work item with what only the store knows of it.

    Attributes:
        crashes: How often a crash broke off an attempt that held it.
        retry: Set in the wake of a retry deadline.
    """

    item: work.WorkItem
    crashes: int
    retry: Retry | None


def work_row(values: Sequence[Any]) -> WorkRow:
    """A row in the order of `WORK_COLUMNS`."""
    (item_id, purpose, cause, impact, maker_kind, maker, made_ms, created_ms, session_id, status,
     attempt_id, claimed_ms, outcome, crashes, retry_of, retry_n) = values  # fmt: skip
    item = work.WorkItem(
        id=item_id,
        purpose=purpose,
        cause=cause_from_json(cause),
        consequence=work.ConsequenceMetadata(work.Impact(impact)),
        provenance=work.Provenance(maker_kind, maker, made_ms),
        created_ms=created_ms,
        session_id=session_id,
        status=_status(status, attempt_id, claimed_ms, outcome),
    )
    return WorkRow(item, crashes, None if retry_of is None else Retry(retry_of, retry_n))


def _status(
    name: str, attempt_id: str | None, claimed_ms: int | None, outcome: str | None
) -> work.WorkStatus:
    match name:
        case "claimed":
            assert attempt_id is not None
            assert claimed_ms is not None
            return work.Claimed(attempt_id, claimed_ms)
        case "completed":
            return work.Completed(outcome or "")
        case "failed":
            return work.Failed(outcome or "")
        case "cancelled":
            return work.Cancelled(outcome or "")
        case _:
            return work.Pending()


def status_columns(
    status: work.WorkStatus, held_by: str | None
) -> tuple[str, str | None, int | None, str | None]:
    """`status`, `attempt_id`, `claimed_ms` and `outcome` of an item.

    An ended item keeps the name of the attempt that ended it.
    """
    match status:
        case work.Pending():
            return ("pending", None, None, None)
        case work.Claimed(attempt_id, claimed_ms):
            return ("claimed", attempt_id, claimed_ms, None)
        case work.Completed(how):
            return ("completed", held_by, None, how)
        case work.Failed(reason):
            return ("failed", held_by, None, reason)
        case work.Cancelled(why):
            return ("cancelled", held_by, None, why)


@attrs.frozen
class EventRow:
    """A stored record, its payload still the JSON that the wire carries."""

    seq: int
    session_id: str
    kind: str
    payload: str
    created_ms: int


def children_to_json(children: tuple[str, ...]) -> str:
    """A frontier's `source_children` as stored."""
    return json.dumps(list(children), ensure_ascii=False)
