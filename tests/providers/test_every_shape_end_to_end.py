"""Every shape of an answer, through the whole service: what ran, what was said, what was kept.

A group of shapes shares one service, and each shape has a session of its own; so they are also a
test of many sessions at once. The provider is as strict as the strictest: a history that it would
refuse fails the turn, and with it the test.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio
from fakes.provider import Request, Scripted, call_reply, open_provider
from fakes.stream_cases import ALL, Case, Fails, Reads
from fakes.strictness import strict
from providers_house import House, Story, config, open_house

from klbr_trio import ModelsConfig
from klbr_trio.domain.text import clean

if TYPE_CHECKING:
    from pathlib import Path

END: Final = "from klbr import local, runtime\nawait local.send('over')\nawait runtime.done()"
AT_ONCE: Final = 4
FINAL: Final = ("REFUSED", "PATH", "CONTEXT")
"""Kinds of failure after which the same model is not asked the same again."""

GROUPS: Final = sorted({name.partition(":")[0] for name in ALL})
_CASE: Final = re.compile(r"case (\d+)\.")


@attrs.define(eq=False)
class Playing:
    """A provider that tells by what it is asked which case's answer to give, and then ends."""

    cases: list[Case]
    asked: dict[int, list[Request]] = attrs.field(factory=dict)

    def answer(self, request: Request) -> Scripted:
        said = [each["content"] for each in request.body["messages"] if each["role"] == "user"]
        (number,) = {int(found[1]) for text in said for found in [_CASE.search(text)] if found}
        requests = self.asked.setdefault(number, [])
        requests.append(request)
        return strict(self._next(self.cases[number], len(requests)))(request)

    def _next(self, case: Case, nth: int) -> Scripted:
        is_final = isinstance(case.expect, Fails) and case.expect.kind in FINAL
        if nth > 1 and not is_final:
            return call_reply(END)
        encoding = {"content-encoding": case.encoding} if case.encoding else {}
        headers = {"content-type": "text/event-stream", **encoding}
        return Scripted((case.body,), headers=headers)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
async def test_a_shape_means_the_same_from_socket_to_log(group: str, tmp_path: Path) -> None:
    names = [name for name in ALL if name.partition(":")[0] == group]
    playing = Playing([ALL[name] for name in names])
    wrong: dict[str, list[str]] = {}
    places = trio.CapacityLimiter(AT_ONCE)

    async def play(house: House, number: int) -> None:
        async with places:
            story = await house.tell(f"case {number}.", session=f"s{number}")
        found = faults(playing.cases[number], story, playing.asked[number])
        if found:
            wrong[names[number]] = found

    async with open_provider([playing.answer]) as provider:
        async with open_house(tmp_path, ModelsConfig(config(provider.url))) as house:
            async with trio.open_nursery() as nursery:
                for number in range(len(names)):
                    nursery.start_soon(play, house, number)
    assert len(playing.asked) == len(names)
    assert wrong == {}


def faults(case: Case, story: Story, requests: list[Request]) -> list[str]:
    """What came out otherwise than the case says."""
    match case.expect:
        case Reads() as reads:
            return [*_faults_of_reply(reads, story), *_faults_of_hint(reads, requests)]
        case Fails(kind, words) if kind in FINAL:
            return _faults_of_failure(words, story)
        case _:
            return _faults_of_retry(story)


def _faults_of_reply(reads: Reads, story: Story) -> list[str]:
    if story.failures:
        return [f"the turn failed: {story.failures[0]['message']}"]
    first = story.of("reply.received")[0]
    calls = [each for each in story.of("cell.requested") if each["step"] == 1]
    errors = [each["error"] or "" for each in story.of("cell.finished") if each["step"] == 1]
    unreadable = [
        error for error, call in zip(errors, _in_order(calls), strict=True) if call["code"] is None
    ]
    step = (first["attempt_id"], 1)
    found = {
        "text": (story.scratchpad[0], clean(reads.text)),
        "shown": (story.live("scratchpad").get(step, ""), clean(reads.text)),
        "reasoning": (story.live("reasoning").get(step, ""), clean(reads.reasoning)),
        "codes": (
            tuple(each["code"] for each in calls if each["code"] is not None),
            tuple(map(clean, reads.codes)),
        ),
        "finish": (first["finish"], reads.finish),
        "refused calls": (len(unreadable), len(reads.errors)),
        "withdrawn": (story.discards, 0),
    }
    wrong = [
        f"{name} is {is_!r}, not {should!r}"
        for name, (is_, should) in found.items()
        if is_ != should
    ]
    wrong += [
        f"{word!r} is not in {error!r}"
        for word, error in zip(reads.errors, unreadable, strict=False)
        if word not in error
    ]
    if story.said[-1:] != ["over"]:
        wrong.append(f"the turn did not go on: {story.said}")
    return wrong


def _in_order(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls as their results come: those that can't run have theirs at once."""
    return sorted(calls, key=lambda call: call["code"] is not None)


def _faults_of_hint(reads: Reads, requests: list[Request]) -> list[str]:
    if not reads.hint:
        return []
    last = requests[1].body["messages"][-1]
    if last["role"] == "user" and reads.hint in last["content"]:
        return []
    return [f"the model is not told that {reads.hint!r}: {last}"]


def _faults_of_failure(words: str, story: Story) -> list[str]:
    wrong = [] if story.failures else ["it did not fail"]
    for failed in story.failures:
        if words not in failed["message"]:
            wrong.append(f"{words!r} is not in {failed['message']!r}")
        if failed["retryable"]:
            wrong.append("it is called retryable")
    if story.of("cell.requested") or story.of("reply.received"):
        wrong.append("something of it was kept")
    return wrong


def _faults_of_retry(story: Story) -> list[str]:
    if story.failures:
        return [f"the turn failed: {story.failures[0]['message']}"]
    wrong = []
    if story.codes != [END]:
        wrong.append(f"other code than the second answer's ran: {story.codes}")
    if story.live("scratchpad") or story.live("reasoning"):
        wrong.append("what was streamed was not withdrawn")
    if "".join(story.scratchpad):
        wrong.append(f"the log keeps what did not count: {story.scratchpad}")
    return wrong
