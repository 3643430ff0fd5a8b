"""`/metrics`: what has happened and what is held, in numbers that agree with the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from prometheus_client.parser import text_string_to_metric_families
from service_house import CEILING, ROOT, Service, open_service, until

from klbr_trio.domain.events import ReplyReceived, TurnCompleted, TurnFailed, TurnInterrupted
from klbr_trio.service.figures import Figures
from klbr_trio.store import Written

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "t" * 32
Numbers = dict[tuple[str, tuple[str, ...]], float]


def numbers(text: str) -> Numbers:
    """Every sample by name and label values; what is no valid text of that format fails here."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(service: Service) -> Numbers:
    status, body = await service.get("/metrics", token=TOKEN)
    assert status == 200
    return numbers(body)


def only(found: Numbers, name: str, *labels: str) -> float:
    return found[name, labels]


async def test_what_happens_is_counted_once(tmp_path: Path) -> None:
    async with open_service(tmp_path, auth=TOKEN) as service, service.caller(TOKEN) as caller:
        with trio.fail_after(CEILING):
            await service.registry.recovered.wait()
        assert (await caller.ask("ping"))["type"] == "pong", "it is being served by now"
        before = await scrape(service)
        assert only(before, "klbr_ready") == 1
        assert only(before, "klbr_store_writable") == 1
        assert only(before, "klbr_clients") == 1
        assert only(before, "klbr_sessions", "ready") == 0
        for key in ("a", "b", "b"):
            assert (await caller.input("s", client_request_id=key))["type"] == "ack"
            assert (await caller.hear())["code"] == "no_model_configured"
        assert (await caller.input("s", "another", client_request_id="b"))["code"] == "conflict"
        await caller.replay("subscribe", "s")
        await caller.replay("subscribe", "s")
        await caller.replay("subscribe", "t")
        found = await scrape(service)
        assert only(found, "klbr_inputs_admitted_total") == 2
        assert only(found, "klbr_inputs_acknowledged_total") == 3
        assert only(found, "klbr_admission_seconds_count") == 3
        assert only(found, "klbr_followers") == 2
        assert only(found, "klbr_sessions", "ready") == 1
        commits = only(found, "klbr_commit_seconds_count") - only(
            before, "klbr_commit_seconds_count"
        )
        assert commits == 2
        await caller.say("unsubscribe", session_id="t")
        assert (await caller.hear_type("operator_ack"))["success"]
        assert only(await scrape(service), "klbr_followers") == 1


async def test_who_has_gone_follows_nothing(tmp_path: Path) -> None:
    async with open_service(tmp_path, auth=TOKEN) as service:
        async with service.caller(TOKEN) as caller:
            await caller.replay("subscribe", "s")
        with trio.fail_after(CEILING):
            while only(found := await scrape(service), "klbr_clients"):
                pass
        assert only(found, "klbr_followers") == 0


async def test_lateness_of_a_wake_is_what_its_event_says(tmp_path: Path) -> None:
    async with open_service(tmp_path, auth=TOKEN) as service:
        entry = await service.registry.get_or_open("s", None)
        await entry.transition_to_waiting(None, 1, "long ago")
        await until(lambda: service.store.head("s") == 2, store=service.store, session_id="s")
        [_, woken] = await service.store.history("s", 0, 10)
        assert woken.kind == "session.woken"
        found = await scrape(service)
        assert only(found, "klbr_wake_lateness_seconds_count") == 1
        assert only(found, "klbr_wake_lateness_seconds_sum") == woken.payload["late_ms"] / 1000


async def test_wrong_tokens_are_counted(tmp_path: Path) -> None:
    async with open_service(tmp_path, auth=TOKEN) as service:
        for _ in range(3):
            assert (await service.get("/metrics", token="wrong"))[0] == 401
        assert only(await scrape(service), "klbr_wrong_tokens_total") == 3


async def test_every_figure_is_in_the_protocol(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    async with open_service(tmp_path, auth=TOKEN) as service:
        _, body = await service.get("/metrics", token=TOKEN)
    for family in text_string_to_metric_families(body):
        if family.name.startswith("klbr_") and not family.name.endswith("_created"):
            total = "_total" if family.type == "counter" else ""
            assert f"`{family.name}{total}" in page, family.name


def test_ends_of_turns_failures_and_tokens() -> None:
    figures = Figures()
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "x" * 99: 1e9}
    bodies = (
        ReplyReceived("a", 1, "m", "stop", usage, None),
        ReplyReceived("a", 2, "m", "stop", {"prompt_tokens": -4, "completion_tokens": "3"}, None),
        TurnCompleted("a", "replied", None),
        TurnFailed("turn_failed", "b", "bound_time", "too long", retryable=True),
        TurnFailed("turn_failed", "c", "bound_time", "too long", retryable=True),
        TurnInterrupted("d", "stopped", ()),
    )
    figures.written(Written(0.003, bodies))
    found = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in figures.registry.collect()
        for sample in family.samples
    }
    assert only(found, "klbr_turns_total", "completed") == 1
    assert only(found, "klbr_turns_total", "failed") == 2
    assert only(found, "klbr_turns_total", "interrupted") == 1
    assert only(found, "klbr_turn_failures_total", "bound_time") == 2
    assert only(found, "klbr_tokens_total", "prompt") == 7
    assert only(found, "klbr_tokens_total", "completion") == 2
    assert only(found, "klbr_commit_seconds_bucket", "0.005") == 1
    assert only(found, "klbr_commit_seconds_bucket", "0.002") == 0
    assert not any("x" * 99 in labels for _, labels in found)


async def test_what_is_refused_by_the_store_counts_nothing(tmp_path: Path) -> None:
    async with open_service(tmp_path, auth=TOKEN) as service, service.caller(TOKEN) as caller:
        await service.store.ensure_session("s")
        await caller.ask("stop", session_id="s")
        with trio.fail_after(CEILING):
            await service.registry.recovered.wait()
        before = await scrape(service)
        assert only(before, "klbr_sessions", "stopped") == 1
        assert (await caller.input("s"))["code"] == "admission_rejected"
        found = await scrape(service)
        for name in ("klbr_inputs_admitted_total", "klbr_commit_seconds_count"):
            assert only(found, name) == only(before, name)
