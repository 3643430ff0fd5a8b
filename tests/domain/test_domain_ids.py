"""Names of sessions and attempts, and the times that can be stored."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from klbr_trio.domain.clock import FARTHEST_MS, wall_now_ms, within_reach
from klbr_trio.domain.ids import SESSION_ID_RULE, OperationId, SessionId, parse_session_id
from klbr_trio.errors import InvalidSessionId


@pytest.mark.parametrize("text", ["a", "0", "Z9._:@-", "a" * 128])
def test_session_ids(text: str) -> None:
    parsed = parse_session_id(text)
    assert parsed == text
    assert isinstance(parsed, SessionId)
    assert parse_session_id(parsed) == parsed


@pytest.mark.parametrize(
    "text",
    ["", ".a", "-a", "a" * 129, "a b", "a/b", "a\n", "\na", "é", "a\x00", "ａ", "٣", None, 7, b"a"],
)
def test_what_is_no_session_id(text: object) -> None:
    with pytest.raises(InvalidSessionId, match="session_id must be"):
        parse_session_id(text)


def test_a_refused_id_is_called_by_its_field() -> None:
    with pytest.raises(InvalidSessionId, match=r"^after must be"):
        parse_session_id("", field="after")


@given(st.from_regex(SESSION_ID_RULE, fullmatch=True))
def test_the_rule_is_what_is_taken(text: str) -> None:
    assert parse_session_id(text) == text


def test_operation_ids_are_fresh_strings() -> None:
    ids = {OperationId.fresh() for _ in range(100)}
    assert len(ids) == 100
    assert all(one.startswith("op-") for one in ids)


@given(st.integers(-(10**30), 10**30))
def test_times_within_reach_are_themselves_and_others_the_nearest(ms: int) -> None:
    near = within_reach(ms)
    assert -FARTHEST_MS <= near <= FARTHEST_MS
    assert near == ms or abs(near) == FARTHEST_MS


def test_the_wall_clock_tells_milliseconds_of_this_age() -> None:
    assert 1_600_000_000_000 < wall_now_ms() < 5_000_000_000_000
