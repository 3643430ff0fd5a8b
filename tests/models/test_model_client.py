"""The client against a real HTTP server that plays a script."""

from __future__ import annotations

import json
import logging

import attrs
import pytest
import trio
import trio.testing
from asking import REQUEST, Asked, ask, client
from fakes.provider import (
    Scripted,
    call_fragment,
    call_reply,
    chunk,
    drip,
    hang,
    open_provider,
    refuse,
    refused_url,
    sse,
    text_reply,
)

from klbr_trio.errors import ConfigError, ContextTooLong, ModelRefused, ModelUnavailable
from klbr_trio.models import (
    Assistant,
    LlmClient,
    ModelConfig,
    ModelRequest,
    ModelsConfig,
    PastCall,
    ToolResult,
    User,
)

SAID = sse(chunk({"content": "Half a "}), done=False)
BAD_GATEWAY = refuse(502, "<html><title>502 Bad Gateway</title></html>")


async def test_words_are_shown_as_they_come() -> None:
    go_on = trio.Event()
    end = sse(chunk({"content": "word"}), chunk(finish="stop"))
    asked = Asked()
    async with open_provider([drip(SAID, go_on, end)]) as provider, trio.open_nursery() as nursery:

        async def answer_when_shown() -> None:
            with trio.fail_after(5):
                await asked.began.wait()
            assert asked.text("scratchpad") == "Half a "
            go_on.set()

        nursery.start_soon(answer_when_shown)
        reply = await ask(client(provider.url), asked)
    assert reply.text == asked.text("scratchpad") == "Half a word"
    assert asked.discards == 0


async def test_a_step_as_a_provider_sees_it() -> None:
    async with open_provider([call_reply("a()", text="On it.")]) as provider:
        llm = client(provider.url + "/", api_key="k-e-y", extra_headers={"X-Team": "t"})
        reply = await ask(llm)
        (request,) = provider.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer k-e-y"
    assert request.headers["x-team"] == "t"
    assert request.headers["accept-encoding"] == "identity"
    assert request.body["messages"] == [{"role": "user", "content": "hi"}]
    assert [call.code for call in reply.calls] == ["a()"]
    assert reply.usage == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


async def test_a_price_makes_a_cost() -> None:
    async with open_provider([text_reply("hi")]) as provider:
        reply = await ask(client(provider.url, price_input=1.0, price_output=3.0))
    assert reply.usage is not None
    assert reply.usage["cost"] == pytest.approx((7 + 15) / 1e6)


async def test_reasoning_has_a_lane_of_its_own_and_goes_back() -> None:
    """What is stored of a reply is enough to send its message back right."""
    fragment = call_fragment("a()")
    fragment["tool_calls"][0]["extra_content"] = {"signature": "s"}  # type: ignore[index]
    first = Scripted(
        (sse(chunk({"reasoning_content": "why"}), chunk(fragment), chunk(finish="tool_calls")),)
    )
    async with open_provider([first, text_reply("done")]) as provider:
        llm, asked = client(provider.url), Asked()
        reply = await ask(llm, asked)
        assert (asked.text("reasoning"), asked.text("scratchpad")) == ("why", "")
        (call,) = reply.calls
        past = Assistant(
            reply.text,
            (PastCall(call.provider_id, call.code, call.raw),),
            json.loads(json.dumps(reply.opaque)),
        )
        request = ModelRequest((User("hi"), past, ToolResult(call.provider_id, "ok")))
        await llm.complete(request, on_delta=asked.on_delta, on_discard=asked.on_discard)
        message = provider.requests[1].body["messages"][1]
    assert message["reasoning_content"] == "why"
    assert message["tool_calls"][0]["extra_content"] == {"signature": "s"}


@pytest.mark.parametrize(
    "broken",
    [
        drip(SAID),
        drip(SAID, after="reset"),
        drip(SAID, after="hang"),
        drip(SAID, sse({"error": {"message": "full", "code": 503}})),
        drip(SAID, b"data: {oops\n\n"),
        drip(SAID, sse(chunk(finish="insufficient_system_resource"))),
    ],
    ids=["cut", "reset", "silent", "error", "garbage", "broken off"],
)
async def test_what_was_shown_of_a_broken_answer_is_withdrawn(broken: Scripted) -> None:
    async with open_provider([broken, text_reply("Whole.")]) as provider:
        asked = Asked()
        reply = await ask(client(provider.url, stall_s=0.1), asked)
    assert asked.withdrawn == "Half a "
    assert reply.text == asked.text("scratchpad") == "Whole."
    assert asked.discards == 1


@pytest.mark.parametrize(
    "broken",
    [
        BAD_GATEWAY,
        refuse(503, {"error": {"message": "the model is loading"}}),
        refuse(400, {"error": {"message": "x", "code": "tool_use_failed"}}),
        Scripted(status=None),
        Scripted(),
        Scripted((b": wait\n\n",)),
        drip(sse(chunk(finish="stop"))),
        Scripted((SAID,), headers={"content-type": "text/event-stream", "content-length": "999"}, raw=True),
    ],
    ids=["502", "503", "slip", "no byte", "empty", "keep-alives", "nothing said", "short body"],
)  # fmt: skip
async def test_what_may_pass_is_tried_again(broken: Scripted) -> None:
    async with open_provider([broken, text_reply("hi")]) as provider:
        reply = await ask(client(provider.url))
        assert len(provider.requests) == 2
    assert reply.text == "hi"


async def test_retries_have_an_end_and_the_error_says_all() -> None:
    async with open_provider([BAD_GATEWAY]) as provider:
        with pytest.raises(ModelUnavailable) as caught:
            await ask(client(provider.url, attempts=2))
        assert len(provider.requests) == 2
    words = str(caught.value)
    assert f"a-model: 502 Bad Gateway ({provider.url}/chat/completions, status 502)." in words
    assert "tried 2 times" in words
    assert "<html" not in words


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (401, {"error": {"message": "bad key"}}, ModelRefused, "Check the API key"),
        (404, {"error": {"message": "no model x"}}, ModelRefused, "Check the model's name"),
        (
            429,
            {"error": {"message": "no credit", "code": "insufficient_quota"}},
            ModelRefused,
            "Fill",
        ),
        (400, {"error": {"message": "context length exceeded"}}, ContextTooLong, "shorter"),
        (301, "", ModelRefused, "answered 301"),
    ],
)
async def test_what_would_fail_again_is_asked_once(
    status: int, body: object, error: type[Exception], words: str
) -> None:
    async with open_provider([refuse(status, body)]) as provider:
        with pytest.raises(error, match=words):
            await ask(client(provider.url))
        assert len(provider.requests) == 1


async def test_a_redirect_is_named_and_not_followed() -> None:
    moved = refuse(
        308, "", headers={"location": "https://elsewhere/v1/chat/completions?key=s3cret"}
    )
    async with open_provider([moved]) as provider:
        with pytest.raises(ModelRefused, match="redirects to https://elsewhere/v1/chat") as caught:
            await ask(client(provider.url))
        assert len(provider.requests) == 1
    assert "s3cret" not in str(caught.value)


async def test_a_filtered_answer_stays_on_the_screen() -> None:
    async with open_provider([drip(SAID, sse(chunk(finish="content_filter")))]) as provider:
        asked = Asked()
        with pytest.raises(ModelRefused, match=r"content_filter.*Half a"):
            await ask(client(provider.url), asked)
    assert asked.text("scratchpad") == "Half a "


async def test_secrets_that_a_provider_repeats_are_not_shown() -> None:
    body = {"error": {"message": "the key s3cret-key of team s3cret-team is bad"}}
    async with open_provider([refuse(401, body)]) as provider:
        llm = client(
            provider.url + "?key=s3cret-q", api_key="s3cret-key", extra_headers={"t": "s3cret-team"}
        )
        with pytest.raises(ModelRefused, match="the key") as caught:
            await ask(llm)
    assert "s3cret" not in str(caught.value)


async def test_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers = [refuse(503, "s3cret-key is busy"), text_reply("<tool_call>")]
    async with open_provider(answers) as provider:
        llm = client(
            provider.url + "?key=s3cret-q", api_key="s3cret-key", extra_headers={"t": "s3cret-t"}
        )
        await ask(llm)
    assert "again in" in caplog.text
    assert "its own call tokens" in caplog.text
    assert "s3cret" not in caplog.text


async def test_a_refused_connection_is_told_of_in_well_under_a_second() -> None:
    with refused_url() as url:
        started = trio.current_time()
        with pytest.raises(ModelUnavailable, match="connection refused"):
            await ask(client(url))
    assert trio.current_time() - started < 0.9


async def test_a_host_that_is_not_known_is_unavailable() -> None:
    with pytest.raises(ModelUnavailable, match=r"host's name|no connection"):
        await ask(client("http://no-such-host.invalid/v1"))


async def test_silence_before_the_first_word_is_timed() -> None:
    quiet = drip(sse(chunk({"role": "assistant", "content": ""}), done=False), after="hang")
    for silent in (hang(), quiet):
        async with open_provider([silent]) as provider:
            with trio.fail_after(5), pytest.raises(ModelUnavailable, match=r"silent for 0.1 s"):
                await ask(client(provider.url, first_token_s=0.1, attempts=1))
            await provider.wait_disconnected(0)


@pytest.mark.parametrize(
    "alive",
    [
        b": keep-alive\n\n",
        sse({"choices": []}, done=False),
        sse(chunk({"content": ""}), done=False),
    ],
)
async def test_keep_alives_do_not_hide_a_stall(alive: bytes) -> None:
    gates = [trio.Event() for _ in range(2000)]
    pieces = [piece for gate in gates for piece in (gate, alive)]
    async with open_provider([drip(SAID, *pieces)]) as provider, trio.open_nursery() as nursery:

        async def keep_alive() -> None:
            for gate in gates:
                await trio.sleep(0.01)
                gate.set()

        nursery.start_soon(keep_alive)
        with trio.fail_after(5), pytest.raises(ModelUnavailable, match=r"fell silent for 0.2 s"):
            await ask(client(provider.url, stall_s=0.2, attempts=1))
        nursery.cancel_scope.cancel()


async def test_an_answer_that_never_ends_is_ended() -> None:
    words = sse(chunk({"content": "x"}), done=False)
    gates = [trio.Event() for _ in range(2000)]
    pieces = [piece for gate in gates for piece in (gate, words)]
    async with open_provider([drip(*pieces)]) as provider, trio.open_nursery() as nursery:

        async def go_on() -> None:
            for gate in gates:
                await trio.sleep(0.01)
                gate.set()

        nursery.start_soon(go_on)
        with trio.fail_after(5), pytest.raises(ModelUnavailable, match="no whole answer"):
            await ask(client(provider.url, total_s=0.2, attempts=1))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("after", ["hang", "reset", "close"])
async def test_nothing_counts_after_done(after: str) -> None:
    async with open_provider([attrs.evolve(text_reply("hi"), after=after)]) as provider:  # type: ignore[arg-type]
        with trio.fail_after(1):
            reply = await ask(client(provider.url))
    assert reply.text == "hi"


async def test_a_reset_after_the_finish_reason_breaks_nothing() -> None:
    whole = sse(chunk({"content": "hi"}), chunk(finish="stop"), done=False)
    async with open_provider([drip(whole, after="reset")]) as provider:
        reply = await ask(client(provider.url, attempts=1))
    assert reply.text == "hi"


async def test_a_finish_reason_without_an_end_is_not_waited_for_long() -> None:
    whole = sse(chunk({"content": "hi"}), chunk(finish="stop"), done=False)
    async with open_provider([drip(whole, after="hang")]) as provider:
        with trio.fail_after(4):
            reply = await ask(client(provider.url, attempts=1))
    assert reply.text == "hi"


async def test_the_providers_time_is_waited() -> None:
    limited = refuse(429, "slow down", headers={"retry-after": "0.3"})
    async with open_provider([limited, text_reply("hi")]) as provider:
        started = trio.current_time()
        await ask(client(provider.url))
    assert 0.3 <= trio.current_time() - started < 2


async def test_a_limit_slows_all_sessions_of_a_provider() -> None:
    limited = refuse(429, "slow down", headers={"retry-after": "0.4"})
    async with open_provider([limited, text_reply("hi")]) as provider:
        llm = client(provider.url)
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, llm, None, "first")
            await provider.wait_requests(1)
            await provider.requests[0].over.wait()
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert llm.gate(llm.models.llm).statistics().paused_s
            await ask(llm, None, "second")
            assert trio.current_time() - started >= 0.4


async def test_a_limit_that_lasts_too_long_is_told_at_once() -> None:
    limited = refuse(429, "slow down", headers={"retry-after": "3600"})
    async with open_provider([limited]) as provider:
        with trio.fail_after(1), pytest.raises(ModelUnavailable, match="asks to wait 3600 s"):
            await ask(client(provider.url))


async def test_only_so_many_requests_at_a_time() -> None:
    async with open_provider([hang()]) as provider, trio.open_nursery() as nursery:
        llm = client(provider.url, max_requests=2)
        for number in range(4):
            nursery.start_soon(ask, llm, None, f"s{number}")
        await provider.wait_requests(2)
        stands = llm.gate(llm.models.llm).statistics()
        assert (stands.in_use, stands.waiting, len(provider.requests)) == (2, 2, 2)
        nursery.cancel_scope.cancel()


async def test_a_field_that_is_refused_is_left_out_now_and_later() -> None:
    refused = refuse(
        422, {"detail": [{"loc": ["body", "stream_options"], "msg": "extra field not permitted"}]}
    )
    async with open_provider([refused, text_reply("hi")]) as provider:
        llm = client(provider.url)
        await ask(llm)
        await ask(llm)
        sent = ["stream_options" in request.body for request in provider.requests]
    assert sent == [True, False, False]


async def test_the_base_is_found_once() -> None:
    """Without a version in the base, `/v1` is tried first and what works is remembered."""
    async with open_provider([refuse(404, "404 page not found"), text_reply("hi")]) as provider:
        llm = client(provider.origin + "/api/")
        await ask(llm)
        await ask(llm)
        paths = [request.path for request in provider.requests]
    assert paths == ["/api/v1/chat/completions", *["/api/chat/completions"] * 2]


async def test_a_base_that_is_nowhere_is_named() -> None:
    async with open_provider([refuse(404, "404 page not found")]) as provider:
        llm = client(provider.origin)
        for _ in range(2):
            with pytest.raises(ModelRefused, match=r"404 page not found.*base URL"):
                await ask(llm)
        with pytest.raises(ModelRefused, match="/v1/chat/completions"):
            await ask(client(provider.url))


@pytest.mark.parametrize(
    "first",
    [BAD_GATEWAY, refuse(401, "bad key"), refuse(404, {"error": {"message": "no such model"}})],
)
async def test_another_model_answers_when_one_can_not(first: Scripted) -> None:
    async with open_provider([first]) as one, open_provider([text_reply("hi")]) as other:
        models = ModelsConfig(
            ModelConfig(one.url, "one", attempts=1), fallbacks=(ModelConfig(other.url, "other"),)
        )
        reply = await ask(LlmClient(models))
    assert (reply.model, reply.text) == ("other", "hi")


async def test_what_the_request_is_to_blame_for_is_not_asked_of_another_model() -> None:
    async with open_provider([refuse(400, "bad request")]) as one, open_provider([hang()]) as other:
        models = ModelsConfig(ModelConfig(one.url, "one"), fallbacks=(ModelConfig(other.url, "x"),))
        with pytest.raises(ModelRefused):
            await ask(LlmClient(models))
        assert not other.requests


async def test_a_request_may_name_its_model() -> None:
    async with open_provider([text_reply("hi")]) as provider:
        models = ModelsConfig(
            ModelConfig(provider.url, "small"), named={"big": ModelConfig(provider.url, "large")}
        )
        llm, asked = LlmClient(models), Asked()
        request = attrs.evolve(REQUEST, model="big")
        reply = await llm.complete(request, on_delta=asked.on_delta, on_discard=asked.on_discard)
        assert provider.requests[0].body["model"] == reply.model == "large"
        with pytest.raises(ConfigError):
            await llm.complete(
                attrs.evolve(REQUEST, model="?"),
                on_delta=asked.on_delta,
                on_discard=asked.on_discard,
            )


def test_one_client_serves_one_run_after_another() -> None:
    async def main(llm: LlmClient) -> None:
        async with open_provider(
            [refuse(429, "x", headers={"retry-after": "0.05"}), text_reply("hi")]
        ) as p:
            config = attrs.evolve(llm.models.llm, url=p.url)
            assert (await ask(LlmClient(ModelsConfig(config)))).text == "hi"
            assert llm.gate(llm.models.llm).statistics().paused_s == 0
            llm.gate(llm.models.llm).pause(3600)

    llm = client("http://127.0.0.1:9/v1")
    assert repr(llm) == "<LlmClient a-model at http://127.0.0.1:9/v1>"
    for _ in range(2):
        trio.run(main, llm)


async def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with open_provider([text_reply("hi")]) as provider:
        assert (await ask(client(provider.url))).text == "hi"


async def test_a_proxy_that_is_set_is_used() -> None:
    async with open_provider([text_reply("hi")]) as proxy:
        llm = client("http://provider.invalid/v1", proxy=proxy.origin)
        assert (await ask(llm)).text == "hi"
        assert proxy.requests[0].path == "http://provider.invalid/v1/chat/completions"
