"""Stored payloads and the frames that carry them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from klbr_trio.domain.events import CellFinished, InputAdmitted, Note, ReplyReceived
from klbr_trio.domain.text import PAYLOAD_BYTES, TEXT_BYTES
from klbr_trio.errors import TooLarge
from klbr_trio.wire.codec import MAX_DEPTH
from klbr_trio.wire.records import decode_event, encode_payload, event_frame, payload_of

FRAME_BYTES = 1024 * 1024
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(TEXT, JSON), st.integers(1, 2**53), TEXT)
def test_a_frame_is_the_json_of_its_record(payload: dict[str, Any], seq: int, kind: str) -> None:
    stored = encode_payload(Note(kind, payload))
    event = decode_event(seq, "s-1", kind, stored, 5)
    assert event.payload == payload
    assert json.loads(event_frame(seq, "s-1", kind, stored, 5)) == {
        "type": "event",
        "record": {
            "seq": seq,
            "session_id": "s-1",
            "kind": kind,
            "payload": payload,
            "created_ms": 5,
        },
    }


@pytest.mark.parametrize(
    "body",
    [
        InputAdmitted("😀" * 128, "\x00" * (TEXT_BYTES // 6), "😀" * 128, "work-input-1"),
        CellFinished(
            "op-1", 1, "c" * 128, ok=False, output="\x00" * TEXT_BYTES, value="é" * TEXT_BYTES,
            error="\n" * TEXT_BYTES, truncated=True, duration_ms=1,
        ),
    ],
)  # fmt: skip
def test_the_largest_record_fits_a_frame(body: InputAdmitted | CellFinished) -> None:
    payload = encode_payload(body)
    assert len(payload.encode()) <= PAYLOAD_BYTES
    frame = event_frame(2**53, "s" * 128, body.kind, payload, 2**53)
    assert len(frame.encode()) <= FRAME_BYTES


def test_a_payload_at_its_bound_fits_a_frame_whatever_its_kind() -> None:
    payload = '"' + "a" * (PAYLOAD_BYTES - 2) + '"'
    frame = event_frame(2**53, "s" * 128, "😀" * 128, payload, 2**53)
    assert len(frame.encode()) <= FRAME_BYTES


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 5_000, 100_000])
def test_what_is_nested_without_end_is_refused(levels: int) -> None:
    with pytest.raises(TooLarge, match="nested deeper than 64 levels"):
        encode_payload(Note("my.kind", deep(levels)))
    with pytest.raises(TooLarge, match=r"reply\.received is nested deeper"):
        encode_payload(ReplyReceived("op-1", 1, None, None, None, deep(levels)))


def test_what_is_nested_as_deep_as_allowed_can_be_read_from_any_stack() -> None:
    stored = encode_payload(Note("my.kind", deep(MAX_DEPTH)))

    def from_below(frames: int) -> dict[str, Any]:
        if frames:
            return from_below(frames - 1)
        return decode_event(1, "s", "my.kind", stored, 1).payload

    assert from_below(600) == deep(MAX_DEPTH)


def test_a_lone_surrogate_of_a_provider_is_replaced() -> None:
    body = ReplyReceived("op-1", 1, "m\ud800", None, None, {"\udfff": "\ud800"})
    assert encode_payload(body).encode().decode().count("\ufffd") == 3


def test_a_note_is_its_payload() -> None:
    payload = {"b": [1], "a": None}
    assert payload_of(Note("my.kind", payload)) == payload
