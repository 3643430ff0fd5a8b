"""Whatever becomes of a good stream on its way: no crash, no half code, no lost call, one reading."""

from __future__ import annotations

import itertools
import json
from typing import Final

from fakes.provider import chunk, sse
from fakes.stream_cases import fragment
from hypothesis import given, settings, strategies as st

from klbr_trio.models import ModelConfig, Reply
from klbr_trio.models.failure.failure import AttemptFailed, Failure
from klbr_trio.models.stream.answer import Answer

CONFIG: Final = ModelConfig("http://provider/v1", "a-model")
CODES: Final = ("first = 1\nprint('{}', \"[1, 2]\")", "second(first)  # \\ \t done")


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@st.composite
def good_streams(draw: st.DrawFn, *, in_fragments: bool = True) -> list[dict[str, object]]:
    """The chunks of an answer with words, thoughts and two calls, cut anywhere."""
    cuts = st.lists(st.integers(0, 200), max_size=5)
    chunks = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({"reasoning_content": piece}) for piece in pieces_of("why not", draw(cuts))]
    chunks += [chunk({"content": piece}) for piece in pieces_of("I do 🙂 it", draw(cuts))]
    for index, code in enumerate(CODES):
        delta = fragment(index=index, id=f"call_{index}", name="python", arguments="")
        chunks.append(chunk(delta))
        for piece in pieces_of(json.dumps({"code": code}), draw(cuts) if in_fragments else []):
            chunks.append(chunk(fragment(index=index, arguments=piece)))
    chunks.append(chunk(finish="tool_calls", usage={"total_tokens": 3}))
    return chunks


def result_of(*pieces: bytes) -> Reply | Failure:
    answer = Answer(CONFIG)
    try:
        for piece in pieces:
            answer.feed(piece)
        answer.end()
        return answer.reply(iter(f"id{n}" for n in range(1000)).__next__)
    except AttemptFailed as failed:
        return failed.failure


@given(good_streams(), st.data())
@settings(max_examples=200, deadline=None)
def test_bytes_may_come_in_any_pieces(chunks: list[dict[str, object]], data: st.DataObject) -> None:
    end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    body = sse(*chunks).replace(b"\n", end)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=20))
    edges = [0, *sorted(cuts), len(body)]
    pieces = [body[start:stop] for start, stop in itertools.pairwise(edges)]
    whole = result_of(body)
    assert isinstance(whole, Reply)
    assert tuple(call.code for call in whole.calls) == CODES
    assert (whole.text, whole.reasoning) == ("I do 🙂 it", "why not")
    assert result_of(*pieces) == whole
    assert result_of(*(body[at : at + 1] for at in range(len(body)))) == whole


@given(st.booleans(), st.data())
@settings(max_examples=1000, deadline=None)
def test_a_mutated_stream_never_runs_what_was_not_whole(
    in_fragments: bool, data: st.DataObject
) -> None:
    """A fragment lost inside a string can't be noticed by anybody: those are only cut at the end."""
    chunks = data.draw(good_streams(in_fragments=in_fragments))
    possible = (cut,) if in_fragments else MUTATIONS
    for mutation in data.draw(st.lists(st.sampled_from(possible), min_size=1, max_size=4)):
        chunks = mutation(chunks, data)
    result = result_of(sse(*chunks, done=data.draw(st.booleans())))
    if isinstance(result, Failure):
        assert result.words
        return
    for call in result.calls:
        assert (call.code is None) == bool(call.error)
        assert call.code is None or call.code in CODES
    if any(has_call(each) for each in chunks):
        assert result.calls, "a call came and nobody was told"


@given(good_streams(), st.data())
@settings(max_examples=300, deadline=None)
def test_mutated_bytes_never_crash(chunks: list[dict[str, object]], data: st.DataObject) -> None:
    body = bytearray(sse(*chunks))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=4))
    result = result_of(bytes(body))
    assert isinstance(result, Failure) or all(call.code or call.error for call in result.calls)


@given(st.binary(max_size=400))
def test_any_bytes_are_an_answer_or_a_failure(body: bytes) -> None:
    assert isinstance(result_of(body), (Reply, Failure))


def has_call(value: object) -> bool:
    """Whether a chunk names a call or brings arguments for one."""
    choices = value.get("choices") if isinstance(value, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else {}
    delta = choice.get("delta") if choice.get("index") in (None, 0) else {}
    calls = delta.get("tool_calls") if isinstance(delta, dict) else []
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function")
        held = function if isinstance(function, dict) else {}
        if call.get("id") or held.get("name") or held.get("arguments"):
            return True
    return False


def cut(chunks: list[dict[str, object]], data: st.DataObject) -> list[dict[str, object]]:
    return chunks[: data.draw(st.integers(0, len(chunks)))]


def lose(chunks: list[dict[str, object]], data: st.DataObject) -> list[dict[str, object]]:
    at = data.draw(st.integers(0, len(chunks)))
    return chunks[:at] + chunks[at + 1 :]


def repeat(chunks: list[dict[str, object]], data: st.DataObject) -> list[dict[str, object]]:
    at = data.draw(st.integers(0, len(chunks)))
    return chunks[: at + 1] + chunks[at:]


def reorder(chunks: list[dict[str, object]], data: st.DataObject) -> list[dict[str, object]]:
    return data.draw(st.permutations(chunks))


def swap(chunks: list[dict[str, object]], data: st.DataObject) -> list[dict[str, object]]:
    if len(chunks) < 2:
        return chunks
    at = data.draw(st.integers(0, len(chunks) - 2))
    return [*chunks[:at], chunks[at + 1], chunks[at], *chunks[at + 2 :]]


def null_a_field(chunks: list[dict[str, object]], data: st.DataObject) -> list[dict[str, object]]:
    if not chunks:
        return chunks
    at = data.draw(st.integers(0, len(chunks) - 1))
    changed = json.loads(json.dumps(chunks[at]))
    holders = list(objects_in(changed))
    holder = data.draw(st.sampled_from(holders))
    if holder:
        name = data.draw(st.sampled_from(sorted(holder)))
        holder[name] = data.draw(st.sampled_from([None, "", [], {}, 0, "null"]))
    return [*chunks[:at], changed, *chunks[at + 1 :]]


def objects_in(value: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    if isinstance(value, dict):
        found.append(value)
        for each in value.values():
            found += objects_in(each)
    elif isinstance(value, list):
        for each in value:
            found += objects_in(each)
    return found


MUTATIONS: Final = (cut, lose, repeat, reorder, swap, null_a_field)
