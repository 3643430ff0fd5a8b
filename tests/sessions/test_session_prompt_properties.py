"""Whatever the history: what the model is sent is whole, in order, and accepted."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fakes.strictness import objections
from histories import SID, History, moves, open_history
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from klbr_trio.models import (
    Assistant,
    ModelConfig,
    ModelRequest,
    System,
    ToolResult,
    User,
)
from klbr_trio.models.request.body import encode, request_fields
from klbr_trio.sessions.prompt import Persona, Window, build, length
from klbr_trio.store import check
from klbr_trio.wire.records import decode_event

if TYPE_CHECKING:
    from klbr_trio.domain.events import Event
    from klbr_trio.models import Message

PERSONA = Persona("Be brief.", "You are kind.")
CONFIG = ModelConfig("http://p/v1", "m")
ALL = 1_000_000


def whole(messages: tuple[Message, ...]) -> None:
    """The messages are what every provider takes."""
    assert isinstance(messages[0], System)
    assert isinstance(messages[1], User)
    assert isinstance(messages[-1], User | ToolResult)
    owed: list[str] = []
    for before, message in itertools.pairwise(messages):
        if isinstance(message, ToolResult):
            assert owed, "a result without its call"
            assert message.provider_id == owed.pop(0)
            assert message.text
            continue
        assert not owed, "a call without its result"
        assert not isinstance(message, System)
        assert not (isinstance(message, User) and isinstance(before, User))
        if isinstance(message, Assistant):
            owed = [call.provider_id for call in message.calls]
            assert message.text or message.calls
    assert not owed


def accepted(messages: tuple[Message, ...]) -> None:
    """The body that goes out has the same messages, none mended on the way."""
    body: dict[str, Any] = json.loads(encode(request_fields(ModelRequest(messages), CONFIG)))
    roles = {System: "system", User: "user", Assistant: "assistant", ToolResult: "tool"}
    assert objections(body) == []
    assert [one["role"] for one in body["messages"]] == [roles[type(one)] for one in messages]
    for sent, message in zip(body["messages"], messages, strict=True):
        if isinstance(message, ToolResult):
            assert sent["tool_call_id"] == message.provider_id
            assert sent["content"] == message.text
        for call in sent.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)


def log(history: History) -> list[Event]:
    return [
        decode_event(row.seq, row.session_id, row.kind, row.payload, row.created_ms)
        for row in history.store.event_rows(SID, 0, 100_000)
    ]


def complete(history: History, messages: tuple[Message, ...]) -> None:
    """Everything above the fold is there that the model must know, once."""
    events = log(history)
    fold = history.store.frontier(SID)
    assert history.turn is not None
    floor = 0 if fold is None else min(fold.drained_through_seq, history.turn.started_seq - 1)
    above = [one for one in events if one.seq > floor]
    text = "\n".join(one.text for one in messages if isinstance(one, User))
    inputs = {
        one.payload["work_item_id"]: one.payload["text"].split(">>")[0] + ">>"
        for one in events
        if one.kind == "input.admitted"
    }
    named = {
        item for one in above if one.kind == "turn.started" for item in one.payload["work_items"]
    }
    for item_id, words in inputs.items():
        assert text.count(words) == (item_id in named), f"{item_id} is shown {text.count(words)}x"

    def count(kind: str) -> int:
        return sum(one.kind == kind for one in above)

    assert text.count("the turn above failed (") == count("turn.failed")
    assert text.count("the turn above was broken off:") == count("turn.interrupted")
    assert text.count("the operator stopped the session, and later reopened it") == count(
        "session.reopened"
    )
    assert text.count("your Python kernel is a fresh one") == count("kernel.reset")
    wakes = [
        cause
        for one in above
        if one.kind == "turn.started"
        for cause in one.payload["causes"]
        if cause["type"] == "deadline_wake"
    ]
    assert text.count("you are awake: the wake time you set") == len(wakes)
    assert text.count("[note: noted ") == sum(
        one.kind == "scratchpad" and "attempt_id" not in one.payload for one in above
    )
    assert (
        (f"summary of everything up to record {fold.drained_through_seq}]" in text)
        if fold
        else ("summary of everything" not in text)
    )
    replies = count("reply.received")
    assert sum(isinstance(one, Assistant) for one in messages) == replies


async def prompt(
    history: History, budget_chars: int, *, fit: int | None = None
) -> tuple[Message, ...]:
    """The prompt of the open attempt, made twice: it is a pure function of the log."""
    assert history.turn is not None
    found = []
    for _ in range(2):
        window = await Window.read(
            history.store, SID, budget_chars=budget_chars, started_seq=history.turn.started_seq
        )
        attempt_id = history.turn.attempt_id
        found.append(
            build(window, PERSONA, budget_chars=fit or budget_chars, attempt_id=attempt_id)
        )
    assert found[0] == found[1]
    return found[0]


SETTINGS = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow],
)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Many small stores, of which nothing has to survive: in memory where that is possible."""


@SETTINGS
@given(moves)
async def test_every_history_makes_a_whole_prompt(made: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        async with open_history(Path(folder)) as history:
            for name, number in made:
                await history.move(name, number)
                if history.turn is not None and not history.calls:
                    messages = await prompt(history, ALL)
                    whole(messages)
                    accepted(messages)
                    complete(history, messages)
            assert await check(history.store) == []


@SETTINGS
@given(moves, st.integers(2_000, 12_000))
async def test_every_history_fits_every_budget(made: list[tuple[str, int]], budget: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        async with open_history(Path(folder), size=1_000) as history:
            for name, number in made:
                # Larger numbers, for longer texts.
                await history.move(name, number * (17 if name in ("admit", "reply") else 1))
                if history.turn is not None and not history.calls:
                    messages = await prompt(history, budget)
                    whole(messages)
                    accepted(messages)
                    least = length(await prompt(history, budget, fit=1))
                    assert length(messages) <= max(budget, least)
