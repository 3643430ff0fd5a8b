"""Texts are measured and cut in the form in which they are stored."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from klbr_trio.domain.text import (
    MESSAGE_BYTES,
    NAME_CHARS,
    NOTE_CHARS,
    TEXT_BYTES,
    check_name,
    check_text,
    clean,
    cut,
    cut_message,
    cut_note,
    has_surrogate,
    json_bytes,
)
from klbr_trio.errors import BadRequest, TooLarge

ANY_TEXT = st.text(st.characters(), max_size=600)
SOUND_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=600)


@given(SOUND_TEXT)
def test_the_measure_is_the_length_in_stored_form(text: str) -> None:
    assert json_bytes(text) == len(json.dumps(text, ensure_ascii=False).encode()) - 2


@given(ANY_TEXT, st.integers(100, 400))
def test_a_cut_text_fits_and_can_be_stored(text: str, limit: int) -> None:
    short = cut(text, limit)
    assert json_bytes(short) <= limit
    assert cut(short, limit) == short


@given(SOUND_TEXT, st.integers(100, 4000))
def test_what_fits_is_left_alone_and_what_is_cut_keeps_its_ends(text: str, limit: int) -> None:
    short = cut(text, limit)
    if json_bytes(text) <= limit:
        assert short == text
        return
    head, note, tail = short.split("\n[... ")[0], short.rsplit("\n[... ", 1)[1], short[-1:]
    assert text.startswith(head)
    assert text.endswith(tail)
    left_out = int(note.split(" characters left out ...]\n")[0])
    kept = note.split(" characters left out ...]\n", 1)[1]
    assert len(text) == len(short.rsplit("\n[... ", 1)[0]) + left_out + len(kept)


@pytest.mark.parametrize("character", ["a", "\x00", "é", "😀", '"', "\n"])
def test_the_largest_text_is_taken_whole_and_one_more_byte_is_not(character: str) -> None:
    each = json_bytes(character)
    text = character * (TEXT_BYTES // each) + "a" * (TEXT_BYTES % each)
    check_text("text", text)
    assert cut(text) == text
    with pytest.raises(TooLarge, match=f"text has {TEXT_BYTES + 1} bytes in JSON form"):
        check_text("text", text + "a")
    assert json_bytes(cut(text + "a")) <= TEXT_BYTES


@given(ANY_TEXT)
def test_a_text_is_taken_if_and_only_if_it_can_be_stored_as_it_is(text: str) -> None:
    taken = bool(text) and not has_surrogate(text)
    try:
        check_text("text", text)
    except BadRequest:
        assert not taken
    else:
        assert taken
        assert text.encode().decode() == text


def test_an_empty_text_is_taken_where_that_is_allowed() -> None:
    check_text("text", "", empty_ok=True)
    with pytest.raises(BadRequest, match="text must not be empty"):
        check_text("text", "")


@given(ANY_TEXT)
def test_cleaning_replaces_lone_surrogates_alone(text: str) -> None:
    cleaned = clean(text)
    assert not has_surrogate(cleaned)
    assert [a for a, b in zip(text, cleaned, strict=True) if a != b] == [
        a for a in text if "\ud800" <= a <= "\udfff"
    ]


@pytest.mark.parametrize("name", ["a", "a" * NAME_CHARS, "Zoë 😀", "a b"])
def test_names_that_are_taken(name: str) -> None:
    check_name("source", name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "must not be empty"),
        ("a" * (NAME_CHARS + 1), "at most 128"),
        ("a\nb", "control characters"),
        ("a\x00", "control characters"),
        ("a\x7f", "control characters"),
        ("a\x85", "control characters"),
        ("a\ud800", "lone surrogates"),
    ],
)
def test_names_that_are_refused(name: str, why: str) -> None:
    with pytest.raises(BadRequest, match=f"source.*{why}"):
        check_name("source", name)


def test_an_empty_name_is_taken_where_that_is_allowed() -> None:
    check_name("client_request_id", "", empty_ok=True)


def test_notes_and_messages_have_their_own_bounds() -> None:
    assert cut_note(None) is None
    assert cut_note("a" * NOTE_CHARS) == "a" * NOTE_CHARS
    assert cut_note("a" * (NOTE_CHARS + 1)) == "a" * (NOTE_CHARS - 1) + "…"
    assert cut_note("\ud800") == "\ufffd"
    assert json_bytes(cut_message("é" * MESSAGE_BYTES)) <= MESSAGE_BYTES


@given(ANY_TEXT)
def test_a_name_is_taken_if_and_only_if_it_can_be_shown_on_one_line(text: str) -> None:
    name = text[:NAME_CHARS]
    wrong = any(
        character <= "\x1f" or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff"
        for character in name
    )
    try:
        check_name("source", name, empty_ok=True)
    except BadRequest:
        assert wrong
    else:
        assert not wrong
