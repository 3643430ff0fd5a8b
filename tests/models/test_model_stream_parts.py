"""What the pipeline says beside the reply: progress, usage, bounds, what is kept for later."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from fakes.provider import call_fragment, chunk, sse
from fakes.stream_cases import fragment

from klbr_trio.models import ModelConfig
from klbr_trio.models.failure.failure import AttemptFailed, Kind
from klbr_trio.models.stream.answer import Answer
from klbr_trio.models.stream.inflate import PIECE, InflateError, Inflater
from klbr_trio.models.stream.sse import MAX_EVENT
from klbr_trio.models.stream.usage import read_usage

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = ModelConfig("http://provider/v1", "a-model")


def answer_of(*chunks: object, done: bool = True) -> Answer:
    answer = Answer(CONFIG)
    answer.feed(sse(*chunks, done=done))
    return answer


def feed(answer: Answer, *pieces: bytes) -> None:
    for piece in pieces:
        answer.feed(piece)


@pytest.mark.parametrize(
    ("body", "moves"),
    [
        (chunk({"role": "assistant", "content": ""}), 0),
        (chunk({"role": "assistant"}), 0),
        (chunk({"content": None, "tool_calls": []}), 0),
        (chunk({}), 0),
        ({"choices": []}, 0),
        ({"choices": [], "usage": {"total_tokens": 1}}, 0),
        (chunk({"content": "x"}), 1),
        (chunk({"reasoning": "x"}), 1),
        (chunk({"something_new": "x"}), 1),
        (chunk(call_fragment("x")), 1),
        (chunk(finish="stop"), 1),
        ({"choices": [{"message": {"content": "x"}}]}, 1),
    ],
)
def test_only_words_are_progress(body: Mapping[str, object], moves: int) -> None:
    assert answer_of(body, done=False).moves == moves


def test_an_answer_knows_when_it_is_over() -> None:
    begun = answer_of(chunk({"content": "x"}), done=False)
    assert (begun.is_whole, begun.is_done) == (False, False)
    finished = answer_of(chunk({"content": "x"}, finish="stop"), done=False)
    assert (finished.is_whole, finished.is_done) == (True, False)
    done = answer_of(chunk({"content": "x"}))
    assert (done.is_whole, done.is_done) == (True, True)


COUNTS = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (COUNTS, COUNTS),
        ({"input_tokens": 3, "output_tokens": 2}, COUNTS),
        (
            {"total_tokens": 5},
            {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 5},
        ),
        (
            {**COUNTS, "prompt_tokens_details": {"cached_tokens": 1}},
            {**COUNTS, "cached_tokens": 1},
        ),
        ({**COUNTS, "prompt_cache_hit_tokens": 1}, {**COUNTS, "cached_tokens": 1}),
        (
            {**COUNTS, "completion_tokens_details": {"reasoning_tokens": 1}},
            {**COUNTS, "reasoning_tokens": 1},
        ),
        (
            {**COUNTS, "prompt_tokens_details": None, "completion_tokens_details": 3},
            COUNTS,
        ),
        ({"prompt_tokens": -1, "completion_tokens": True, "total_tokens": "5"}, None),
        ({"prompt_tokens": float("inf"), "completion_tokens": float("nan")}, None),
        ({}, None),
        (None, None),
    ],
)
def test_usage_has_one_shape(
    usage: dict[str, object] | None, expected: dict[str, object] | None
) -> None:
    assert read_usage(usage) == expected


def test_a_price_for_either_side_makes_a_cost() -> None:
    for prices, cost in (({"price_input": 2.0}, 6e-6), ({"price_output": 5.0}, 10e-6)):
        usage = read_usage(COUNTS, **prices)
        assert usage is not None
        assert usage["cost"] == pytest.approx(cost)


@pytest.mark.parametrize(
    "last",
    [
        {"choices": [], "usage": COUNTS},
        {"choices": [{"delta": {}, "usage": COUNTS}]},
        {"choices": [], "x_groq": {"usage": COUNTS}},
    ],
)
def test_usage_is_found_where_it_stands_and_the_last_one_counts(last: object) -> None:
    early = chunk({"content": "x"}, finish="stop", usage={"total_tokens": 1})
    answer = answer_of(early, last, {"choices": [], "usage": None}, {"choices": [], "usage": {}})
    answer.end()
    assert answer.reply().usage == COUNTS


def test_an_event_without_an_end_is_bounded() -> None:
    answer = Answer(CONFIG)
    with pytest.raises(AttemptFailed) as caught:
        feed(answer, *[b"x" * 65536] * (MAX_EVENT // 65536 + 2))
    assert caught.value.failure.kind is Kind.REFUSED


def test_an_event_of_lines_without_an_end_is_bounded() -> None:
    answer = Answer(CONFIG)
    with pytest.raises(AttemptFailed):
        feed(answer, *[b"data: " + b"x" * 65536 + b"\n"] * (MAX_EVENT // 65536 + 2))


def test_an_answer_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klbr_trio.models.stream.answer.MAX_ANSWER", 100_000)
    answer = Answer(CONFIG)
    with pytest.raises(AttemptFailed, match="too long"):
        feed(answer, *[sse(chunk({"content": "x" * 1000}), done=False)] * 200)


def test_a_small_body_can_not_inflate_to_a_big_one() -> None:
    bomb = gzip.compress(b"\n" * 100_000_000, 1)
    answer = Answer(CONFIG)
    answer.expect("gzip")
    with pytest.raises(AttemptFailed, match="MiB") as caught:
        feed(answer, *(bomb[at : at + 4096] for at in range(0, len(bomb), 4096)))
    assert caught.value.failure.kind is Kind.REFUSED


def test_inflated_pieces_are_small() -> None:
    packed = gzip.compress(b"x" * 1_000_000)
    pieces = list(Inflater("gzip").feed(packed))
    assert b"".join(pieces) == b"x" * 1_000_000
    assert max(map(len, pieces)) <= PIECE


def test_what_can_be_inflated() -> None:
    assert b"".join(Inflater("deflate").feed(zlib.compress(b"x"))) == b"x"
    assert list(Inflater(" identity ").feed(b"x")) == [b"x"]
    with pytest.raises(InflateError):
        Inflater("br")
    with pytest.raises(AttemptFailed, match="identity was asked for"):
        Answer(CONFIG).expect("zstd")


def opaque_of(*deltas: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    answer = answer_of(*map(chunk, deltas), chunk(finish=finish))
    answer.end()
    stored: dict[str, Any] = json.loads(json.dumps(answer.reply().opaque, allow_nan=False))
    return stored


def test_unknown_fields_are_kept_as_they_came() -> None:
    call = fragment(index=0, id="x", name="python", arguments="{}")
    call["tool_calls"][0].update(extra_content={"s": "1"}, note=None)  # type: ignore[index]
    call["tool_calls"][0]["function"]["signature"] = "f"  # type: ignore[index]
    later = fragment(index=0, arguments="")
    later["tool_calls"][0].update(extra_content=None, more=2)  # type: ignore[index]
    opaque = opaque_of(
        {"content": "x", "extra_content": {"a": 1}, "annotations": [1], "audio": None, "seen": 1},
        {"extra_content": {"b": 2}, "annotations": [2], "seen": 2},
        call,
        later,
    )
    assert opaque["model"] == "a-model"
    assert opaque["message"] == {
        "extra_content": {"a": 1, "b": 2}, "annotations": [1, 2], "seen": 2,
    }  # fmt: skip
    assert opaque["calls"] == [
        {"id": "x", "name": "python", "fields": {"extra_content": {"s": "1"}, "more": 2}, "function": {"signature": "f"}}
    ]  # fmt: skip


def test_what_is_known_is_not_kept_as_unknown() -> None:
    call = {"index": 0, "id": "x", "type": "function", "name": "python", "arguments": "{}"}
    (kept,) = opaque_of({"role": "assistant", "content": "x", "tool_calls": [call]})["calls"]
    assert (kept["fields"], kept["function"]) == ({}, {})


def test_details_that_go_on_are_joined() -> None:
    def part(**fields: object) -> dict[str, object]:
        return {"reasoning_details": [{"type": "reasoning.text", "index": 0, **fields}]}

    opaque = opaque_of(
        {"content": "x"},
        part(text="wh", id="r"),
        part(text="y", id=None),
        part(signature="sig"),
        part(text="next", id="s"),
        {"reasoning_details": [{"type": "reasoning.text", "text": "no index"}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "no index"}]},
    )
    assert opaque["message"]["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "why", "id": "r", "signature": "sig"},
        {"type": "reasoning.text", "index": 0, "text": "next", "id": "s"},
        {"type": "reasoning.text", "text": "no index"},
        {"type": "reasoning.text", "text": "no index"},
    ]


@pytest.mark.parametrize(
    ("delta", "reasoning"),
    [
        ({"reasoning": "why"}, {"field": "reasoning", "text": "why"}),
        ({"reasoning_content": "why"}, {"field": "reasoning_content", "text": "why"}),
        ({"content": "<think>why</think>x"}, {"field": None, "text": "why"}),
        ({"content": "x"}, None),
    ],
)
def test_reasoning_is_kept_with_the_name_it_came_under(
    delta: dict[str, object], reasoning: dict[str, object] | None
) -> None:
    assert (
        opaque_of({"content": "" if "content" in delta else "x"}, delta).get("reasoning")
        == reasoning
    )


def test_what_is_kept_is_bounded_and_clean() -> None:
    opaque = opaque_of(
        {"content": "x", "reasoning": "r" * 1_000_000},
        {"blob": "b" * 1_000_000},
    )
    assert len(json.dumps(opaque)) < 512 * 1024
    answer = Answer(CONFIG)
    answer.feed(
        rb'data: {"choices":[{"delta":{"content":"x","extra_content":"a\udcafb"}}]}' + b"\n\n"
    )
    answer.feed(sse(chunk(finish="stop")))
    answer.end()
    assert answer.reply().opaque["message"] == {"extra_content": "a\ufffdb"}


@pytest.mark.parametrize("depth", [10, 39, 41, 500, 900, *range(950, 1010, 3), 20_000])
def test_depth_is_no_trap(depth: int) -> None:
    """Wherever a deep value stands, and however near it comes to what can be read at all."""
    deep = "[" * depth + "]" * depth
    for field in (
        f'"extra_content": {deep}',
        f'"content": {deep}',
        f'"reasoning": {deep}',
        f'"tool_calls": [{{"id": "x", "extra_content": {deep}, "function": {{"arguments": {deep}}}}}]',
    ):
        answer = Answer(CONFIG)
        body = f'data: {{"choices": [{{"delta": {{"refusal": "x", {field}}}}}]}}\n\n'.encode()
        try:
            feed(answer, body, sse(chunk(finish="stop")))
            answer.end()
        except AttemptFailed:
            assert depth > 500
        else:
            assert json.dumps(answer.reply().opaque).count("[") < 45


def test_numbers_that_are_none_are_not_kept() -> None:
    answer = Answer(CONFIG)
    feed(answer, b'data: {"choices":[{"delta":{"content":"x","extra_content":NaN}}]}\n\n')
    feed(answer, sse(chunk(finish="stop")))
    answer.end()
    assert answer.reply().opaque["message"] == {"extra_content": None}


def test_names_and_ids_are_bounded() -> None:
    answer = answer_of(
        chunk(fragment(index=0, id="i" * 10_000, name="n" * 10_000, arguments="{}")),
        chunk(finish="tool_calls"),
    )
    answer.end()
    (call,) = answer.reply().calls
    assert (len(call.provider_id), len(call.name)) == (9, 128)


def test_what_could_not_run_is_kept_cut() -> None:
    answer = answer_of(
        chunk(fragment(index=0, id="x", name="python", arguments="z" * 100_000)),
        chunk(finish="tool_calls"),
    )
    answer.end()
    (call,) = answer.reply().calls
    assert call.raw is not None
    assert 1000 < len(call.raw) < 20_000
    assert call.error is not None
    assert len(call.error) < 1000
