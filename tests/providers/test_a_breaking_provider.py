"""The service against `llmock`: every fault that it knows, and its own verdict on the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
from providers_house import Story, config, open_house

from klbr_trio import ModelsConfig

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("llmock")]

END: Final = "from klbr import local, runtime\nawait local.send('over')\nawait runtime.done()"
ANSWER: Final[dict[str, object]] = {
    "type": "reply",
    "text": "Let me see.",
    "tool_calls": [{"name": "python", "arguments": {"code": END}}],
    "times": None,
}


def fail(status: int, **more: object) -> dict[str, object]:
    return {"type": "fail", "status": status, **more}


def broken(kind: str, **more: object) -> dict[str, object]:
    return {"type": "stream_fault", "kind": kind, **more}


PASSES: Final[dict[str, list[dict[str, object]]]] = {
    "nothing": [],
    "limited": [fail(429, retry_after=0.4, times=2)],
    "overloaded": [fail(503), fail(500), fail(502)],
    "limited and then down": [fail(429, retry_after=0.2), fail(503)],
    "disconnected": [broken("disconnect", after_chunks=1)],
    "disconnected in the call": [broken("disconnect", after_chunks=3)],
    "truncated": [broken("truncate", after_chunks=1)],
    "truncated in the call": [broken("truncate", after_chunks=3)],
    "malformed": [broken("malformed", after_chunks=1)],
    "stalled": [broken("stall", after_chunks=1, stall_seconds=30)],
    "one after the other": [broken("truncate"), broken("disconnect"), fail(503)],
    "slow to begin": [{"type": "slow_first_token", "seconds": 0.5}],
    "late": [{"type": "delay", "seconds": 0.5}],
}
BAD_CALLS: Final = {"malformed_arguments": "json", "unknown_tool": "python"}
REFUSALS: Final = {400: "provider_refused", 401: "provider_refused", 403: "provider_refused"}


async def play(
    url: str, folder: Path, *behaviours: dict[str, object], stall_s: float = 20.0
) -> tuple[Story, Any]:
    """What becomes of an input when the provider behaves so, and its verdict."""
    async with httpx.AsyncClient(trust_env=False, base_url=url) as admin:
        await admin.post("/_llmock/reset")
        sent = await admin.post("/_llmock/scenario", json={"behaviors": behaviours})
        assert sent.is_success, sent.text
        async with open_house(folder, ModelsConfig(config(f"{url}/v1", stall_s=stall_s))) as house:
            story = await house.tell()
        verdict = (await admin.get("/_llmock/verdict")).json()
    assert verdict["calls"], "it has seen nothing"
    return story, verdict


@pytest.mark.parametrize("name", PASSES)
async def test_a_fault_that_passes_is_outlived(name: str, llmock_url: str, tmp_path: Path) -> None:
    stall_s = 3.0 if name == "stalled" else 20.0
    story, verdict = await play(llmock_url, tmp_path, *PASSES[name], ANSWER, stall_s=stall_s)
    assert story.failures == []
    assert (story.codes, story.said) == ([END], ["over"])
    assert story.scratchpad == ["Let me see."]
    assert list(story.live("scratchpad").values()) == ["Let me see."]
    assert verdict["findings"] == []


@pytest.mark.parametrize("kind", BAD_CALLS)
async def test_a_bad_call_is_told_to_the_model(kind: str, llmock_url: str, tmp_path: Path) -> None:
    bad: dict[str, object] = {"type": "tool_fault", "kind": kind}
    story, verdict = await play(llmock_url, tmp_path, bad, ANSWER)
    assert story.failures == []
    assert (story.codes, story.said) == ([END], ["over"])
    assert BAD_CALLS[kind] in story.refusals[0].lower()
    assert verdict["findings"] == []


@pytest.mark.parametrize("status", REFUSALS)
async def test_a_refusal_is_not_asked_again(status: int, llmock_url: str, tmp_path: Path) -> None:
    no = fail(status, message="no, says the provider", times=None)
    story, verdict = await play(llmock_url, tmp_path, no)
    assert [each["code"] for each in story.failures] == [REFUSALS[status]] * 2
    assert "no, says the provider" in story.failures[0]["message"]
    assert [each["code"] for each in verdict["findings"]] == []


async def test_an_outage_ends_and_says_so(llmock_url: str, tmp_path: Path) -> None:
    story, verdict = await play(llmock_url, tmp_path, fail(503, times=None))
    assert [each["code"] for each in story.failures] == ["provider_unavailable"] * 2
    assert story.failures[0]["retryable"]
    assert [each["severity"] for each in verdict["findings"]] == []
