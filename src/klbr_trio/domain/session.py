"""The states of a session, and the table of its legal moves.

`Draining` is shown while a service shuts down and is never stored. Everything
else is the shadow of the log: `project` computes it from the events alone.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from klbr_trio.errors import IllegalTransition

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen
class Ready:
    """Runs as soon as it has a reason."""


@attrs.frozen
class Executing:
    """An attempt is open.

    Attributes:
        epoch: The session's hook epoch: that of the kernel whose calls are taken.
    """

    attempt_id: str
    epoch: int


@attrs.frozen
class Waiting:
    """Sleeps until a time, a receipt, or any other reason to run.

    Attributes:
        receipt: What is awaited besides the time, or None.
        wake_at_ms: When it wakes, or None.
        reason: The agent's words; None in a session restored after a restart.
    """

    receipt: str | None
    wake_at_ms: int | None
    reason: str | None


@attrs.frozen
class Draining:
    """The service is going down; nothing new is taken."""


@attrs.frozen
class Stopped:
    """The operator stopped it; only the operator's reset reopens it."""


SessionState: TypeAlias = Ready | Executing | Waiting | Draining | Stopped


class Move(enum.Enum):
    """What can happen to a session."""

    BEGIN = "begin"  # an attempt opens
    SETTLE = "settle"  # the attempt ends and nothing is awaited
    WAIT = "wait"  # a time or a receipt is awaited, or still is when an attempt ends
    WAKE = "wake"  # the deadline fired
    STOP = "stop"
    REOPEN = "reopen"
    DRAIN = "drain"


MOVES: Final[Mapping[type[SessionState], Mapping[Move, type[SessionState]]]] = {
    Ready: {
        Move.BEGIN: Executing,
        Move.WAIT: Waiting,
        Move.STOP: Stopped,
        Move.DRAIN: Draining,
    },
    Executing: {
        Move.SETTLE: Ready,
        Move.WAIT: Waiting,
        Move.STOP: Stopped,
        Move.DRAIN: Draining,
    },
    Waiting: {
        Move.BEGIN: Executing,
        Move.WAIT: Waiting,
        Move.WAKE: Ready,
        Move.STOP: Stopped,
        Move.DRAIN: Draining,
    },
    Draining: {Move.STOP: Stopped},
    Stopped: {Move.REOPEN: Ready},
}


def _check(state: SessionState, move: Move) -> None:
    if move not in MOVES[type(state)]:
        name = type(state).__name__.lower()
        raise IllegalTransition(f"a session that is {name} has no move {move.value!r}")


def begin(state: SessionState, *, attempt_id: str, epoch: int) -> Executing:
    """An attempt opens."""
    _check(state, Move.BEGIN)
    return Executing(attempt_id, epoch)


def settle(state: SessionState) -> Ready:
    """The attempt ends and nothing is awaited."""
    _check(state, Move.SETTLE)
    return Ready()


def wait(
    state: SessionState, *, receipt: str | None, wake_at_ms: int | None, reason: str | None
) -> Waiting:
    """A time or a receipt is awaited."""
    _check(state, Move.WAIT)
    return Waiting(receipt, wake_at_ms, reason)


def wake(state: SessionState) -> Ready:
    """The deadline fired."""
    _check(state, Move.WAKE)
    return Ready()


def stop(state: SessionState) -> Stopped:
    """The operator stops it."""
    _check(state, Move.STOP)
    return Stopped()


def reopen(state: SessionState) -> Ready:
    """The operator resets a stopped session."""
    _check(state, Move.REOPEN)
    return Ready()


def drain(state: SessionState) -> Draining:
    """The service goes down."""
    _check(state, Move.DRAIN)
    return Draining()
