from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from klbr_trio.errors import ConfigError
from klbr_trio.models import (
    Assistant,
    Message,
    ModelConfig,
    ModelRequest,
    ModelsConfig,
    PastCall,
    System,
    ToolResult,
    User,
)
from klbr_trio.models.request.address import api_bases, endpoint, other_forms, public_url
from klbr_trio.models.request.body import encode, request_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIG = ModelConfig("http://p/v1", "m")


def body(
    *messages: Message, config: ModelConfig = CONFIG, dropped: Sequence[str] = ()
) -> dict[str, Any]:
    """The body as the provider reads it."""
    fields = request_fields(ModelRequest(messages), config, dropped=frozenset(dropped))
    read: dict[str, Any] = json.loads(encode(fields))
    return read


def sent(*messages: Message, config: ModelConfig = CONFIG) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body(*messages, config=config)["messages"]
    return found


def test_a_plain_request() -> None:
    whole = body(System("be"), User("hi"))
    assert whole["model"] == "m"
    assert whole["stream"] is True
    assert whole["stream_options"] == {"include_usage": True}
    assert whole["messages"] == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "hi"},
    ]
    function = whole["tools"][0]["function"]
    assert function["name"] == "python"
    assert function["parameters"]["required"] == ["code"]


def test_what_a_model_wants_otherwise() -> None:
    config = ModelConfig(
        "http://p", "m", tool_name="run", stream_options=False, extra_body={"temperature": 0}
    )
    whole = body(User("hi"), config=config)
    assert whole["tools"][0]["function"]["name"] == "run"
    assert "stream_options" not in whole
    assert whole["temperature"] == 0
    fields = request_fields(ModelRequest((User("x"),), tools=False), config)
    assert "tools" not in fields


def test_user_messages_in_a_row_are_joined() -> None:
    assert sent(User("a"), User("b")) == [{"role": "user", "content": "a\n\nb"}]


def test_instructions_that_come_later_are_no_system_message() -> None:
    messages = sent(System("be"), System("good"), User("a"), System("late"))
    assert messages[0] == {"role": "system", "content": "be\n\ngood"}
    assert messages[1] == {"role": "user", "content": "a\n\nlate"}


def test_calls_and_results_are_paired() -> None:
    messages = sent(
        User("go"),
        Assistant("", (PastCall("x", "a()"), PastCall("y", "b()"))),
        ToolResult("y", "second"),
        ToolResult("nobody", "stray"),
        ToolResult("x", "first"),
        ToolResult("x", "again"),
        User("and?"),
    )
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert [(each["tool_call_id"], each["content"]) for each in messages[2:4]] == [
        ("x", "first"),
        ("y", "second"),
    ]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["x", "y"]


def test_a_call_without_a_result_gets_one() -> None:
    messages = sent(Assistant("", (PastCall("x", "a()"),)), User("and?"))
    assert messages[1]["role"] == "tool"
    assert messages[1]["content"]


def test_an_id_that_comes_back_belongs_to_its_own_message() -> None:
    messages = sent(
        Assistant("", (PastCall("0", "a()"),)),
        ToolResult("0", "first"),
        Assistant("", (PastCall("0", "b()"),)),
        ToolResult("0", "second"),
    )
    assert [each["content"] for each in messages if each["role"] == "tool"] == ["first", "second"]


@pytest.mark.parametrize(
    "raw", [None, "", '{"code": "half', "{'code': 1}", "a()", "[1]", "null", '"{}"', "[" * 100_000]
)
def test_arguments_in_the_history_are_always_one_object(raw: str | None) -> None:
    (message, _) = sent(Assistant("", (PastCall("x", None, raw),)))
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert set(arguments) == {"code"}
    assert "nothing was run" in arguments["code"]


def test_readable_arguments_go_back_as_they_came() -> None:
    raw = '{"script": "a()"}'
    (message, _) = sent(Assistant("", (PastCall("x", None, raw),)))
    assert message["tool_calls"][0]["function"]["arguments"] == raw


def call_opaque(**call: object) -> dict[str, object]:
    return {"model": "m", "message": {}, "calls": [{"id": "x", "name": "python", **call}]}


def test_unknown_fields_of_a_call_go_back_as_they_came() -> None:
    opaque = call_opaque(
        fields={"extra_content": {"google": {"thought_signature": "sig"}}},
        function={"signature": "s"},
    )
    (message, _) = sent(Assistant("", (PastCall("x", "a()"),), opaque))
    (call,) = message["tool_calls"]
    assert call["extra_content"] == {"google": {"thought_signature": "sig"}}
    assert call["function"]["signature"] == "s"
    assert call["function"]["name"] == "python"


def test_opaque_calls_are_found_by_id_if_their_number_differs() -> None:
    opaque = {"calls": [{"id": "w"}, {"id": "x", "fields": {"extra_content": 1}}]}
    (message, _) = sent(Assistant("", (PastCall("x", "a()"),), opaque))
    assert message["tool_calls"][0]["extra_content"] == 1


def test_what_another_model_said_keeps_its_secrets_to_itself() -> None:
    opaque = {**call_opaque(fields={"extra_content": 1}), "model": "another"}
    (message, _) = sent(Assistant("", (PastCall("x", "a()"),), opaque))
    assert "extra_content" not in message["tool_calls"][0]


def test_the_tool_goes_back_under_the_models_own_name_for_it() -> None:
    config = ModelConfig("http://p", "m", tool_name="run")
    (message, _) = sent(Assistant("", (PastCall("x", "a()"),), call_opaque()), config=config)
    assert message["tool_calls"][0]["function"]["name"] == "run"


@pytest.mark.parametrize(
    ("name", "expected"), [("web search!", "web_search_"), ("!", "_"), ("é" * 99, "_")]
)
def test_an_unknown_tool_goes_back_under_a_name_that_is_accepted(name: str, expected: str) -> None:
    (message, _) = sent(Assistant("", (PastCall("x", None, "{}"),), call_opaque(name=name)))
    assert message["tool_calls"][0]["function"]["name"] == expected


REASONED = {"model": "m", "reasoning": {"field": "reasoning_content", "text": "why"}}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({}, {"reasoning_content": "why"}),
        ({"reasoning_field": None}, {}),
        ({"reasoning_field": "reasoning"}, {"reasoning": "why"}),
    ],
)
def test_reasoning_goes_back_as_the_model_wants_it(
    setting: dict[str, Any], expected: dict[str, str]
) -> None:
    config = ModelConfig("http://p", "m", **setting)
    (message,) = sent(Assistant("hi", (), REASONED), config=config)
    assert message == {"role": "assistant", "content": "hi", **expected}


def test_reasoning_without_a_field_of_its_own_stays_here() -> None:
    opaque = {"model": "m", "reasoning": {"field": None, "text": "why"}}
    assert sent(Assistant("hi", (), opaque)) == [{"role": "assistant", "content": "hi"}]


def test_only_fields_that_are_known_to_be_wanted_go_back_with_a_message() -> None:
    opaque = {"model": "m", "message": {"reasoning_details": [1], "annotations": [2]}}
    (message,) = sent(Assistant("hi", (), opaque))
    assert message == {"role": "assistant", "content": "hi", "reasoning_details": [1]}


def test_refused_fields_are_left_out_everywhere() -> None:
    opaque = {**call_opaque(fields={"extra_content": 1}), "reasoning": REASONED["reasoning"]}
    dropped = ("stream_options", "reasoning_content", "extra_content")
    text = json.dumps(body(Assistant("", (PastCall("x", "a()"),), opaque), dropped=dropped))
    assert not any(name in text for name in dropped)


def test_no_message_is_empty() -> None:
    (message,) = sent(Assistant("", (), REASONED))
    assert message["content"]


def test_lone_surrogates_never_leave() -> None:
    messages = sent(
        User("a\udcaf"),
        Assistant(
            "b\ud800", (PastCall("x\udcaf", "c\udcaf"),), call_opaque(fields={"s": "\udcaf"})
        ),
    )
    assert "\\ud" not in json.dumps(messages)
    assert messages[0]["content"] == "a\ufffd"


@pytest.mark.parametrize(
    ("url", "bases"),
    [
        ("http://h:1", ["http://h:1/v1", "http://h:1"]),
        ("http://h:1/", ["http://h:1/v1", "http://h:1"]),
        ("http://h/v1", ["http://h/v1"]),
        ("http://h/v1/", ["http://h/v1"]),
        ("http://h/v1///", ["http://h/v1"]),
        ("http://h//v1", ["http://h/v1"]),
        ("http://h/v1/v1", ["http://h/v1"]),
        ("http://h/v1/chat/completions", ["http://h/v1"]),
        ("http://h/api", ["http://h/api/v1", "http://h/api"]),
        ("http://h/v1beta/openai/", ["http://h/v1beta/openai"]),
        ("http://h/api/paas/v4", ["http://h/api/paas/v4"]),
        ("  https://h/v1 ", ["https://h/v1"]),
        ("http://h/v1?api-version=2", ["http://h/v1?api-version=2"]),
    ],
)
def test_a_base_url_is_what_people_write(url: str, bases: list[str]) -> None:
    assert list(api_bases(url)) == bases


def test_the_endpoint_is_joined_once() -> None:
    assert endpoint("http://h/v1?a=1") == "http://h/v1/chat/completions?a=1"
    assert other_forms("http://h/v1") == ("http://h",)
    assert other_forms("http://h/api") == ()


@pytest.mark.parametrize("url", ["", "h/v1", "ftp://h", "http://", "http://[::1", "http://h:99999"])
def test_a_url_that_is_none_is_refused_early(url: str) -> None:
    with pytest.raises(ConfigError):
        ModelConfig(url, "m")


def test_urls_are_shown_without_secrets() -> None:
    assert public_url("http://user:pw@h:1/v1?key=secret#x") == "http://h:1/v1"
    with pytest.raises(ConfigError) as caught:
        ModelConfig("htp://user:pw@h/v1?key=secret", "m")
    assert "pw" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_config_never_shows_its_secrets() -> None:
    config = ModelConfig(
        "http://h",
        "m",
        " s3cret-key\n",
        extra_headers={"x-api-key": "s3cret-2"},
        proxy="http://s3cret-3@p",
    )
    assert config.api_key == "s3cret-key"
    assert "s3cret" not in repr(config)
    assert "s3cret" not in repr(ModelsConfig(config))


@pytest.mark.parametrize(
    "setting",
    [
        {"api_key": "a\nb"},
        {"api_key": "ключ"},
        {"tool_name": "a b"},
        {"stall_s": 0},
        {"max_requests": 0},
    ],
)
def test_settings_that_can_not_work_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig("http://h", "m", **setting)
    assert "ключ" not in str(caught.value)


def test_models_are_chosen_by_name_and_fall_back_in_order() -> None:
    first, second, third = (ModelConfig("http://h", name) for name in "abc")
    models = ModelsConfig(first, named={"big": second}, fallbacks=(second, third))
    assert models.chain("") == (first, second, third)
    assert models.chain("big") == (second, third)
    with pytest.raises(ConfigError, match="big"):
        models.chain("small")
