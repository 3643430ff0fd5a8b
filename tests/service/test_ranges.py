"""Which events a range has, for every head, fold, cursor and limit."""

from __future__ import annotations

from hypothesis import given, strategies as st

from klbr_trio.service.ranges import Range, page_before, window
from klbr_trio.store import SessionRow
from klbr_trio.wire.client import History, Subscribe

HEADS = st.integers(0, 40)
LIMITS = st.integers(0, 45)
CURSORS = st.integers(0, 45)


def row(head: int, fold: int | None) -> SessionRow:
    return SessionRow("s", 0, head_seq=head, fold_seq=None if fold is None else min(fold, head))


def seqs(found: Range) -> list[int]:
    assert found.first <= found.last + 1, "never less than empty"
    return list(range(found.first, found.last + 1))


@given(HEADS, st.none() | st.integers(0, 40), LIMITS)
def test_a_window_is_the_newest_above_the_fold(head: int, fold: int | None, limit: int) -> None:
    facts = row(head, fold)
    found = window(Subscribe(session_id="s", limit=limit), facts)
    above = [seq for seq in range(1, head + 1) if seq > (facts.fold_seq or 0)]
    assert seqs(found) == (above[-limit:] if limit else [])
    assert (found.last, found.fold) == (head, facts.fold_seq)


@given(HEADS, st.none() | st.integers(0, 40), st.integers(1, 45), LIMITS)
def test_a_catch_up_is_everything_after_the_cursor(
    head: int, fold: int | None, cursor: int, limit: int
) -> None:
    found = window(Subscribe(session_id="s", after_seq=cursor, limit=limit), row(head, fold))
    assert seqs(found) == [seq for seq in range(1, head + 1) if seq > cursor]
    assert found.last == head


@given(HEADS, st.none() | st.integers(0, 40), st.integers(1, 60), st.integers(1, 45))
def test_a_page_is_what_comes_just_before(
    head: int, fold: int | None, before: int, limit: int
) -> None:
    found = page_before(History(session_id="s", before_seq=before, limit=limit), row(head, fold))
    assert seqs(found) == [seq for seq in range(1, head + 1) if seq < before][-limit:]


def test_an_unknown_session_has_nothing() -> None:
    assert window(Subscribe(session_id="s"), None) == Range(1, 0, None)
    assert window(Subscribe(session_id="s", after_seq=9), None) == Range(1, 0, None)
    assert page_before(History(session_id="s", before_seq=9, limit=9), None) == Range(1, 0, None)
