"""Strictness of the one converter, causes as they are stored, and JSON that can be read again."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from klbr_trio.domain import work
from klbr_trio.domain.events import TurnStarted
from klbr_trio.domain.ids import OperationId
from klbr_trio.errors import BadRequest
from klbr_trio.wire.codec import (
    cause_from_json,
    check_cause,
    dumps,
    is_deeper,
    loads,
    structure,
)
from klbr_trio.wire.records import payload_of


@attrs.frozen
class Inner:
    n: int


@attrs.frozen
class Outer:
    name: str
    flag: bool = False
    share: float = 0.5
    tags: tuple[str, ...] = ()
    inner: Inner | None = None


def test_values_are_taken_as_they_are() -> None:
    values = {
        "name": "a", "flag": True, "share": 1.5, "tags": ["x"], "inner": {"n": 1}, "more": 1,
    }  # fmt: skip
    assert structure(values, Outer) == Outer("a", True, 1.5, ("x",), Inner(1))
    assert structure({"name": "a", "inner": None}, Outer) == Outer("a")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "name is missing"),
        ({"name": b"a"}, "name must be a string, not bytes"),
        ({"name": "a", "flag": 1}, "flag must be a boolean, not an integer"),
        ({"name": "a", "share": 1}, "share must be a number, not an integer"),
        ({"name": "a", "tags": "xy"}, "tags must be a list, not a string"),
        ({"name": "a", "tags": {"x": 1}}, "tags must be a list, not an object"),
        ({"name": "a", "tags": [1]}, "tags must be a string, not an integer"),
        ({"name": "a", "inner": {"n": 1.5}}, "inner n must be an integer, not a number with"),
        ({"name": "a", "inner": {"n": True}}, "inner n must be an integer, not a boolean"),
        ({"name": "a", "inner": {"n": None}}, "inner n must be an integer, not null"),
        ({"name": "a", "inner": 3}, "inner"),
    ],
)
def test_nothing_is_coerced(values: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        structure(values, Outer)


def test_every_wrong_field_is_named() -> None:
    with pytest.raises(BadRequest, match=r"flag must be a boolean.*; tags must be a list"):
        structure({"name": "a", "flag": 0, "tags": 0}, Outer)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(2**53), 2**53)
CAUSES: st.SearchStrategy[work.RunCause] = st.one_of(
    st.builds(work.InputReady, NUMBERS),
    st.builds(work.DeadlineWake, NUMBERS),
    st.builds(work.Repair, NAMES),
    st.builds(work.Recovery, NAMES),
    st.builds(work.MaintenanceReady, NAMES, NAMES),
)


def test_a_cause_may_name_its_attempt_by_the_type_for_that() -> None:
    check_cause(work.Repair(OperationId.fresh()))


@given(CAUSES)
def test_a_cause_is_read_as_it_was_stored(cause: work.RunCause) -> None:
    check_cause(cause)
    [stored] = payload_of(TurnStarted("op-1", (cause,), (), None, None))["causes"]
    assert cause_from_json(dumps(stored)) == cause


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (work.DeadlineWake(2**53 + 1), "wake_at_ms must lie within"),
        (work.InputReady(1.0), "seq must be an integer"),  # type: ignore[arg-type]
        (work.Repair("\ud800"), "of holds a lone surrogate"),
        (work.Repair(None), "of is missing"),  # type: ignore[arg-type]
        (work.MaintenanceReady(3, "x"), "item_id must be a string"),  # type: ignore[arg-type]
        (work.Repair(b"x"), "cause holds what JSON does not have"),  # type: ignore[arg-type]
        (object(), "run causes, not object"),
    ],
)
def test_a_cause_that_could_not_be_read_back_is_refused(cause: Any, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        check_cause(cause)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"type":7}', '{"type":"other"}', '{"type":"repair"}', "nonsense"]
)
def test_what_is_no_stored_cause(text: str) -> None:
    with pytest.raises(BadRequest):
        cause_from_json(text)


def test_bytes_that_are_no_text_are_no_json() -> None:
    assert loads(b'{"a":1}') == {"a": 1}
    with pytest.raises(BadRequest, match="not JSON"):
        loads(b'"\xff"')


def test_what_goes_out_is_compact_and_has_no_nan() -> None:
    assert dumps({"a": ["é", 1, None]}) == '{"a":["é",1,null]}'
    with pytest.raises(ValueError, match="JSON"):
        dumps(float("nan"))


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@given(st.integers(0, 30), st.integers(0, 30))
def test_depth_counts_lists_and_objects(levels: int, limit: int) -> None:
    assert is_deeper(nested(levels), limit) == (levels > limit)
    assert json.loads(dumps(nested(levels))) == nested(levels)
