"""One session after another bad answer: it goes on, and no strict provider ever has to refuse it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio
from fakes.provider import Request, Scripted, call_reply, open_provider, sse
from fakes.stream_cases import ALL, Case, Reads
from fakes.strictness import objections
from mutations import CODES, Chunks, calls_anything, mutated
from providers_house import House, Story, config, open_house

from klbr_trio import ModelsConfig

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROUNDS: Final = 25
SESSIONS: Final = 4
END: Final = "from klbr import local, runtime\nawait local.send('over')\nawait runtime.done()"
SMALL: Final = 20_000


@attrs.define(eq=False)
class Hostile:
    """A provider whose first answer to each round of a session is a bad one, and that is strict."""

    bad: Callable[[int, int], bytes]
    rounds: dict[int, int] = attrs.field(factory=dict)
    refused: list[tuple[int, int, list[str]]] = attrs.field(factory=list)

    def answer(self, request: Request) -> Scripted:
        session, number = _last_round(request.body["messages"])
        found = objections(request.body)
        if found:
            self.refused.append((session, number, found))
        if self.rounds.get(session, -1) < number:
            self.rounds[session] = number
            return Scripted((self.bad(session, number),))
        return call_reply(END)


def _last_round(messages: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """The session and the round that the newest input names."""
    said = " ".join(each["content"] for each in messages if each["role"] == "user")
    session, _, number = said.rpartition("<<")[2].partition(">>")[0].partition("/")
    return int(session), int(number)


async def play(
    folder: Path, bad: Callable[[int, int], bytes], rounds: int
) -> tuple[Hostile, dict[tuple[int, int], Story]]:
    """Every session's rounds, one after the other, the sessions side by side."""
    hostile = Hostile(bad)
    stories: dict[tuple[int, int], Story] = {}

    async def live(house: House, session: int) -> None:
        for number in range(rounds):
            text = f"<<{session}/{number}>>"
            stories[session, number] = await house.tell(text, session=f"s{session}")

    async with open_provider([hostile.answer]) as provider:
        async with open_house(folder, ModelsConfig(config(provider.url))) as house:
            async with trio.open_nursery() as nursery:
                for session in range(SESSIONS):
                    nursery.start_soon(live, house, session)
    return hostile, stories


@pytest.mark.slow
async def test_random_streams_run_nothing_half_and_lose_no_call(tmp_path: Path) -> None:
    rng = random.Random(4711)
    streams: dict[tuple[int, int], Chunks] = {
        (session, number): mutated(rng) for session in range(SESSIONS) for number in range(ROUNDS)
    }
    ends = {place: rng.random() < 0.7 for place in streams}
    hostile, stories = await play(
        tmp_path, lambda *place: sse(*streams[place], done=ends[place]), ROUNDS
    )
    assert hostile.refused == []
    with_calls = 0
    for place, story in stories.items():
        assert story.failures == [], place
        assert set(story.codes) <= {*CODES, END}, place
        assert story.said == ["over"], place
        first = [each["code"] for each in story.of("cell.requested") if each["step"] == 1]
        was_asked_again = first == [END]
        if calls_anything(streams[place]) and not was_asked_again:
            assert first, f"{place}: a call was lost"
            with_calls += 1
    assert with_calls > ROUNDS, "most streams count, or the test shows little"


@pytest.mark.slow
async def test_every_odd_call_stays_answerable(tmp_path: Path) -> None:
    """All shapes of calls and words that count, in one session each of four, in another order."""
    cases: list[Case] = [
        case
        for case in ALL.values()
        if isinstance(case.expect, Reads) and not case.encoding and len(case.body) < SMALL
    ]
    orders = [random.Random(seed).sample(cases, len(cases)) for seed in range(SESSIONS)]
    share = len(cases) // SESSIONS + 1
    taken = [order[share * seed :][:share] for seed, order in enumerate(orders)]
    rounds = min(map(len, taken))
    hostile, stories = await play(
        tmp_path, lambda session, number: taken[session][number].body, rounds
    )
    assert hostile.refused == []
    assert [place for place, story in stories.items() if story.failures] == []
    assert all(story.said[-1:] == ["over"] for story in stories.values())
