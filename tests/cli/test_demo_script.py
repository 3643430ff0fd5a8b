from __future__ import annotations

import ast
from typing import Any

import httpx
import pytest
from hypothesis import given, strategies as st

from klbr_trio.daemon.demo.conversation import Asked, Woken, read
from klbr_trio.daemon.demo.provider import open_demo_provider
from klbr_trio.daemon.demo.script import GREETING, UNKNOWN, answer
from klbr_trio.models import LlmClient, ModelConfig, ModelRequest, ModelsConfig, User
from klbr_trio.sessions.prompt import words

NOW_MS = 1_796_097_650_000


def user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": "\n\n".join(texts)}


def said_by(source: str, text: str) -> str:
    return words.an_input(source, text, NOW_MS)


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c", "content": text}


OK = tool("(no output)")
CALL = {"role": "assistant", "content": "", "tool_calls": []}


def code_for(*messages: dict[str, Any]) -> str:
    code = answer(read([{"role": "system", "content": "[input from x, y]\nhello"}, *messages])).code
    assert code is not None
    compile(code, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


def test_inputs_and_wakes_are_read_from_the_services_own_words() -> None:
    conversation = read(
        [
            user(
                words.woken(NOW_MS, 70_000, "stretch. Now"),
                said_by("a, b]", "one\n\nand more"),
                words.kernel_reset({"why": "restart"}),
                said_by("cli", "two"),
            )
        ]
    )
    assert conversation.owed == [Woken("stretch. Now"), Asked("one\n\nand more"), Asked("two")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello!", GREETING),
        ("please count to 3", "range(1, 3 + 1)"),
        ("what is 6*7?", "value = 6*7"),
        ("compute (1+2) * 3 - 4/5", "value = (1+2) * 3 - 4/5"),
        ("wake me in 1.5 minutes to look at the oven.", "seconds=90, reason='look at the oven'"),
        ("Wake me in 5 seconds", "seconds=5"),
        ("remember that the door is blue", "remember('the door', 'blue')"),
        ("what is the door?", "recall('the door')"),
        ("sing", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_each_wish_has_its_cell(text: str, expected: str) -> None:
    assert expected in code_for(user(said_by("cli", text)))


@pytest.mark.parametrize(
    "text", ["what is 9**9**9**9", "what is 1//0", "what is 1+(2", "what is 007+1"]
)
def test_no_sum_runs_for_long_or_breaks_the_cell(text: str) -> None:
    assert "**" not in code_for(user(said_by("cli", text)))


@given(st.text())
def test_whatever_is_asked_is_answered_with_python(text: str) -> None:
    assert "await local.send(" in code_for(user(said_by("cli", text)))


def test_several_are_answered_in_one_cell_and_a_sleep_is_kept() -> None:
    code = code_for(
        user(said_by("a", "hello"), said_by("b", "wake me in 9 s"), said_by("c", "sing"))
    )
    assert code.count("local.send") == 3
    assert "runtime.wait(seconds=9" in code
    assert "runtime.done" not in code


def test_what_was_answered_is_not_answered_again() -> None:
    first = user(said_by("a", "hello"))
    assert answer(read([first, CALL, OK])).code is None
    assert "count" in code_for(first, CALL, OK, user(said_by("a", "count to 2")))
    assert GREETING not in code_for(first, CALL, OK, user(said_by("a", "count to 2")))


def test_an_interrupted_cell_is_begun_again_unless_it_had_spoken() -> None:
    asked = user(said_by("a", "count to 9"))
    crash = "[error] the service crashed; the code may have run, in part or whole; known: it sent "
    again = answer(read([asked, CALL, tool(crash + "nothing"), user("[note: broken off]")]))
    assert again.code is not None
    assert "broken off" in again.text
    assert answer(read([asked, CALL, tool(crash + '"I \\"counted\\""')])).code is None


def test_an_error_is_told_once() -> None:
    asked = user(said_by("a", "what is 1/0"))
    failed = tool("[error] ZeroDivisionError: division by zero")
    assert "That did not work" in code_for(asked, CALL, failed)
    assert answer(read([asked, CALL, failed, CALL, failed])).code is None


# Over HTTP


async def test_it_streams_to_our_own_client() -> None:
    shown: list[tuple[str, str]] = []
    async with open_demo_provider() as server:
        llm = LlmClient(ModelsConfig(ModelConfig(server.url, "demo", server.key)))
        reply = await llm.complete(
            ModelRequest((User(said_by("cli", "hello")),)),
            on_delta=lambda lane, delta: shown.append((lane, delta)),
            on_discard=shown.clear,
        )
    assert {lane for lane, _ in shown} == {"reasoning", "scratchpad"}
    assert len(shown) > 5
    [call] = reply.calls
    assert GREETING in (call.code or "")


@pytest.mark.parametrize(
    ("method", "path", "key", "body", "status"),
    [
        ("POST", "/v1/chat/completions", "wrong", b"{}", 401),
        ("GET", "/v1/models", None, b"", 404),
        ("POST", "/v1/chat/completions", None, b"{", 400),
        ("POST", "/v1/chat/completions", None, b"[]", 400),
        ("POST", "/v1/chat/completions", None, b'{"messages": [1]}', 400),
        ("POST", "/v1/chat/completions", None, b'{"messages": [{"role": 3, "content": 4}]}', 200),
    ],
)
async def test_what_is_no_request_is_refused_and_it_lives_on(
    method: str, path: str, key: str | None, body: bytes, status: int
) -> None:
    async with open_demo_provider() as server:
        url = server.url.removesuffix("/v1")
        headers = {"authorization": f"Bearer {key or server.key}"}
        async with httpx.AsyncClient(trust_env=False) as http:
            for _ in range(2):
                response = await http.request(method, url + path, content=body, headers=headers)
                assert response.status_code == status
