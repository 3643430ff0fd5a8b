"""Figures: what has happened in a service since its start, counted as it happens.

Everything here comes from what the store has committed, so that a figure and the log
never disagree; a scrape reads nothing but numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

from klbr_trio.domain.events import (
    InputAdmitted,
    ReplyReceived,
    SessionWoken,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
)
from klbr_trio.domain.usage import amounts

if TYPE_CHECKING:
    from klbr_trio.domain.events import Body
    from klbr_trio.store import Written

_FAST: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30)
_LATE: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 3600, 86_400)
# Only names that are ours become labels: what a provider says is no bounded set.
_TOKENS: Final = {"prompt_tokens": "prompt", "completion_tokens": "completion"}
_OUTCOMES: Final = {
    TurnCompleted: "completed",
    TurnFailed: "failed",
    TurnInterrupted: "interrupted",
}


@attrs.define(eq=False)
class Figures:
    """The counters and histograms of one service."""

    registry: CollectorRegistry = attrs.field(factory=CollectorRegistry)
    _turns: Counter = attrs.field(init=False)
    _failures: Counter = attrs.field(init=False)
    _tokens: Counter = attrs.field(init=False)
    _admitted: Counter = attrs.field(init=False)
    _acknowledged: Counter = attrs.field(init=False)
    _admission: Histogram = attrs.field(init=False)
    _commit: Histogram = attrs.field(init=False)
    _wake: Histogram = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        to = self.registry
        ProcessCollector(registry=to)
        self._turns = Counter("klbr_turns", "Turns that ended.", ["outcome"], registry=to)
        for outcome in _OUTCOMES.values():
            self._turns.labels(outcome)
        self._failures = Counter(
            "klbr_turn_failures", "Turns that failed, by the failure's code.", ["code"], registry=to
        )
        self._tokens = Counter(
            "klbr_tokens", "Tokens that providers have counted.", ["kind"], registry=to
        )
        for kind in _TOKENS.values():
            self._tokens.labels(kind)
        self._admitted = Counter("klbr_inputs_admitted", "New inputs stored.", registry=to)
        self._acknowledged = Counter(
            "klbr_inputs_acknowledged", "Inputs acknowledged, repeated ones included.", registry=to
        )
        self._admission = Histogram(
            "klbr_admission_seconds",
            "Time from an input's turn to its acknowledgement.",
            buckets=_FAST,
            registry=to,
        )
        self._commit = Histogram(
            "klbr_commit_seconds", "Time that a commit took.", buckets=_FAST, registry=to
        )
        self._wake = Histogram(
            "klbr_wake_lateness_seconds",
            "How late deadlines fired; the time that no service ran included.",
            buckets=_LATE,
            registry=to,
        )

    def acknowledged(self, count: int, seconds: float) -> None:
        """So many inputs were acknowledged, each within that time."""
        self._acknowledged.inc(count)
        for _ in range(count):
            self._admission.observe(seconds)

    def written(self, written: Written) -> None:
        """A commit was made."""
        self._commit.observe(written.seconds)
        for body in written.bodies:
            self._event(body)

    def _event(self, body: Body) -> None:
        outcome = _OUTCOMES.get(type(body))
        if outcome is not None:
            self._turns.labels(outcome).inc()
        match body:
            case InputAdmitted():
                self._admitted.inc()
            case TurnFailed(code=code):
                self._failures.labels(code).inc()
            case ReplyReceived(usage=usage):
                self._count_tokens(usage)
            case SessionWoken(late_ms=late_ms):
                self._wake.observe(max(0, late_ms) / 1000)
            case _:
                pass

    def _count_tokens(self, usage: object) -> None:
        found = amounts(usage)
        for name, kind in _TOKENS.items():
            self._tokens.labels(kind).inc(found.get(name, 0))
