"""What a provider does around its answers, through the whole service: refusals, limits, cuts.

Each case has a service of its own, since what a client learns of a provider stays with it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
from fakes.provider import (
    Answers,
    Scripted,
    call_fragment,
    call_reply,
    chunk,
    drip,
    hang,
    open_provider,
    refuse,
    sse,
    text_reply,
)
from fakes.strictness import (
    Rule,
    refuses_reasoning,
    refuses_stream_options,
    strict,
    wants_extra_content,
    wants_reasoning,
)
from providers_house import Story, config, open_house

from klbr_trio import ModelsConfig

if TYPE_CHECKING:
    from pathlib import Path

END: Final = "from klbr import local, runtime\nawait local.send('over')\nawait runtime.done()"
OVER: Final = call_reply(END)
SHOWN: Final = sse(chunk({"content": "Let me see. "}), done=False)
HALF_A_CALL: Final = sse(
    chunk({"content": "Let me see. "}),
    chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "python", "arguments": '{"code": "no'}}]}),
    done=False,
)  # fmt: skip
ANSWER: Final = sse(
    chunk({"content": "Let me see. "}), chunk(call_fragment(END)), chunk(finish="tool_calls")
)
PAGE: Final = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


def error(message: object, **fields: object) -> dict[str, object]:
    return {"error": {"message": message, **fields}}


@attrs.frozen
class Case:
    """What a provider answers in turn, and what becomes of the first turn.

    Attributes:
        sends: How many requests it gets.
        fails: Words of the failure, `a|b` for either; empty if the turn completes.
        lacks: What the failure must not show.
        later: Whether the failure is said to pass.
        shown: The visible text of each reply that counts.
        discards: How often streamed words are withdrawn.
        rules: What it refuses besides what every strict provider does.
    """

    name: str
    answers: tuple[Scripted, ...]
    sends: int
    fails: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    later: bool = False
    shown: tuple[str, ...] = ("",)
    discards: int = 0
    rules: tuple[Rule, ...] = ()
    settings: dict[str, Any] = attrs.field(factory=dict)


def raw(body: bytes, **fields: Any) -> Scripted:
    return Scripted((body,), raw=True, headers={"content-type": "text/event-stream"}, **fields)


def labelled(headers: dict[str, str]) -> Scripted:
    return Scripted((ANSWER,), headers=headers)


LET_ME: Final = ("Let me see. ",)

CARRIED: Final = [
    Case("labelled plain text", (labelled({"content-type": "text/plain; charset=utf-8"}),), 1, shown=LET_ME),
    Case("labelled with nothing", (labelled({}),), 1, shown=LET_ME),
    Case("read until the connection closes", (raw(ANSWER),), 1, shown=LET_ME),
    Case("a reset after the end", (drip(ANSWER, after="reset"),), 1, shown=LET_ME),
    Case("open for ever after the end", (drip(ANSWER, after="hang"),), 1, shown=LET_ME),
    Case(
        "json although a stream was asked for",
        (refuse(200, {"choices": [{"message": {"content": "Let me see. ", **call_fragment(END)}, "finish_reason": "tool_calls"}]}),),
        1, shown=LET_ME,
    ),
]  # fmt: skip

BROKEN: Final = [
    Case("a reset after words", (drip(SHOWN, after="reset"), OVER), 2, discards=1),
    Case("cut in a call", (drip(HALF_A_CALL), OVER), 2, discards=1),
    Case("closed without a byte", (Scripted(status=None), OVER), 2),
    Case("an empty body", (Scripted(), OVER), 2),
    Case("keep-alives and then nothing", (drip(b": wait\n\n", b": wait\n\n"), OVER), 2),
    Case("silence before the first word", (hang(), OVER), 2, settings={"first_token_s": 3.0}),
    Case("silence in mid-stream", (drip(SHOWN, after="hang"), OVER), 2, discards=1, settings={"stall_s": 3.0}),
    Case(
        "an error in mid-stream",
        (drip(SHOWN, sse({"error": {"code": 502, "message": "upstream"}, "choices": []})), OVER),
        2, discards=1,
    ),
    Case(
        "an error after half a call",
        (drip(HALF_A_CALL, sse({"error": {"message": "overloaded"}}, done=False)), OVER), 2, discards=1,
    ),
    Case("out of resources", (drip(SHOWN, sse(chunk(finish="insufficient_system_resource"))), OVER), 2, discards=1),
    Case("for ever a proxy's page", (refuse(502, PAGE),), 4, ("502",), ("<html", "JSON"), later=True),
    Case("for ever cut", (drip(SHOWN),), 4, ("cut|ended|closed",), later=True, discards=4),
]  # fmt: skip

LATER: Final = [
    Case("the model is being loaded", (refuse(503, error("Loading model", type="unavailable_error")),) * 2 + (OVER,), 3),
    Case("too many requests", (refuse(429, error("slow down"), headers={"retry-after": "0.2"}), OVER), 2),
    Case(
        "too many requests, said in the vendor's headers",
        (refuse(429, "Too many", headers={"x-ratelimit-reset-requests": "0.2s"}), OVER), 2,
    ),
    Case("overloaded", (refuse(529, error("Overloaded")), OVER), 2),
    Case("the server can't read the model's call", (refuse(500, error("Failed to parse tool call arguments")), OVER), 2),
    Case(
        "the model's call was refused",
        (refuse(400, error("Failed to call a function", code="tool_use_failed", failed_generation="<x>")), OVER), 2,
    ),
    Case("too long a wait", (refuse(429, error("later"), headers={"retry-after": "9999"}),), 1, ("9999", "later"), later=True),
]  # fmt: skip

REFUSED: Final = [
    Case("a bad key", (refuse(401, error("the key ending in 0000 is not valid")),), 1, ("is not valid", "key"), ("{",)),
    Case("no such model", (refuse(404, error("model 'x' is not installed here")),), 1, ("not installed here",), ('{"',)),
    Case("nothing at that path", (refuse(404, "404 page not found"),), 1, ("404", "url|/v1")),
    Case("no credit", (refuse(429, error("no credit left", code="insufficient_quota")),), 1, ("no credit left",)),
    Case("an error in a list", (refuse(400, [error("a call lacks its signature")]),), 1, ("its signature",), ('"error"',)),
    Case("no tools", (refuse(400, error("x does not support tools")),), 1, ("does not support tools",)),
    Case("elsewhere", (refuse(301, "", headers={"location": "https://other/v1/chat/completions"}),), 1, ("redirect", "https://other")),
    Case("refused in the stream", (drip(sse(error("no such voice", code=400))),), 1, ("no such voice",)),
    Case("a vendor's own envelope", (drip(sse({"choices": None, "base_resp": {"status_code": 1004, "status_msg": "the login was refused"}})),), 1, ("the login was refused",)),
    Case("filtered", (drip(SHOWN, sse(chunk(finish="content_filter"))),), 1, ("content_filter", "let me see")),
]  # fmt: skip

WANTED: Final = [
    Case(
        "a signature comes back",
        (drip(sse(chunk({"tool_calls": [{**call_fragment("1")["tool_calls"][0], "extra_content": {"google": {"thought_signature": "s"}}}]}), chunk(finish="tool_calls"))),  # type: ignore[index]
         drip(sse(chunk({"tool_calls": [{**call_fragment(END)["tool_calls"][0], "extra_content": {"google": {"thought_signature": "t"}}}]}), chunk(finish="tool_calls")))),  # type: ignore[index]
        2, shown=("", ""), rules=(wants_extra_content,),
    ),
    Case(
        "reasoning comes back",
        (drip(sse(chunk({"reasoning_content": "think"}), chunk(call_fragment("1")), chunk(finish="tool_calls"))), OVER),
        2, shown=("", ""), rules=(wants_reasoning,),
    ),
    Case(
        "reasoning stays away",
        (drip(sse(chunk({"reasoning_content": "think"}), chunk(call_fragment("1")), chunk(finish="tool_calls"))), OVER),
        2, shown=("", ""), rules=(refuses_reasoning,), settings={"reasoning_field": None},
    ),
    Case("the same id in every answer", (call_reply("1"), call_reply("2"), OVER), 3, shown=("", "", "")),
    Case("usage is not asked for", (OVER,), 1, rules=(refuses_stream_options,), settings={"stream_options": False}),
    Case("usage is asked for no more", (refuse(422, error({"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]})), OVER), 2),
    Case("a plain answer is asked about", (text_reply("I will not do that."), OVER), 2, shown=("I will not do that.", "")),
]  # fmt: skip

ALL: Final = {case.name: case for case in [*CARRIED, *BROKEN, *LATER, *REFUSED, *WANTED]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
async def test_what_a_provider_does_ends_as_it_should(name: str, tmp_path: Path) -> None:
    case = ALL[name]
    answers: Answers = [strict(answer, *case.rules) for answer in case.answers]
    async with open_provider(answers) as provider:
        models = ModelsConfig(config(provider.url, "sk-0000-a-key", **case.settings))
        async with open_house(tmp_path, models) as house:
            story = await house.tell()
        turns = max(1, len(story.failures))
        assert len(provider.requests) == case.sends * turns, story.failures
    assert story.discards == case.discards * turns
    if case.fails:
        _failed(case, story)
    else:
        _completed(case, story)


def _completed(case: Case, story: Story) -> None:
    assert story.failures == []
    assert story.codes[-1] == END
    assert story.said == ["over"]
    assert tuple(story.scratchpad) == case.shown
    live = story.live("scratchpad")
    steps = [(each["attempt_id"], each["step"]) for each in story.of("reply.received")]
    assert tuple(live.pop(step, "") for step in steps) == case.shown
    assert live == {}, "what does not count is withdrawn"


def _failed(case: Case, story: Story) -> None:
    kinds = [event["kind"] for event in story.events]
    assert "cell.requested" not in kinds
    assert "reply.received" not in kinds
    for failed in story.failures:
        low = failed["message"].lower()
        for words in case.fails:
            assert any(each.lower() in low for each in words.split("|")), failed
        for words in (*case.lacks, "sk-0000-a-key"):
            assert words not in failed["message"]
        assert failed["retryable"] is case.later
        assert len(json.dumps(failed)) < 4096
