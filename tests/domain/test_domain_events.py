"""Every kind of record, as it is stored and as it was always stored."""

from __future__ import annotations

import json

import attrs
import pytest
from golden_events import GOLDEN
from hypothesis import given, strategies as st

from klbr_trio.domain import events
from klbr_trio.domain.project import Projection
from klbr_trio.domain.text import MESSAGE_BYTES, NOTE_CHARS, TEXT_BYTES, json_bytes
from klbr_trio.wire.records import decode_event, encode_payload


@pytest.mark.parametrize(("body", "stored"), GOLDEN)
def test_a_record_is_stored_as_it_always_was(body: events.Body, stored: str) -> None:
    assert encode_payload(body) == stored


@pytest.mark.parametrize(("body", "stored"), GOLDEN)
def test_what_was_stored_is_still_read(body: events.Body, stored: str) -> None:
    event = decode_event(1, "s", body.kind, stored, 5)
    assert event == events.Event(1, "s", body.kind, json.loads(stored), 5)
    facts = Projection(open_attempt="op-1", stopped=False)
    facts.apply(event)
    assert facts.head_seq == 1


def test_every_kind_is_stored_somewhere_in_the_table() -> None:
    assert {body.kind for body, _ in GOLDEN} == set(events.KINDS) | {"my.kind"}


@pytest.mark.parametrize(("body", "stored"), GOLDEN)
def test_every_named_key_is_there(body: events.Body, stored: str) -> None:
    if isinstance(body, events.Note):
        return
    names = [field.name for field in attrs.fields(type(body))]
    if isinstance(body, events.CellRequested) and body.raw is None:
        names.remove("raw")
    assert list(json.loads(stored)) == names


HUGE = "é\ud800" * TEXT_BYTES


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        (events.Scratchpad(HUGE, "op-1", 1), ("text",)),
        (events.CellRequested("op-1", 1, "c", HUGE), ("code",)),
        (events.CellRequested("op-1", 1, "c", None, HUGE), ("raw",)),
        (
            events.CellFinished(
                "op-1", 1, "c", ok=False, output=HUGE, value=HUGE, error=HUGE, truncated=True,
                duration_ms=1,
            ),
            ("output", "value", "error"),
        ),
        (events.FrontierInstalled(1, 1, HUGE, "x"), ("summary",)),
    ],
)  # fmt: skip
def test_texts_of_models_and_kernels_are_bounded(body: events.Body, texts: tuple[str, ...]) -> None:
    for name in texts:
        assert TEXT_BYTES - 100 <= json_bytes(getattr(body, name)) <= TEXT_BYTES


def test_messages_and_reasons_are_bounded() -> None:
    failed = events.TurnFailed("turn_failed", "op-1", "internal", HUGE, retryable=True)
    assert json_bytes(failed.message) <= MESSAGE_BYTES
    waiting = events.SessionWaiting(1, HUGE, None)
    assert waiting.reason is not None
    assert len(waiting.reason) == NOTE_CHARS


def test_what_was_said_is_never_cut() -> None:
    assert events.LocalSent("a" * TEXT_BYTES * 2, "op-1", 1, None).text == "a" * TEXT_BYTES * 2


@given(st.text(st.characters(), max_size=40))
def test_a_call_has_one_name_in_all_its_records(call_id: str) -> None:
    asked = events.CellRequested("op-1", 1, call_id, "1")
    done = events.CellFinished(
        "op-1", 1, call_id, ok=True, output="", value=None, error=None, truncated=False,
        duration_ms=0,
    )  # fmt: skip
    said = events.LocalSent("x", "op-1", 1, call_id)
    assert asked.call_id == done.call_id == said.call_id
    encode_payload(asked).encode()
