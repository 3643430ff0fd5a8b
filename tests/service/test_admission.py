"""Inputs over the socket: stored before they are acknowledged, once, and refused in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fakes.provider import open_provider, text_reply
from service_house import Caller, model_at, open_service

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = "stored but nothing will answer it"


async def refusal_behind(caller: Caller) -> None:
    refusal = await caller.hear()
    assert (refusal["type"], refusal["code"]) == ("error", "no_model_configured")
    assert NOBODY in refusal["message"]


async def test_an_input_is_stored_when_its_ack_comes(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        ack = await caller.input("s", "good morning", client_request_id="first")
        assert ack == {
            "type": "ack",
            "session_id": "s",
            "seq": 1,
            "client_request_id": "first",
            "duplicate": False,
        }
        assert await service.store.pending("s", 10) == [1]
        [event] = await service.store.history("s", 0, 10)
        assert event.kind == "input.admitted"
        assert event.payload == {
            "source": "tests",
            "text": "good morning",
            "client_request_id": "first",
            "work_item_id": "work-input-1",
        }


async def test_without_a_model_every_ack_is_followed_by_a_refusal(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        ack = await caller.input("s", "one", client_request_id="k", request_id="r1")
        assert (ack["type"], ack["duplicate"], ack["request_id"]) == ("ack", False, "r1")
        refusal = await caller.hear()
        assert refusal.pop("message").startswith("no model is configured")
        assert refusal == {
            "type": "error",
            "code": "no_model_configured",
            "session_id": "s",
            "client_request_id": "k",
            "request_id": "r1",
        }
        again = await caller.input("s", "one", client_request_id="k")
        assert (again["seq"], again["duplicate"]) == (1, True)
        await refusal_behind(caller)
        assert await service.store.pending("s", 10) == [1]
        assert await caller.ask("ping") == {"type": "pong"}


async def test_a_duplicate_of_an_ended_input_is_not_refused(tmp_path: Path) -> None:
    async with open_provider([text_reply("well")]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as caller:
                await caller.replay("subscribe", "s")
                assert (await caller.input("s", "one", client_request_id="k"))["type"] == "ack"
                await caller.hear_event("turn.completed")
    async with open_service(tmp_path) as service, service.caller() as caller:
        again = await caller.input("s", "one", client_request_id="k")
        assert (again["type"], again["seq"], again["duplicate"]) == ("ack", 1, True)
        assert await caller.ask("ping") == {"type": "pong"}, "nothing waits, nothing is refused"


async def test_what_was_stored_without_a_model_is_answered_by_the_next_service(
    tmp_path: Path,
) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await caller.input("s", "anybody there?")
        await refusal_behind(caller)
    async with open_provider([text_reply("I am")]) as provider:
        async with open_service(tmp_path, llm=model_at(provider.url)) as service:
            async with service.caller() as caller:
                replay = await caller.replay("subscribe", "s")
                done = {record["kind"] for record in replay.records}
                if "turn.completed" not in done:
                    await caller.hear_event("turn.completed")
                assert await service.store.pending("s", 10) == []


async def test_the_same_key_is_one_input_for_ever(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        first = await caller.input("s", "once", client_request_id="k")
        await refusal_behind(caller)
        assert first["seq"] == 1
        for _ in range(2):
            again = await caller.input("s", "once", client_request_id="k")
            assert (again["type"], again["seq"], again["duplicate"]) == ("ack", 1, True)
            await refusal_behind(caller)
    async with open_service(tmp_path) as service, service.caller() as caller:
        again = await caller.input("s", "once", client_request_id="k")
        assert (again["seq"], again["duplicate"]) == (1, True)
        await refusal_behind(caller)
        other = await caller.input("s", "twice", client_request_id="k", source="another")
        assert (other["seq"], other["duplicate"]) == (2, False), "the source is part of the key"
        assert len(await service.store.history("s", 0, 10)) == 2


async def test_inputs_without_a_key_are_always_new(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        for seq in (1, 2):
            ack = await caller.input("s", "again", client_request_id=None)
            assert (ack["seq"], ack["duplicate"]) == (seq, False)
            assert "client_request_id" not in ack
            await refusal_behind(caller)
        assert await service.store.pending("s", 10) == [1, 2]


async def test_another_text_under_the_same_key_is_a_conflict(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await caller.input("s", "alpha", client_request_id="k")
        await refusal_behind(caller)
        refused = await caller.input("s", "beta", client_request_id="k", request_id="r")
        assert (refused["type"], refused["code"]) == ("error", "conflict")
        assert "source key reused with different content" in refused["message"]
        assert (refused["session_id"], refused["client_request_id"]) == ("s", "k")
        assert refused["request_id"] == "r"
        assert len(await service.store.history("s", 0, 10)) == 1
        assert await caller.ask("ping") == {"type": "pong"}, "a conflict is not followed by more"


async def test_a_stopped_session_takes_nothing_new(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await caller.input("s", "before", client_request_id="k")
        await refusal_behind(caller)
        assert (await caller.ask("stop", session_id="s"))["success"] is True
        before = await service.store.history("s", 0, 10)
        refused = await caller.input("s", "after", client_request_id="new")
        assert (refused["type"], refused["code"]) == ("error", "admission_rejected")
        assert "cannot admit input" in refused["message"]
        assert (refused["session_id"], refused["client_request_id"]) == ("s", "new")
        assert await service.store.history("s", 0, 10) == before
        again = await caller.input("s", "before", client_request_id="k")
        assert (again["seq"], again["duplicate"]) == (1, True), "the key is looked up first"
        await refusal_behind(caller)
        conflict = await caller.input("s", "else", client_request_id="k")
        assert conflict["code"] == "conflict", "also before the state"


async def test_a_session_that_was_opened_and_stopped_stays_empty(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.registry.get_or_open("s", None)
        await service.registry.stop("s")
        refused = await caller.input("s")
        assert refused["code"] == "admission_rejected"
        assert await service.store.pending("s", 10) == []
        assert [event.kind for event in await service.store.history("s", 0, 10)] == [
            "session.stopped"
        ]


async def test_inputs_sent_in_a_row_are_acknowledged_in_a_row(tmp_path: Path) -> None:
    """More than a step takes, to one session, with duplicates and a conflict among them."""
    async with open_service(tmp_path) as service, service.caller() as caller:
        await caller.replay("subscribe", "s")
        for number in range(100):
            key = f"k{number - number % 10 if number % 10 in {3, 4} else number}"
            text = "other" if number % 10 == 4 else key
            await caller.say(
                "send_input",
                session_id="s",
                source="tests",
                text=text,
                client_request_id=key,
                request_id=str(number),
            )
        answers, events, acked = await acks_and_events(caller, 100)
        assert [answer["request_id"] for answer in answers] == [str(n) for n in range(100)]
        assert [answer["type"] == "error" for answer in answers] == [
            n % 10 == 4 for n in range(100)
        ]
        assert [answer.get("duplicate") for answer in answers[:5]] == [
            False, False, False, True, None,
        ]  # fmt: skip
        assert events == sorted(acked)
        assert await service.store.pending("s", 200) == sorted(acked)


async def acks_and_events(
    caller: Caller, count: int
) -> tuple[list[dict[str, object]], list[int], set[int]]:
    """Answers and events of inputs; each new one's ack came before its event."""
    answers: list[dict[str, object]] = []
    events: list[int] = []
    acked: set[int] = set()
    while len(answers) < count or len(events) < len(acked):
        message = await caller.hear()
        if message["type"] == "event":
            assert message["record"]["seq"] in acked, "an event overtook its ack"
            events.append(message["record"]["seq"])
        elif message["type"] == "ack":
            acked.add(message["seq"])
            answers.append(message)
        elif message["code"] == "no_model_configured":
            assert message["request_id"] == answers[-1]["request_id"], "right behind its ack"
        else:
            answers.append(message)
    return answers, events, acked


async def test_inputs_to_many_sessions_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        for number in range(60):
            await caller.say(
                "send_input",
                session_id=f"s{number % 6}",
                source="tests",
                text=str(number),
                request_id=str(number),
            )
        acks = [m for m in [await caller.hear() for _ in range(120)] if m["type"] == "ack"]
        assert len(acks) == 60
        for session in range(6):
            mine = [ack for ack in acks if ack["session_id"] == f"s{session}"]
            assert [ack["seq"] for ack in mine] == list(range(1, 11))
            assert [int(ack["request_id"]) for ack in mine] == list(range(session, 60, 6))
        assert len(await service.store.all_pending_work_items()) == 60
