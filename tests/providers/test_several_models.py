"""Which model answers, what it costs, and how many requests a provider gets at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from fakes.provider import (
    USAGE,
    Request,
    Scripted,
    call_fragment,
    call_reply,
    chunk,
    drip,
    open_provider,
    refuse,
    refused_url,
    sse,
    text_reply,
)
from providers_house import CEILING_S, House, config, open_house

from klbr_trio import ModelsConfig

if TYPE_CHECKING:
    from pathlib import Path

END: Final = "from klbr import local, runtime\nawait local.send('over')\nawait runtime.done()"
OVER: Final = call_reply(END)


async def test_a_fallback_answers_while_the_default_is_unavailable(tmp_path: Path) -> None:
    broken = drip(sse(chunk({"content": "Let me "}), done=False))
    async with open_provider([broken]) as first, open_provider([OVER]) as second:
        with refused_url() as closed:
            models = ModelsConfig(
                config(first.url, attempts=1),
                fallbacks=(
                    config(closed, model="gone"),
                    config(second.url, model="other", price_input=1.0, price_output=2.0),
                ),
            )
            async with open_house(tmp_path, models) as house:
                story = await house.tell()
    assert story.failures == []
    (reply,) = story.of("reply.received")
    assert reply["model"] == "other"
    assert story.discards == 1, "what the first one streamed does not count"
    assert story.live("scratchpad") == {}
    assert len(first.requests) == len(second.requests) == 1


async def test_a_refusal_for_good_is_asked_of_nobody_else(tmp_path: Path) -> None:
    no = refuse(400, {"error": {"message": "such content is not allowed"}})
    async with open_provider([no]) as first, open_provider([OVER]) as second:
        models = ModelsConfig(config(first.url), fallbacks=(config(second.url, model="other"),))
        async with open_house(tmp_path, models) as house:
            story = await house.tell()
    assert "such content is not allowed" in story.failures[0]["message"]
    assert second.requests == []


async def test_a_behaviour_chooses_its_model_by_name(tmp_path: Path) -> None:
    async with open_provider([OVER]) as provider:
        default = config(provider.url)
        named = {"small": config(provider.url, model="small-1", tool_name="run_code")}
        models = ModelsConfig(default, named=named)
        async with open_house(tmp_path, models, model="small") as house:
            story = await house.tell()
    request = provider.requests[0].body
    assert request["model"] == "small-1"
    assert request["tools"][0]["function"]["name"] == "run_code"
    assert story.of("turn.started")[0]["model"] == "small-1"


async def test_a_behaviour_whose_model_there_is_not_fails_and_says_so(tmp_path: Path) -> None:
    async with open_provider([OVER]) as provider:
        models = ModelsConfig(config(provider.url), named={"small": config(provider.url)})
        async with open_house(tmp_path, models, model="large") as house:
            story = await house.tell()
    assert provider.requests == []
    assert {each["code"] for each in story.failures} == {"provider_refused"}
    assert "no model is named 'large' (named models: small)" in story.failures[0]["message"]


async def test_usage_and_cost_are_journaled_and_summed_a_session(tmp_path: Path) -> None:
    async with open_provider([call_reply("1"), OVER, OVER]) as provider:
        models = ModelsConfig(config(provider.url, price_input=1_000_000.0, price_output=0.5))
        async with open_house(tmp_path, models) as house:
            first = await house.tell()
            second = await house.tell()
            other = await house.tell(session="other")
    one = {**USAGE, "cost": USAGE["prompt_tokens"] + USAGE["completion_tokens"] * 0.5e-6}
    for reply in [*first.of("reply.received"), *second.of("reply.received")]:
        assert reply["usage"] == one
    assert first.of("turn.completed")[0]["usage"]["total_tokens"] == 2 * USAGE["total_tokens"]
    for story, replies in ((first, 2), (second, 3), (other, 1)):
        shown = story.status["usage"]
        assert shown["total_tokens"] == replies * USAGE["total_tokens"]
        assert abs(shown["cost"] - replies * one["cost"]) < 1e-9


async def test_what_was_never_counted_is_not_shown(tmp_path: Path) -> None:
    uncounted = drip(sse(chunk(call_fragment(END)), chunk(finish="tool_calls")))
    async with open_provider([uncounted]) as provider:
        async with open_house(tmp_path, ModelsConfig(config(provider.url))) as house:
            story = await house.tell()
    assert story.of("reply.received")[0]["usage"] is None
    assert "usage" not in story.status


async def test_a_provider_gets_so_many_requests_at_a_time_and_no_place_is_lost(
    tmp_path: Path,
) -> None:
    let_go = trio.Event()
    held = drip(let_go, *OVER.pieces)
    async with open_provider([held]) as provider:
        models = ModelsConfig(config(provider.url, max_requests=2))
        async with open_house(tmp_path, models) as house, trio.open_nursery() as nursery:
            with trio.fail_after(CEILING_S):
                nursery.start_soon(_tell_all, house, 6)
                await provider.wait_requests(2)
                with trio.move_on_after(0.5):
                    await provider.wait_requests(3)
                assert len(provider.requests) == 2, "the others wait outside"
                let_go.set()
    assert len(provider.requests) == 6


async def test_too_many_requests_slow_every_session_of_that_provider(tmp_path: Path) -> None:
    times: list[float] = []

    def limited(_: Request) -> Scripted:
        times.append(trio.current_time())
        if len(times) == 1:
            return refuse(429, {"error": {"message": "slow down"}}, headers={"retry-after": "1"})
        return OVER

    async with open_provider([limited]) as provider:
        models = ModelsConfig(config(provider.url, max_requests=1))
        async with open_house(tmp_path, models) as house:
            await _tell_all(house, 3)
    assert len(times) == 4
    assert min(times[1:]) - times[0] >= 1.0, "nobody came before the time was over"


async def test_reasoning_is_a_lane_of_its_own_and_never_speech(tmp_path: Path) -> None:
    async with open_provider([text_reply("So be it.", reasoning="Hm, well."), OVER]) as provider:
        async with open_house(tmp_path, ModelsConfig(config(provider.url))) as house:
            story = await house.tell()
    assert list(story.live("reasoning").values()) == ["Hm, well."]
    assert story.scratchpad == ["So be it.", ""]
    assert story.said == ["over"]
    assert list(story.live("speech").values()) == ["over"]


async def _tell_all(house: House, sessions: int) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(sessions):
            nursery.start_soon(_tell, house, f"s{number}")


async def _tell(house: House, session: str) -> None:
    story = await house.tell(session=session)
    assert story.said == ["over"]
