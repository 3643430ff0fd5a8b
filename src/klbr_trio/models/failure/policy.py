"""What is done about a failed attempt: one pure function from the failure and what was tried.

No retry is decided anywhere else. Every series has a bound: a number of attempts, a time spent
waiting, and for what the model or its server garbles a smaller number.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from klbr_trio.models.failure.failure import Failure, Kind

_FIRST_WAIT_S: Final = 0.4
_LIMITED_WAIT_S: Final = 1.0
_MOST_S: Final = 15.0
_LOADING_MOST_S: Final = 5.0
_UNREACHABLE_WAITS_S: Final = (0.05, 0.15)  # both, and three refusals, in well under a second
_UNREACHABLE_WITHIN_S: Final = 0.5
_MOST_TIMES: Final = {Kind.SLIP: 3, Kind.SILENT: 2}


@attrs.frozen
class Tried:
    """What one request has been through with one model."""

    failures: tuple[Kind, ...] = ()
    """The kinds of the attempts that failed, this one included."""

    waited_s: float = 0.0
    elapsed_s: float = 0.0
    dropped: frozenset[str] = frozenset()
    """Fields left out since they were refused."""

    other_base: bool = False
    """Whether another form of the base is left to try."""


@attrs.frozen
class Again:
    """The same request is sent once more, after this time."""

    wait_s: float
    everyone: bool = False
    """Whether the provider's other requests wait too."""


@attrs.frozen
class Without:
    """The request is sent at once without that field, now and later."""

    field: str


@attrs.frozen
class OtherBase:
    """The request is sent at once to the other form of the base."""


@attrs.frozen
class GiveUp:
    """No further attempt with this model."""

    why: str = ""


Decision: TypeAlias = Again | Without | OtherBase | GiveUp


def decide(
    failure: Failure, tried: Tried, *, attempts: int, patience_s: float, jitter: float
) -> Decision:
    """What follows a failed attempt.

    Args:
        failure: How it failed.
        tried: What was done so far.
        attempts: How many attempts in all.
        patience_s: How long waiting may take in all.
        jitter: A random number from 0 to 1, so that many clients do not come back together.
    """
    match failure.kind:
        case Kind.FIELD if failure.field not in tried.dropped:
            return Without(failure.field)
        case Kind.PATH if tried.other_base:
            return OtherBase()
        case Kind.UNREACHABLE:
            return _unreachable(tried, attempts)
        case Kind.BROKE_OFF | Kind.SILENT | Kind.SLIP | Kind.LIMITED | Kind.LOADING:
            return _wait(failure, tried, attempts=attempts, patience_s=patience_s, jitter=jitter)
        case _:
            return GiveUp()


def _unreachable(tried: Tried, attempts: int) -> Decision:
    """Two more tries at once; then whoever asked should know."""
    times = tried.failures.count(Kind.UNREACHABLE)
    if times > len(_UNREACHABLE_WAITS_S) or len(tried.failures) >= attempts:
        return GiveUp()
    if tried.elapsed_s > _UNREACHABLE_WITHIN_S and times == len(tried.failures):
        return GiveUp()
    return Again(_UNREACHABLE_WAITS_S[times - 1])


def _wait(
    failure: Failure, tried: Tried, *, attempts: int, patience_s: float, jitter: float
) -> Decision:
    times = len(tried.failures)
    is_loading = failure.kind is Kind.LOADING
    if times >= attempts and not is_loading:
        return GiveUp(f"it was tried {times} times")
    if tried.failures.count(failure.kind) >= _MOST_TIMES.get(failure.kind, times + 1):
        return GiveUp(f"it was tried {times} times")
    patience_s = patience_s * 2 if is_loading else patience_s
    wait_s = _delay(failure, times, jitter=jitter)
    if tried.waited_s + wait_s > patience_s:
        asked = failure.retry_after_s
        if asked is not None and asked > patience_s - tried.waited_s:
            return GiveUp(f"the provider asks to wait {asked:.0f} s, longer than is waited here")
        return GiveUp(f"waiting took {tried.waited_s:.0f} s already")
    return Again(wait_s, everyone=failure.kind is Kind.LIMITED)


def _delay(failure: Failure, times: int, *, jitter: float) -> float:
    """The provider's time and a little more, or twice as long each time and a little less."""
    if failure.retry_after_s is not None:
        return failure.retry_after_s * (1 + jitter / 10) + jitter / 20
    first = _LIMITED_WAIT_S if failure.kind is Kind.LIMITED else _FIRST_WAIT_S
    most = _LOADING_MOST_S if failure.kind is Kind.LOADING else _MOST_S
    return min(most, first * 2.0 ** min(times - 1, 10)) * (1 - jitter / 2)
