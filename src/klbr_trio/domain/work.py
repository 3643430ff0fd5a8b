"""Work items: the reasons for which a session runs.

Two rules. Everything that changes a work item's status is in this file. `MOVES`
says which statuses have which moves; the functions below it are the only ways to
make a status, and a test walks the table against them.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import attrs

from klbr_trio.domain.ids import OperationId
from klbr_trio.domain.text import cut_note
from klbr_trio.errors import IllegalTransition

if TYPE_CHECKING:
    from collections.abc import Mapping


def _note(text: str) -> str:
    return cut_note(text) or ""


@attrs.frozen
class InputReady:
    """An input was admitted; `seq` is that of its `input.admitted`."""

    seq: int


@attrs.frozen
class DeadlineWake:
    """A deadline came due; `wake_at_ms` is the time it was armed for."""

    wake_at_ms: int


@attrs.frozen
class Repair:
    """An attempt failed; the agent gets one turn to make good. `of` is that attempt."""

    of: str


@attrs.frozen
class Recovery:
    """An attempt was broken off too often by crashes; the agent is told of it."""

    attempt_id: str


@attrs.frozen
class MaintenanceReady:
    """Something else asks for a turn of its own: `purpose` says what for."""

    item_id: str
    purpose: str = attrs.field(converter=_note)


RunCause: TypeAlias = InputReady | DeadlineWake | Repair | Recovery | MaintenanceReady


@attrs.frozen
class Pending:
    """Waits for a claim."""


@attrs.frozen
class Claimed:
    """One attempt holds it, and no other can write its outcome."""

    attempt_id: str
    claimed_ms: int


@attrs.frozen
class Completed:
    """Ended well; `how` is the outcome of its turn."""

    how: str


@attrs.frozen
class Failed:
    """Ended badly, for good; a failed item is never overwritten."""

    reason: str


@attrs.frozen
class Cancelled:
    """Ended by somebody who did not want it any more."""

    why: str


WorkStatus: TypeAlias = Pending | Claimed | Completed | Failed | Cancelled


class Move(enum.Enum):
    """What can happen to a work item."""

    CLAIM = "claim"
    RELEASE = "release"  # its attempt was interrupted
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"


MOVES: Final[Mapping[type[WorkStatus], Mapping[Move, type[WorkStatus]]]] = {
    Pending: {Move.CLAIM: Claimed, Move.CANCEL: Cancelled},
    Claimed: {
        Move.RELEASE: Pending,
        Move.COMPLETE: Completed,
        Move.FAIL: Failed,
        Move.CANCEL: Cancelled,
    },
    Completed: {},
    Failed: {},
    Cancelled: {},
}


def _check(status: WorkStatus, move: Move) -> None:
    if move not in MOVES[type(status)]:
        raise IllegalTransition(f"a work item that is {status!r} has no move {move.value!r}")


def claim(status: WorkStatus, *, attempt_id: str, now_ms: int) -> Claimed:
    """An attempt takes the item."""
    _check(status, Move.CLAIM)
    return Claimed(attempt_id, now_ms)


def release(status: WorkStatus) -> Pending:
    """The attempt that held the item was interrupted; it may be claimed again."""
    _check(status, Move.RELEASE)
    return Pending()


def complete(status: WorkStatus, *, how: str) -> Completed:
    """The item's turn ended well."""
    _check(status, Move.COMPLETE)
    return Completed(how)


def fail(status: WorkStatus, *, reason: str) -> Failed:
    """The item's turn failed."""
    _check(status, Move.FAIL)
    return Failed(reason)


def cancel(status: WorkStatus, *, why: str) -> Cancelled:
    """Nobody wants the item any more."""
    _check(status, Move.CANCEL)
    return Cancelled(why)


class Impact(enum.Enum):
    """How much hangs on a work item."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


@attrs.frozen
class ConsequenceMetadata:
    """What a work item's outcome means to its maker."""

    impact: Impact = Impact.NORMAL


@attrs.frozen
class Provenance:
    """Who made a work item, and when."""

    kind: str
    name: str
    created_ms: int

    @classmethod
    def agent(cls, name: str, created_ms: int) -> Self:
        """Made by an agent."""
        return cls("agent", name, created_ms)

    @classmethod
    def operator(cls, name: str, created_ms: int) -> Self:
        """Made by the operator or another client."""
        return cls("operator", name, created_ms)

    @classmethod
    def system(cls, name: str, created_ms: int) -> Self:
        """Made by the service itself."""
        return cls("system", name, created_ms)


@attrs.frozen
class WorkItem:
    """A reason for a session to run.

    Attributes:
        id: Unique in the store.
        purpose: For people and the model; at most 1,000 characters are kept.
        session_id: None until `with_session`; the store takes only items that have one.
    """

    id: str
    purpose: str
    cause: RunCause
    consequence: ConsequenceMetadata
    provenance: Provenance
    created_ms: int
    session_id: str | None = None
    status: WorkStatus = Pending()

    @classmethod
    def new(
        cls,
        id: str,  # noqa: A002
        purpose: str,
        cause: RunCause,
        consequence: ConsequenceMetadata,
        provenance: Provenance,
        created_ms: int,
    ) -> Self:
        """A pending item that belongs to no session yet."""
        return cls(id, _note(purpose), cause, consequence, provenance, created_ms)

    def with_session(self, session_id: str) -> WorkItem:
        """The same item, of that session."""
        return WorkItem(
            self.id,
            self.purpose,
            self.cause,
            self.consequence,
            self.provenance,
            self.created_ms,
            str(session_id),
            self.status,
        )


__all__ = [
    "MOVES",
    "Cancelled",
    "Claimed",
    "Completed",
    "ConsequenceMetadata",
    "DeadlineWake",
    "Failed",
    "Impact",
    "InputReady",
    "MaintenanceReady",
    "Move",
    "OperationId",
    "Pending",
    "Provenance",
    "Recovery",
    "Repair",
    "RunCause",
    "WorkItem",
    "WorkStatus",
    "cancel",
    "claim",
    "complete",
    "fail",
    "release",
]
