"""The tables of legal moves and the functions that make them say the same."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from klbr_trio.domain import session, work
from klbr_trio.errors import IllegalTransition

if TYPE_CHECKING:
    from collections.abc import Callable

STATUSES: dict[type[work.WorkStatus], work.WorkStatus] = {
    work.Pending: work.Pending(),
    work.Claimed: work.Claimed("op-1", 5),
    work.Completed: work.Completed("done"),
    work.Failed: work.Failed("bound_time"),
    work.Cancelled: work.Cancelled("stopped"),
}
WORK_MOVES: dict[
    work.Move, tuple[Callable[[work.WorkStatus], work.WorkStatus], work.WorkStatus]
] = {
    work.Move.CLAIM: (
        lambda status: work.claim(status, attempt_id="op-2", now_ms=7),
        work.Claimed("op-2", 7),
    ),
    work.Move.RELEASE: (work.release, work.Pending()),
    work.Move.COMPLETE: (
        lambda status: work.complete(status, how="replied"),
        work.Completed("replied"),
    ),
    work.Move.FAIL: (lambda status: work.fail(status, reason="internal"), work.Failed("internal")),
    work.Move.CANCEL: (
        lambda status: work.cancel(status, why="stopped"),
        work.Cancelled("stopped"),
    ),
}

STATES: dict[type[session.SessionState], session.SessionState] = {
    session.Ready: session.Ready(),
    session.Executing: session.Executing("op-1", 1),
    session.Waiting: session.Waiting(None, 90, "later"),
    session.Draining: session.Draining(),
    session.Stopped: session.Stopped(),
}
SESSION_MOVES: dict[
    session.Move,
    tuple[Callable[[session.SessionState], session.SessionState], session.SessionState],
] = {
    session.Move.BEGIN: (
        lambda state: session.begin(state, attempt_id="op-2", epoch=3),
        session.Executing("op-2", 3),
    ),
    session.Move.SETTLE: (session.settle, session.Ready()),
    session.Move.WAIT: (
        lambda state: session.wait(state, receipt="r", wake_at_ms=None, reason="why"),
        session.Waiting("r", None, "why"),
    ),
    session.Move.WAKE: (session.wake, session.Ready()),
    session.Move.STOP: (session.stop, session.Stopped()),
    session.Move.REOPEN: (session.reopen, session.Ready()),
    session.Move.DRAIN: (session.drain, session.Draining()),
}


@pytest.mark.parametrize(("kind", "move"), list(product(STATUSES, WORK_MOVES)))
def test_work_items_move_as_their_table_says(kind: type[work.WorkStatus], move: work.Move) -> None:
    function, reached = WORK_MOVES[move]
    if move in work.MOVES[kind]:
        assert function(STATUSES[kind]) == reached
        assert type(reached) is work.MOVES[kind][move]
    else:
        with pytest.raises(IllegalTransition, match=move.value):
            function(STATUSES[kind])


@pytest.mark.parametrize(("kind", "move"), list(product(STATES, SESSION_MOVES)))
def test_sessions_move_as_their_table_says(
    kind: type[session.SessionState], move: session.Move
) -> None:
    function, reached = SESSION_MOVES[move]
    if move in session.MOVES[kind]:
        assert function(STATES[kind]) == reached
        assert type(reached) is session.MOVES[kind][move]
    else:
        with pytest.raises(IllegalTransition, match=kind.__name__.lower()):
            function(STATES[kind])


def test_the_tables_know_every_state_and_every_move() -> None:
    assert set(work.MOVES) == set(STATUSES)
    assert set(session.MOVES) == set(STATES)
    assert set(WORK_MOVES) == set(work.Move)
    assert set(SESSION_MOVES) == set(session.Move)


def test_an_ended_work_item_has_no_move() -> None:
    ended = (work.Completed, work.Failed, work.Cancelled)
    assert [dict(work.MOVES[kind]) for kind in ended] == [{}, {}, {}]


def test_only_a_reopening_leaves_stopped() -> None:
    assert dict(session.MOVES[session.Stopped]) == {session.Move.REOPEN: session.Ready}


def test_a_new_item_is_pending_and_belongs_to_nobody() -> None:
    made = work.Provenance.agent("a-tool", 3)
    item = work.WorkItem.new(
        "w-1",
        "p" * 2000,
        work.MaintenanceReady("w-1", "q" * 2000),
        work.ConsequenceMetadata(work.Impact.HIGH),
        made,
        4,
    )
    assert (item.session_id, item.status, item.created_ms) == (None, work.Pending(), 4)
    assert len(item.purpose) == 1000
    assert isinstance(item.cause, work.MaintenanceReady)
    assert len(item.cause.purpose) == 1000
    of_session = item.with_session("s-1")
    assert of_session.session_id == "s-1"
    assert of_session == work.WorkItem(
        item.id, item.purpose, item.cause, item.consequence, made, 4, "s-1", work.Pending()
    )


def test_provenance_says_who() -> None:
    assert work.Provenance.operator("ann", 1) == work.Provenance("operator", "ann", 1)
    assert work.Provenance.system("wake_due", 2) == work.Provenance("system", "wake_due", 2)
