from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, strategies as st

from klbr_trio.cli.terminal import to_json, visible, visible_line

DRIVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢 👩\u200d🚀\tand\nlines", "plain ü 漢 👩\u200d🚀\tand\nlines"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("over\rwritten", "over\\x0dwritten"),
        ("a\u202eb\u200bc\ufeff", "a\\u202eb\\u200bc\\ufeff"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("\x7f\x00", "\\x7f\\x00"),
    ],
)
def test_what_could_drive_a_terminal_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(), st.text())
def test_a_sequence_split_across_pieces_is_caught_as_well(first: str, second: str) -> None:
    assert visible(first) + visible(second) == visible(first + second)
    assert not DRIVES.search(visible(first + second))


@given(st.text())
def test_a_line_is_one_line(text: str) -> None:
    assert len(visible_line(text).splitlines()) <= 1


@given(st.recursive(st.text() | st.integers() | st.none(), lambda x: st.lists(x, max_size=3)))
def test_json_reads_back_as_it_was_and_drives_nothing(value: object) -> None:
    text = to_json(value)
    assert json.loads(text) == value
    assert not DRIVES.search(text)
    assert "\n" not in text
