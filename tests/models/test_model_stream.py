from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fakes.stream_cases import ALL, Case, Fails

from klbr_trio.models import ModelConfig, Reply
from klbr_trio.models.failure.failure import AttemptFailed, Failure
from klbr_trio.models.stream.answer import Answer, Delta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONFIG = ModelConfig("http://provider/v1", "a-model")


def ids() -> Iterator[str]:
    return iter(f"made-{number}" for number in range(1000))


def read(pieces: Iterable[bytes], encoding: str = "") -> tuple[Reply | Failure, list[Delta]]:
    """What the pipeline makes of a body that comes in these pieces."""
    answer = Answer(CONFIG)
    shown: list[Delta] = []
    try:
        answer.expect(encoding)
        for piece in pieces:
            shown += answer.feed(piece)
        shown += answer.end()
        return answer.reply(ids().__next__), shown
    except AttemptFailed as failed:
        return failed.failure, shown


def check(case: Case, result: Reply | Failure) -> None:
    if isinstance(case.expect, Fails):
        assert isinstance(result, Failure), result
        assert result.kind.name == case.expect.kind, result
        assert case.expect.words in result.words
        assert '{"' not in result.words
        return
    assert isinstance(result, Reply), result
    errors = [call.error for call in result.calls if call.error is not None]
    codes = tuple(call.code for call in result.calls if call.code is not None)
    found = (result.text, result.reasoning, codes, result.finish)
    assert found == (case.expect.text, case.expect.reasoning, case.expect.codes, case.expect.finish)
    assert len(errors) == len(case.expect.errors), errors
    assert all(word in error for word, error in zip(case.expect.errors, errors, strict=True)), (
        errors
    )
    assert (result.hint is None) == (not case.expect.hint), result.hint
    assert case.expect.hint in (result.hint or "")


@pytest.mark.parametrize("name", ALL)
def test_every_shape_is_read_the_same_however_its_bytes_come(name: str) -> None:
    case = ALL[name]
    whole, shown = read([case.body], case.encoding)
    check(case, whole)
    size = 1 if len(case.body) < 20_000 else 997
    pieces = [case.body[at : at + size] for at in range(0, len(case.body), size)]
    bytewise, shown_bytewise = read(pieces, case.encoding)
    assert bytewise == whole
    if isinstance(whole, Reply):
        for lane, text in (("scratchpad", whole.text), ("reasoning", whole.reasoning)):
            for way in (shown, shown_bytewise):
                assert "".join(delta for shown_lane, delta in way if shown_lane == lane) == text


def test_every_call_has_an_id_of_its_own() -> None:
    expected = {
        "calls: calls with one id": ["x", "made-0"],
        "calls: several in one list, without index and id": ["made-0", "made-1"],
        "calls: the same index, two calls": ["x", "y"],
    }
    for name, provider_ids in expected.items():
        reply, _ = read([ALL[name].body])
        assert isinstance(reply, Reply)
        assert [call.provider_id for call in reply.calls] == provider_ids


def test_made_up_ids_are_what_every_provider_accepts() -> None:
    reply = _reply_of(ALL["calls: several in one list, without index and id"].body)
    made = [call.provider_id for call in reply.calls]
    assert all(len(each) == 9 and each.isalnum() for each in made)
    assert len(set(made)) == 2


def _reply_of(body: bytes, config: ModelConfig = CONFIG) -> Reply:
    answer = Answer(config)
    answer.feed(body)
    answer.end()
    return answer.reply()


def test_the_tool_is_known_by_the_name_it_has_towards_the_model() -> None:
    from fakes.provider import call_fragment, chunk, sse  # noqa: PLC0415

    body = sse(chunk(call_fragment("go()", name="run_code")), chunk(finish="tool_calls"))
    (call,) = _reply_of(body, ModelConfig("http://provider", "m", tool_name="run_code")).calls
    assert (call.name, call.code) == ("python", "go()")
    (call,) = _reply_of(body).calls
    assert (call.name, call.code) == ("run_code", None)
