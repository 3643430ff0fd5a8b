"""What a log means, event by event, and that it means the same however it is read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, strategies as st

from klbr_trio.domain.events import Event, Retry
from klbr_trio.domain.project import Projection, Wait, project

NONE = {"receipt": None, "reason": None, "retry": None}


def log(*bodies: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(n, "s", kind, payload, n) for n, (kind, payload) in enumerate(bodies, 1)]


def admitted(n: int) -> tuple[str, dict[str, Any]]:
    return "input.admitted", {
        "source": "cli",
        "text": "hi",
        "client_request_id": None,
        "work_item_id": f"work-input-{n}",
    }


def started(attempt: str, *items: str) -> tuple[str, dict[str, Any]]:
    return "turn.started", {"attempt_id": attempt, "work_items": list(items), "causes": []}


def requested(call: str, code: str | None = "1") -> tuple[str, dict[str, Any]]:
    return "cell.requested", {"attempt_id": "op-1", "step": 2, "call_id": call, "code": code}


def finished(call: str) -> tuple[str, dict[str, Any]]:
    return "cell.finished", {"attempt_id": "op-1", "step": 2, "call_id": call}


def interrupted(why: str, *failed: str) -> tuple[str, dict[str, Any]]:
    return "turn.interrupted", {"attempt_id": "op-1", "why": why, "failed": list(failed)}


COMPLETED = ("turn.completed", {"attempt_id": "op-1", "outcome": "replied"})
DONE = ("turn.completed", {"attempt_id": "op-1", "outcome": "done"})
FAILED = ("turn.failed", {"attempt_id": "op-1", "code": "internal"})
WAITING = ("session.waiting", {"wake_at_ms": 90, **NONE})
RETRYING = ("session.waiting", {"wake_at_ms": 90, **NONE, "retry": {"of_ms": 30, "n": 2}})
RECEIPT = ("session.waiting", {**NONE, "wake_at_ms": None, "receipt": "r"})
WOKEN = ("session.woken", {"wake_at_ms": 90, "late_ms": 0})
STOPPED: tuple[str, dict[str, Any]] = ("session.stopped", {})
REOPENED = ("session.reopened", {"hook_epoch": 2})
RESET = ("kernel.reset", {"why": "operator", "hook_epoch": 2})
FOLDED = (
    "frontier.installed",
    {"epoch": 1, "drained_through_seq": 1, "summary": "", "derived_by": ""},
)
FOREIGN = ("my.kind", {"attempt_id": 7, "anything": []})
KINDS = (
    admitted(1), started("op-1", "work-input-1"), requested("c-1"), requested("c-2", None),
    finished("c-1"), interrupted("shutdown"), interrupted("crash", "work-input-1"),
    interrupted("stopped"), COMPLETED, DONE, FAILED, WAITING, RETRYING, RECEIPT, WOKEN, STOPPED,
    REOPENED, RESET, FOLDED, FOREIGN,
)  # fmt: skip


@pytest.mark.parametrize(
    ("bodies", "state", "pending", "wake_at_ms"),
    [
        ((), "ready", [], None),
        ((admitted(1), admitted(2)), "ready", [1, 2], None),
        ((admitted(1), started("op-1", "work-input-1")), "executing", [1], None),
        ((admitted(1), started("op-1", "work-input-1"), admitted(2), COMPLETED), "ready", [3], None),
        ((admitted(1), started("op-1", "work-input-1"), FAILED), "ready", [], None),
        ((admitted(1), started("op-1", "work-input-1"), interrupted("crash")), "ready", [1], None),
        (
            (admitted(1), started("op-1", "work-input-1"), interrupted("crash", "work-input-1")),
            "ready", [], None,
        ),
        ((started("op-1"), WAITING, COMPLETED), "waiting", [], 90),
        ((WAITING, started("op-1")), "executing", [], 90),
        ((WAITING, started("op-1"), FAILED), "waiting", [], 90),
        ((WAITING, started("op-1"), COMPLETED), "waiting", [], 90),
        ((WAITING, started("op-1"), interrupted("shutdown")), "waiting", [], 90),
        ((WAITING, started("op-1"), DONE), "ready", [], None),
        ((WAITING, WOKEN), "ready", [], None),
        ((WAITING, started("op-1"), WOKEN), "executing", [], None),
        ((RECEIPT,), "waiting", [], None),
        (
            (admitted(1), started("op-1", "work-input-1"), admitted(2), WAITING,
             interrupted("stopped"), STOPPED),
            "stopped", [3], None,
        ),
        ((admitted(1), STOPPED, REOPENED), "ready", [1], None),
        ((FOREIGN,), "ready", [], None),
    ],
)  # fmt: skip
def test_state_inputs_and_deadline(
    bodies: tuple[tuple[str, dict[str, Any]], ...],
    state: str,
    pending: list[int],
    wake_at_ms: int | None,
) -> None:
    facts = project(log(*bodies))
    assert (facts.state, list(facts.pending_inputs), facts.wake_at_ms) == (
        state,
        pending,
        wake_at_ms,
    )
    assert facts.head_seq == len(bodies)


def test_calls_are_open_until_they_have_a_result_or_the_attempt_ends() -> None:
    facts = project(log(started("op-1"), requested("c-1"), requested("c-2"), finished("c-1")))
    assert (facts.open_attempt, facts.open_calls) == ("op-1", {"c-2": 2})
    ended = project(log(started("op-1"), requested("c-1"), interrupted("shutdown")))
    assert (ended.open_attempt, ended.open_calls) == (None, {})


def test_a_crash_is_remembered_until_a_turn_begins() -> None:
    assert project(log(started("op-1"), interrupted("crash"))).recovered_attempt == "op-1"
    assert project(log(started("op-1"), interrupted("shutdown"))).recovered_attempt is None
    again = project(log(started("op-1"), interrupted("crash"), started("op-2")))
    assert again.recovered_attempt is None


@pytest.mark.parametrize(
    ("bodies", "used"),
    [
        ((started("op-1"), requested("c-1", None)), False),
        ((started("op-1"), requested("c-1")), True),
        ((started("op-1"), requested("c-1"), finished("c-1"), RESET), False),
        ((started("op-1"), requested("c-1"), requested("c-2"), finished("c-1"), RESET), True),
        ((started("op-1"), requested("c-1"), finished("c-1"), STOPPED), False),
        ((started("op-1"), requested("c-1"), finished("c-1"), STOPPED, REOPENED), False),
    ],
)
def test_whether_a_kernel_may_hold_something(
    bodies: tuple[tuple[str, dict[str, Any]], ...], *, used: bool
) -> None:
    assert project(log(*bodies)).kernel_used is used


def test_a_completed_attempt_ends_a_series_of_retries_and_keeps_its_deadline() -> None:
    assert project(log(RETRYING)).wait == Wait(1, 90, None, None, Retry(30, 2))
    assert project(log(RETRYING, started("op-1"), COMPLETED)).wait == Wait(1, 90, None, None, None)
    failed = project(log(RETRYING, started("op-1"), FAILED))
    assert failed.wait == Wait(1, 90, None, None, Retry(30, 2))


def test_epochs_and_folds() -> None:
    facts = project(log(admitted(1), RESET, FOLDED))
    assert (facts.hook_epoch, facts.fold_epoch, facts.fold_seq) == (2, 1, 1)


@pytest.mark.parametrize("seq", [0, 1, 3])
def test_an_event_out_of_order_is_refused(seq: int) -> None:
    facts = project(log(admitted(1)))
    with pytest.raises(ValueError, match=f"seq {seq} after 1"):
        facts.apply(Event(seq, "s", "my.kind", {}, 1))


@given(st.lists(st.sampled_from(KINDS), max_size=25), st.data())
def test_a_prefix_and_then_the_rest_is_the_whole(
    bodies: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    events = log(*bodies)
    at = data.draw(st.integers(0, len(events)))
    facts: Projection = project(events[:at])
    before = copy.deepcopy(events)
    for event in events[at:]:
        facts.apply(event)
    assert facts == project(events)
    assert events == before


@given(st.lists(st.sampled_from(KINDS), max_size=25))
def test_whatever_happened_the_facts_agree_with_each_other(
    bodies: list[tuple[str, dict[str, Any]]],
) -> None:
    facts = project(log(*bodies))
    if facts.state == "ready":
        assert facts.wait is None
    if facts.state == "executing":
        assert facts.open_attempt is not None
    if facts.open_attempt is None:
        assert facts.held == ()
    assert all(seq <= facts.head_seq for seq in facts.pending_inputs)
