"""Every client message, good and wrong in each field, and that nothing makes decoding raise."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from klbr_trio.domain.text import TEXT_BYTES
from klbr_trio.errors import BadRequest, InvalidSessionId, TooLarge
from klbr_trio.wire import client
from klbr_trio.wire.client import PAGE_MAX, Context, Refused, decode

REQUIRED: dict[str, dict[str, Any]] = {
    "send_input": {"session_id": "s-1", "source": "cli", "text": "hi"},
    "subscribe": {"session_id": "s-1"},
    "unsubscribe": {"session_id": "s-1"},
    "history": {"session_id": "s-1", "before_seq": 9, "limit": 3},
    "session_status": {"session_id": "s-1"},
    "list_sessions": {},
    "stop": {"session_id": "s-1"},
    "interrupt": {"session_id": "s-1"},
    "reset_kernel": {"session_id": "s-1"},
    "ping": {},
}
OPTIONAL: dict[str, dict[str, Any]] = {
    "send_input": {"client_request_id": "k-1"},
    "subscribe": {"after_seq": 4, "limit": 0},
    "list_sessions": {"after": "s-0", "limit": 7},
    "ping": {"timestamp": -5},
}
FRAMES = [
    (tag, {**REQUIRED[tag], **OPTIONAL.get(tag, {}), "request_id": "r-1"}) for tag in REQUIRED
]
FIELDS = [(tag, name) for tag, frame in FRAMES for name in frame]
WRONG: dict[type, tuple[object, ...]] = {
    str: (7, True, 1.5, [], {}, ["a"]),
    int: ("7", True, 1.5, 7.0, [], {}, 2**53 + 1, -(2**53) - 1),
}


def frame(tag: str, values: dict[str, Any]) -> str:
    return json.dumps({"type": tag, **values})


def refused(text: str) -> Refused:
    answer = decode(text)
    assert isinstance(answer, Refused)
    return answer


def test_every_type_is_tried() -> None:
    assert set(REQUIRED) == set(client.TYPES)


@pytest.mark.parametrize(("tag", "values"), FRAMES)
def test_a_good_frame_is_its_message(tag: str, values: dict[str, Any]) -> None:
    message = decode(frame(tag, values))
    assert type(message) is client.TYPES[tag]
    assert {name: getattr(message, name) for name in values} == values


@pytest.mark.parametrize(
    ("tag", "defaults"),
    [
        ("send_input", {"client_request_id": None}),
        ("subscribe", {"after_seq": 0, "limit": 500}),
        ("list_sessions", {"after": None, "limit": 100}),
        ("ping", {"timestamp": None}),
    ],
)
def test_what_is_left_out_or_null_has_its_default(tag: str, defaults: dict[str, Any]) -> None:
    short = decode(frame(tag, REQUIRED[tag]))
    nulls = decode(frame(tag, {**REQUIRED[tag], **dict.fromkeys(defaults), "request_id": None}))
    assert not isinstance(short, Refused)
    assert short == nulls
    assert {name: getattr(short, name) for name in defaults} == defaults
    assert short.request_id is None


@pytest.mark.parametrize(("tag", "values"), FRAMES)
def test_unknown_fields_are_ignored(tag: str, values: dict[str, Any]) -> None:
    assert decode(frame(tag, {**values, "admin": True, "check": 1})) == decode(frame(tag, values))


@pytest.mark.parametrize(("tag", "name"), FIELDS)
def test_a_field_of_another_type_is_refused_by_its_name(tag: str, name: str) -> None:
    values = dict(FRAMES)[tag]
    for wrong in WRONG[type(values[name])]:
        answer = refused(frame(tag, {**values, name: wrong}))
        assert isinstance(answer.error, BadRequest)
        assert name in str(answer.error)


@pytest.mark.parametrize(("tag", "name"), [(t, n) for t, vs in REQUIRED.items() for n in vs])
def test_a_missing_field_is_refused_by_its_name(tag: str, name: str) -> None:
    for values in ({name: None}, {}):
        rest = {key: value for key, value in REQUIRED[tag].items() if key != name}
        answer = refused(frame(tag, {**rest, **values}))
        assert isinstance(answer.error, BadRequest)
        assert f"{name} is missing" in str(answer.error)


@pytest.mark.parametrize(
    ("tag", "name"), [(t, n) for t, n in FIELDS if isinstance(dict(FRAMES)[t][n], str)]
)
def test_a_lone_surrogate_is_refused_by_the_field_name(tag: str, name: str) -> None:
    answer = refused(frame(tag, {**dict(FRAMES)[tag], name: "a\ud800"}))
    assert answer.error.code == "bad_request"
    assert name in str(answer.error)


@pytest.mark.parametrize(
    ("tag", "name", "below"),
    [
        ("subscribe", "after_seq", -1),
        ("subscribe", "limit", -1),
        ("history", "before_seq", 0),
        ("history", "limit", 0),
        ("list_sessions", "limit", 0),
    ],
)
def test_a_number_below_its_bound_is_refused(tag: str, name: str, below: int) -> None:
    values = {**REQUIRED[tag], name: below}
    assert f"{name} must be at least {below + 1}" in str(refused(frame(tag, values)).error)
    assert not isinstance(decode(frame(tag, {**values, name: below + 1})), Refused)


@pytest.mark.parametrize("tag", ["subscribe", "history", "list_sessions"])
@pytest.mark.parametrize(
    ("asked", "counts_as"), [(999, 999), (1000, 1000), (1001, 1000), (2**53, 1000)]
)
def test_a_limit_above_its_bound_counts_as_the_bound(tag: str, asked: int, counts_as: int) -> None:
    message = decode(frame(tag, {**REQUIRED[tag], "limit": asked}))
    assert getattr(message, "limit", None) == counts_as
    assert PAGE_MAX == 1000


@pytest.mark.parametrize(
    ("name", "wrong", "why"),
    [
        ("source", "", "source must not be empty"),
        ("source", "a" * 129, "source has 129 characters"),
        ("source", "a\nb", "source must not hold control"),
        ("client_request_id", "a" * 129, "client_request_id has 129"),
        ("client_request_id", "\x00", "client_request_id must not hold"),
        ("request_id", "a" * 129, "request_id has 129"),
        ("request_id", "\x1b", "request_id must not hold"),
        ("text", "", "text must not be empty"),
    ],
)
def test_names_and_texts_are_bounded(name: str, wrong: str, why: str) -> None:
    answer = refused(frame("send_input", {**REQUIRED["send_input"], name: wrong}))
    assert answer.error.code == "bad_request"
    assert why in str(answer.error)


def test_nul_in_a_text_is_kept() -> None:
    message = decode(frame("send_input", {**REQUIRED["send_input"], "text": "a\x00b"}))
    assert isinstance(message, client.SendInput)
    assert message.text == "a\x00b"


def test_a_text_over_its_bound_is_too_large() -> None:
    largest = {**REQUIRED["send_input"], "text": "a" * TEXT_BYTES}
    assert isinstance(decode(frame("send_input", largest)), client.SendInput)
    answer = refused(frame("send_input", {**largest, "text": "\x00" * (TEXT_BYTES // 6 + 1)}))
    assert isinstance(answer.error, TooLarge)


@pytest.mark.parametrize("tag", [tag for tag in REQUIRED if "session_id" in REQUIRED[tag]])
def test_what_is_no_session_id_has_a_code_of_its_own(tag: str) -> None:
    answer = refused(frame(tag, {**REQUIRED[tag], "session_id": "../up", "request_id": "r"}))
    assert isinstance(answer.error, InvalidSessionId)
    assert answer.context == Context("r", None, None)


def test_a_page_begins_after_a_session_id() -> None:
    answer = refused(frame("list_sessions", {"after": "../up"}))
    assert isinstance(answer.error, InvalidSessionId)
    assert str(answer.error).startswith("after must be")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ("7", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("{}", "type is missing"),
        ('{"type":7}', "type is missing or not a string"),
        ('{"type":null}', "type is missing"),
        ('{"type":["stop"]}', "type is missing or not a string"),
        ('{"type":"fly"}', "'fly' is unknown; this service knows history"),
        ('{"type":"ping","timestamp":NaN}', "NaN is not a JSON number"),
        ('{"type":"ping","timestamp":-Infinity}', "-Infinity is not a JSON number"),
        ('{"type":"ping","timestamp":1e999}', "timestamp must be an integer"),
        ('{"type":"ping","timestamp":' + "9" * 5000 + "}", "too many digits"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_frame(text: str, why: str) -> None:
    answer = refused(text)
    assert answer.error.code == "bad_request"
    assert why in str(answer.error)
    assert len(str(answer.error)) < 600


def test_an_answer_carries_back_what_could_be_read() -> None:
    wrong = {"session_id": "s-1", "client_request_id": "k", "request_id": "r", "text": 7}
    assert refused(frame("send_input", wrong)).context == Context("r", "s-1", "k")
    unreadable = {"session_id": "\ud800", "client_request_id": 7, "request_id": "a" * 200}
    assert refused(frame("send_input", unreadable)).context == Context()
    assert refused(frame("fly", {"request_id": "r"})).context == Context("r")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = sorted({"type", *(name for _, values in FRAMES for name in values)})


@given(st.sampled_from([*REQUIRED, "fly"]), st.dictionaries(st.sampled_from(NAMES), JSON))
def test_no_json_value_makes_decoding_raise(tag: str, values: dict[str, Any]) -> None:
    answer = decode(json.dumps({"type": tag, **values}))
    if isinstance(answer, Refused):
        assert answer.error.code in ("bad_request", "invalid_session_id", "too_large")
        assert str(answer.error)
    else:
        for name, value in values.items():
            assert not (isinstance(value, float) and math.isnan(value) and hasattr(answer, name))


@given(st.text(st.characters()) | JSON.map(json.dumps))
def test_no_text_makes_decoding_raise(text: str) -> None:
    answer = decode(text)
    assert isinstance(answer, (Refused, *client.TYPES.values()))
