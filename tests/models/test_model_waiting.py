from __future__ import annotations

import pytest

from klbr_trio.models.failure.failure import Failure, Kind
from klbr_trio.models.failure.policy import (
    Again,
    GiveUp,
    OtherBase,
    Tried,
    Without,
    decide,
)
from klbr_trio.models.failure.waiting import asked_to_wait, duration

DATE = "Tue, 01 Dec 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "words", "seconds"),
    [
        ({}, "", None),
        ({"retry-after": "7"}, "", 7),
        ({"retry-after": "1.5"}, "", 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, "", 0.25),
        ({"retry-after": "Tue, 01 Dec 2026 10:00:30 GMT", "date": DATE}, "", 30),
        ({"retry-after": "Tue, 01 Dec 2026 09:00:00 GMT", "date": DATE}, "", 0),
        ({"retry-after": "Tue, 01 Dec 2026 10:00:30 GMT"}, "", None),
        ({"retry-after": "soon"}, "", None),
        ({"retry-after": "-5"}, "", None),
        ({"retry-after": "inf"}, "", None),
        ({"retry-after": "nan"}, "", None),
        ({"x-ratelimit-reset-requests": "1.2s"}, "", 1.2),
        ({"x-ratelimit-reset-tokens": "6m0s"}, "", 360),
        ({"x-ratelimit-reset-requests": "80ms"}, "", 0.08),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "3s"}, "", 1),
        (
            {
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-requests": "900",
                "x-ratelimit-reset-tokens": "3s",
                "x-ratelimit-remaining-tokens": "0",
            },
            "",
            3,
        ),
        ({"x-ratelimit-reset": "1796119215", "date": DATE}, "", 15),
        ({"x-ratelimit-reset": "1796119215000", "date": DATE}, "", 15),
        ({"anthropic-ratelimit-requests-reset": "2026-12-01T10:00:20Z", "date": DATE}, "", 20),
        ({}, "Please try again in 1.5s.", 1.5),
        ({}, "Limit reached; retry after 20 seconds", 20),
        ({}, "try again in 7m12s", 432),
        ({"retry-after": "2"}, "try again in 60s", 2),
        ({}, "the limit is 20 requests a minute", None),
    ],
)
def test_the_time_that_a_provider_names(
    headers: dict[str, str], words: str, seconds: float | None
) -> None:
    assert asked_to_wait(headers, words) == pytest.approx(seconds)


def test_reset_headers_mean_nothing_without_a_limit() -> None:
    headers = {"x-ratelimit-reset-tokens": "6m0s"}
    assert asked_to_wait(headers, "try again in 5s", limited=False) is None
    assert asked_to_wait({**headers, "retry-after": "2"}, "", limited=False) == 2


@pytest.mark.parametrize(("text", "seconds"), [("1h2m3s", 3723), ("2 minutes", 120), ("x", None)])
def test_durations(text: str, seconds: float | None) -> None:
    assert duration(text) == seconds


def after(failure: Failure, *kinds: Kind, jitter: float = 0.0, **tried: float | bool) -> object:
    return decide(
        failure,
        Tried(failures=(*kinds, failure.kind), **tried),  # type: ignore[arg-type]
        attempts=5,
        patience_s=60.0,
        jitter=jitter,
    )


def test_waits_double_and_are_jittered_and_end() -> None:
    failure = Failure(Kind.BROKE_OFF, "x")
    waits = [after(failure, *[Kind.BROKE_OFF] * times) for times in range(5)]
    assert waits[:4] == [Again(0.4), Again(0.8), Again(1.6), Again(3.2)]
    assert isinstance(waits[4], GiveUp)
    assert after(failure, jitter=1.0) == Again(0.2)


def test_the_providers_time_is_kept_to() -> None:
    failure = Failure(Kind.LIMITED, "x", retry_after_s=10.0)
    assert after(failure) == Again(10.0, everyone=True)
    later = after(failure, jitter=1.0)
    assert isinstance(later, Again)
    assert 10 < later.wait_s < 12


def test_a_time_that_is_too_long_ends_it_at_once_and_says_so() -> None:
    decision = after(Failure(Kind.LIMITED, "x", retry_after_s=600.0))
    assert isinstance(decision, GiveUp)
    assert "600 s" in decision.why


def test_waiting_has_a_bound_in_all() -> None:
    failure = Failure(Kind.LIMITED, "x", retry_after_s=40.0)
    assert isinstance(after(failure, Kind.LIMITED, waited_s=40.0), GiveUp)


def test_a_model_that_loads_is_waited_for_longer() -> None:
    failure = Failure(Kind.LOADING, "x")
    assert isinstance(after(failure, *[Kind.LOADING] * 20, waited_s=100.0), Again)
    assert isinstance(after(failure, *[Kind.LOADING] * 20, waited_s=119.0), GiveUp)


def test_slips_are_tried_three_times() -> None:
    failure = Failure(Kind.SLIP, "x")
    assert isinstance(after(failure, Kind.SLIP), Again)
    assert isinstance(after(failure, Kind.SLIP, Kind.SLIP), GiveUp)


def test_silence_is_waited_for_twice() -> None:
    failure = Failure(Kind.SILENT, "x")
    assert isinstance(after(failure), Again)
    assert isinstance(after(failure, Kind.SILENT), GiveUp)


def test_an_unreachable_provider_is_told_of_quickly() -> None:
    failure = Failure(Kind.UNREACHABLE, "x")
    first, second, third = (after(failure, *[Kind.UNREACHABLE] * times) for times in range(3))
    assert isinstance(first, Again)
    assert isinstance(second, Again)
    assert first.wait_s + second.wait_s < 0.5
    assert isinstance(third, GiveUp)
    assert isinstance(after(failure, elapsed_s=10.0), GiveUp)


@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.CONTEXT, Kind.PATH])
def test_what_would_fail_again_is_not_tried_again(kind: Kind) -> None:
    assert after(Failure(kind, "x")) == GiveUp()


def test_a_refused_field_is_left_out_once() -> None:
    failure = Failure(Kind.FIELD, "x", field="stream_options")
    assert after(failure) == Without("stream_options")
    assert after(failure, dropped=frozenset({"stream_options"})) == GiveUp()  # type: ignore[arg-type]


def test_the_other_form_of_the_base_is_tried_if_there_is_one() -> None:
    assert after(Failure(Kind.PATH, "x"), other_base=True) == OtherBase()


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_an_end(kind: Kind) -> None:
    decision = decide(
        Failure(kind, "x", field="f"),
        Tried(failures=(kind,) * 100, waited_s=1e6, elapsed_s=1e6, dropped=frozenset({"f"})),
        attempts=5,
        patience_s=60.0,
        jitter=0.5,
    )
    assert isinstance(decision, GiveUp)
