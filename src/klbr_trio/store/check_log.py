"""One session's log, read from its first event: what is wrong with it, and what it implies.

`Log` says which event could not have been written by a sound service, and gathers
what the other tables must hold if the log is true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from klbr_trio.domain.events import KINDS, CellRequested, Scratchpad
from klbr_trio.domain.project import Projection
from klbr_trio.store.interrupts import TOO_OFTEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from klbr_trio.domain.events import Event

ItemState: TypeAlias = tuple[str, str | None, str | None]
"""Status, attempt and outcome of a work item."""

_PENDING: Final[ItemState] = ("pending", None, None)
_ENDS: Final = {
    "turn.completed": "completed",
    "turn.failed": "failed",
    "turn.interrupted": "interrupted",
}
_NOT_WHILE_STOPPED: Final = frozenset(
    {"input.admitted", "turn.started", "session.waiting", "session.woken", "session.stopped"}
)
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset(field.name for field in attrs.fields(body)) for kind, body in KINDS.items()
}


@attrs.define
class Attempt:
    """What the log says of one attempt; `how` is None while it is open."""

    id: str
    started_seq: int
    items: tuple[str, ...]
    how: str | None = None


@attrs.define
class Log:
    """A session's log as far as it was read.

    Attributes:
        inputs: Seq → work item id.
        folds: Epoch, `drained_through_seq`, summary and author of each fold.
        items: What the log makes of each item that an attempt ever held.
        crashes: How often a crash broke off an attempt that held the item.
        wakes: The times of the deadlines that fired.
        ever_stopped: Whether items that no attempt held may be cancelled.
        broken: What follows can't be judged.
        step: The step of the attempt that was begun last.
        calls: Every call id that this attempt has seen.
    """

    facts: Projection = attrs.field(factory=Projection)
    inputs: dict[int, str] = attrs.field(factory=dict)
    folds: list[tuple[int, int, str, str]] = attrs.field(factory=list)
    attempts: list[Attempt] = attrs.field(factory=list)
    items: dict[str, ItemState] = attrs.field(factory=dict)
    crashes: dict[str, int] = attrs.field(factory=dict)
    wakes: list[int] = attrs.field(factory=list)
    ever_stopped: bool = False
    broken: bool = False
    step: int = 0
    calls: set[str] = attrs.field(factory=set)

    def take(self, event: Event) -> Iterator[str]:
        """What is wrong with the next event."""
        if event.seq != self.facts.head_seq + 1:
            self.broken = True
            yield f"event {event.seq} comes after {self.facts.head_seq}"
            return
        for line in self._read(event):
            yield f"event {event.seq} ({event.kind}): {line}"

    def _read(self, event: Event) -> Iterator[str]:
        for line in _shape(event):
            self.broken = True
            yield line
        if self.broken:
            return
        try:
            yield from _judge(self, event)
            self.facts.apply(event)
        except (KeyError, TypeError, AttributeError) as exc:
            self.broken = True
            yield f"the payload can't be read: {exc!r}"


def _judge(log: Log, event: Event) -> Iterator[str]:
    if log.facts.stopped and event.kind in _NOT_WHILE_STOPPED:
        yield "the session is stopped"
    arm = _ARMS.get(event.kind)
    if arm is not None:
        yield from arm(log, event)
    if event.kind in KINDS and event.kind != "turn.started":
        yield from _of_attempt(log, event)


def _input(log: Log, event: Event) -> Iterator[str]:
    log.inputs[event.seq] = event.payload["work_item_id"]
    yield from ()


def _started(log: Log, event: Event) -> Iterator[str]:
    if log.facts.open_attempt is not None:
        yield f"attempt {log.facts.open_attempt} has no end"
    attempt = Attempt(event.payload["attempt_id"], event.seq, tuple(event.payload["work_items"]))
    log.attempts.append(attempt)
    for item in attempt.items:
        if log.items.get(item, _PENDING) != _PENDING:
            yield f"work item {item} is {log.items[item][0]}"
        log.items[item] = ("claimed", attempt.id, None)
    log.step = 0
    log.calls = set()


def _ended(log: Log, event: Event) -> Iterator[str]:
    if log.facts.open_calls:
        yield f"calls without a result: {sorted(log.facts.open_calls)}"
    if log.facts.open_attempt is None:
        return
    attempt = log.attempts[-1]
    attempt.how = _ENDS[event.kind]
    for item in attempt.items:
        log.items[item] = _ended_item(event, item)
    if event.payload.get("why") == "crash":
        for item in attempt.items:
            log.crashes[item] = log.crashes.get(item, 0) + 1


def _requested(log: Log, event: Event) -> Iterator[str]:
    call_id = event.payload["call_id"]
    if call_id in log.calls:
        yield f"call {call_id} was asked for before"
    log.calls.add(call_id)


def _of_call(log: Log, event: Event) -> Iterator[str]:
    call_id = event.payload["call_id"]
    if call_id is not None and call_id not in log.facts.open_calls:
        yield f"call {call_id} is not open"


def _woken(log: Log, event: Event) -> Iterator[str]:
    log.wakes.append(event.payload["wake_at_ms"])
    if event.payload["wake_at_ms"] != log.facts.wake_at_ms:
        yield f"the armed deadline is {log.facts.wake_at_ms}"


def _stopped(log: Log, event: Event) -> Iterator[str]:
    if log.facts.open_attempt is not None:
        yield f"attempt {log.facts.open_attempt} has no end"
    log.ever_stopped = True
    inputs = set(log.inputs.values())
    for item, state in log.items.items():
        if state == _PENDING and item not in inputs:
            log.items[item] = ("cancelled", None, "stopped")
    del event


def _epoch(log: Log, event: Event) -> Iterator[str]:
    if event.payload["hook_epoch"] != log.facts.hook_epoch + 1:
        yield f"its hook epoch follows {log.facts.hook_epoch}"
    if event.kind == "session.reopened" and not log.facts.stopped:
        yield "the session is not stopped"


def _fold(log: Log, event: Event) -> Iterator[str]:
    payload = event.payload
    drained = payload["drained_through_seq"]
    log.folds.append((payload["epoch"], drained, payload["summary"], payload["derived_by"]))
    if payload["epoch"] != log.facts.fold_epoch + 1:
        yield f"its epoch follows {log.facts.fold_epoch}"
    if not (log.facts.fold_seq or 0) <= drained < event.seq:
        yield f"it goes back or past its own place, to {drained}"


def _of_attempt(log: Log, event: Event) -> Iterator[str]:
    attempt_id = event.payload.get("attempt_id")
    if attempt_id is None:
        return
    if attempt_id != log.facts.open_attempt:
        yield f"the open attempt is {log.facts.open_attempt}"
    step = event.payload.get("step", log.step)
    if step > log.step and log.facts.open_calls:
        yield f"step {step} begins while {sorted(log.facts.open_calls)} have no result"
    if step < log.step:
        yield f"step {step} comes after step {log.step}"
    log.step = max(log.step, step)


def _ended_item(event: Event, item: str) -> ItemState:
    payload = event.payload
    attempt_id = payload["attempt_id"]
    if event.kind == "turn.completed":
        return ("completed", attempt_id, payload["outcome"])
    if event.kind == "turn.failed":
        return ("failed", attempt_id, payload["code"])
    if payload["why"] == "stopped":
        return ("cancelled", attempt_id, "stopped")
    return ("failed", attempt_id, TOO_OFTEN) if item in payload["failed"] else _PENDING


def _shape(event: Event) -> Iterator[str]:
    """What is wrong with the payload's keys and with the types that are relied upon."""
    payload: Any = event.payload
    if not isinstance(payload, dict):
        yield "the payload is not an object"
        return
    wanted = _KEYS.get(event.kind)
    if wanted is None or (event.kind == Scratchpad.kind and set(payload) == {"text"}):
        return
    optional = {"raw"} if event.kind == CellRequested.kind else set()
    missing, foreign = wanted - optional - set(payload), set(payload) - wanted
    if missing or foreign:
        yield f"keys missing: {sorted(missing)}, unknown: {sorted(foreign)}"
        return
    for name, kind in _TYPES.items():
        if name in payload and type(payload[name]) is not kind:
            yield f"{name} is {payload[name]!r}"


_TYPES: Final[Mapping[str, type]] = {
    "attempt_id": str, "step": int, "hook_epoch": int, "epoch": int, "drained_through_seq": int,
    "work_items": list, "failed": list, "work_item_id": str, "late_ms": int,
}  # fmt: skip

_ARMS: Final[Mapping[str, Callable[[Log, Event], Iterator[str]]]] = {
    "input.admitted": _input,
    "turn.started": _started,
    "turn.completed": _ended,
    "turn.failed": _ended,
    "turn.interrupted": _ended,
    "cell.requested": _requested,
    "cell.finished": _of_call,
    "local.sent": _of_call,
    "session.woken": _woken,
    "session.stopped": _stopped,
    "session.reopened": _epoch,
    "kernel.reset": _epoch,
    "frontier.installed": _fold,
}
