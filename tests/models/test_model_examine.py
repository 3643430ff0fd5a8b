from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from fakes.provider import (
    Request,
    Scripted,
    call_reply,
    hang,
    open_provider,
    refuse,
    refused_url,
    text_reply,
)

from klbr_trio.models import Finding, ModelConfig, examine

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTED = text_reply("1 2 3 4 5 6 7 8 9 10 11 12")


def listing(*names: str) -> Scripted:
    body = json.dumps({"object": "list", "data": [{"id": name} for name in names]})
    return Scripted((body.encode(),), headers={"content-type": "application/json"})


def provider(
    *,
    models: Scripted | None = None,
    count: Scripted = COUNTED,
    call: Scripted | None = None,
    at: str = "/v1/",
) -> Callable[[Request], Scripted]:
    """A provider whose API is at one place only."""

    def answer(request: Request) -> Scripted:
        if not request.path.startswith(at) or request.path.startswith(at + "v1/"):
            return refuse(404, "404 page not found")
        if request.method == "GET":
            return models or listing("a-model", "b-model")
        return (call or call_reply("print(6 * 7)")) if "tools" in request.body else count

    return answer


def levels(findings: tuple[Finding, ...]) -> dict[str, str]:
    return {finding.check: finding.level for finding in findings}


def of(findings: tuple[Finding, ...], check: str) -> Finding:
    return next(finding for finding in findings if finding.check == check)


async def test_all_is_well() -> None:
    async with open_provider([provider()]) as found:
        for url in (found.url, found.origin):
            findings = await examine(ModelConfig(url, "a-model", "a-key"))
            assert levels(findings) == dict.fromkeys(
                ("key", "model", "address", "stream", "tool"), "ok"
            )
            assert all(not finding.fix for finding in findings)


async def test_nobody_is_there() -> None:
    with refused_url() as url:
        (finding,) = await examine(ModelConfig(url, "m"))
    assert (finding.level, finding.check) == ("fail", "address")
    assert "connection refused" in finding.text
    assert finding.fix


@pytest.mark.parametrize(("at", "given", "right"), [("/", "/v1", ""), ("/api/v1/", "/v1", None)])
async def test_the_base_is_another(at: str, given: str, right: str | None) -> None:
    async with open_provider([provider(at=at)]) as found:
        findings = await examine(ModelConfig(found.origin + given, "a-model"))
        finding = of(findings, "address")
        assert finding.level == "fail"
        if right is not None:
            assert f"{found.origin}{right}" in finding.fix
        else:
            assert "404" in finding.text


async def test_the_key_is_refused_and_not_shown() -> None:
    refused = refuse(401, {"error": {"message": "key s3cret-key is bad"}})
    async with open_provider([provider(models=refused)]) as found:
        findings = await examine(ModelConfig(found.url, "m", "s3cret-key"))
    assert levels(findings) == {"key": "fail"}
    assert "is bad" in findings[0].text
    assert "s3cret" not in findings[0].text


async def test_the_model_is_not_there() -> None:
    missing = refuse(404, {"error": {"message": "no model a-modle"}})
    async with open_provider([provider(count=missing)]) as found:
        findings = await examine(ModelConfig(found.url, "a-modle"))
    assert levels(findings) == {"key": "ok", "model": "warn", "stream": "fail"}
    assert "it lists a-model" in of(findings, "model").text
    assert "no model a-modle" in of(findings, "stream").text


async def test_no_list_is_no_failure() -> None:
    async with open_provider([provider(models=refuse(404, "nope"))]) as found:
        findings = await examine(ModelConfig(found.url, "a-model"))
    assert levels(findings) == {
        "key": "warn", "model": "warn", "address": "ok", "stream": "ok", "tool": "ok",
    }  # fmt: skip


async def test_an_answer_in_one_piece() -> None:
    whole = {"choices": [{"message": {"content": "1 2 3"}, "finish_reason": "stop"}]}
    plain = Scripted((json.dumps(whole).encode(),), headers={"content-type": "application/json"})
    async with open_provider([provider(count=plain)]) as found:
        findings = await examine(ModelConfig(found.url, "a-model"))
    assert of(findings, "stream").level == "warn"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (text_reply("print(6 * 7)"), "wrote text instead"),
        (call_reply("x", name="bash"), "could not be read"),
        (refuse(400, {"error": {"message": "no tools here"}}), "no tools here"),
    ],
)
async def test_the_tool_is_not_called(call: Scripted, words: str) -> None:
    async with open_provider([provider(call=call)]) as found:
        findings = await examine(ModelConfig(found.url, "a-model"))
    finding = of(findings, "tool")
    assert finding.level == "fail"
    assert words in finding.text
    assert finding.fix


async def test_a_field_that_is_refused_does_not_spoil_the_questions() -> None:
    def answer(request: Request) -> Scripted:
        if request.method == "POST" and "stream_options" in request.body:
            return refuse(400, {"error": {"message": "unknown field stream_options"}})
        return provider()(request)

    async with open_provider([answer]) as found:
        findings = await examine(ModelConfig(found.url, "a-model"))
    assert set(levels(findings).values()) == {"ok"}


async def test_silence_is_a_finding() -> None:
    async with open_provider([provider(count=hang())]) as found:
        findings = await examine(ModelConfig(found.url, "a-model", first_token_s=0.1))
    assert "silent" in of(findings, "stream").text
