"""What each message may hold, what it is answered with, and what a wrong one is told."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import trio_websocket
from service_house import Caller, open_service

if TYPE_CHECKING:
    from pathlib import Path

GOOD: dict[str, dict[str, Any]] = {
    "send_input": {"session_id": "s", "source": "tests", "text": "hello"},
    "subscribe": {"session_id": "s"},
    "unsubscribe": {"session_id": "s"},
    "history": {"session_id": "s", "before_seq": 1, "limit": 1},
    "session_status": {"session_id": "s"},
    "list_sessions": {},
    "stop": {"session_id": "s"},
    "reset_kernel": {"session_id": "s"},
    "ping": {},
}

ANSWERS: dict[str, list[str]] = {
    "send_input": ["ack", "error"],
    "subscribe": ["sync_started", "sync_completed"],
    "unsubscribe": ["operator_ack"],
    "history": ["sync_started", "sync_completed"],
    "session_status": ["session_status"],
    "list_sessions": ["session_list"],
    "stop": ["operator_ack"],
    "reset_kernel": ["operator_ack"],
    "ping": ["pong"],
}

TEXT_BYTES = 256 * 1024


async def all_of(caller: Caller, count: int) -> list[dict[str, Any]]:
    return [await caller.hear() for _ in range(count)]


@pytest.mark.parametrize("kind", sorted(GOOD))
async def test_every_answer_carries_the_request_id(tmp_path: Path, kind: str) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.store.ensure_session("s")
        await caller.say(kind, **GOOD[kind], request_id="r-1")
        answers = await all_of(caller, len(ANSWERS[kind]))
        assert [answer["type"] for answer in answers] == ANSWERS[kind]
        assert all(answer["request_id"] == "r-1" for answer in answers)
        await caller.say(kind, **GOOD[kind])
        again = await all_of(caller, len([a for a in answers if a["type"] != "event"]))
        assert all("request_id" not in answer for answer in again), "what was not sent is not said"


async def test_events_carry_no_request_id(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.notes("s", 2)
        await caller.say("subscribe", session_id="s", request_id="r")
        await service.notes("s", 1)
        heard = await all_of(caller, 5)
        assert [message["type"] for message in heard] == [
            "sync_started",
            "event",
            "event",
            "sync_completed",
            "event",
        ]
        for message in heard:
            assert ("request_id" in message) == (message["type"] != "event")
        record = heard[1]["record"]
        assert sorted(record) == ["created_ms", "kind", "payload", "seq", "session_id"]
        assert (record["seq"], record["session_id"], record["kind"]) == (1, "s", "scratchpad")
        assert record["payload"] == {"text": "note 0"}


@pytest.mark.parametrize("kind", sorted(GOOD))
async def test_null_is_absent_and_unknown_fields_give_nothing(tmp_path: Path, kind: str) -> None:
    optional = {
        "send_input": ["client_request_id"],
        "subscribe": ["after_seq", "limit"],
        "list_sessions": ["after", "limit"],
        "ping": ["timestamp"],
    }
    nothing = dict.fromkeys([*optional.get(kind, []), "request_id"])
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.store.ensure_session("s")
        await caller.say(kind, **GOOD[kind], **nothing, role="admin", scopes=["*"], record={"a": 1})
        answers = await all_of(caller, len(ANSWERS[kind]))
        assert [answer["type"] for answer in answers] == ANSWERS[kind]
        assert not any({"role", "scopes", "record", "request_id"} & set(a) for a in answers)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("send_input", {"source": 5}, "source"),
    ("send_input", {"source": ""}, "source"),
    ("send_input", {"source": "x" * 129}, "source"),
    ("send_input", {"source": "a\nb"}, "source"),
    ("send_input", {"source": "a\x00b"}, "source"),
    ("send_input", {"source": None}, "source"),
    ("send_input", {"text": ""}, "text"),
    ("send_input", {"text": None}, "text"),
    ("send_input", {"text": ["hello"]}, "text"),
    ("send_input", {"text": "\ud800"}, "text"),
    ("send_input", {"client_request_id": 7}, "client_request_id"),
    ("send_input", {"client_request_id": "k" * 129}, "client_request_id"),
    ("send_input", {"client_request_id": "k\x7f"}, "client_request_id"),
    ("send_input", {"session_id": 5}, "session_id"),
    ("send_input", {"session_id": None}, "session_id"),
    ("subscribe", {"after_seq": -1}, "after_seq"),
    ("subscribe", {"after_seq": "0"}, "after_seq"),
    ("subscribe", {"after_seq": 1.0}, "after_seq"),
    ("subscribe", {"after_seq": True}, "after_seq"),
    ("subscribe", {"after_seq": 2**53 + 1}, "after_seq"),
    ("subscribe", {"limit": -1}, "limit"),
    ("subscribe", {"limit": "10"}, "limit"),
    ("history", {"before_seq": 0}, "before_seq"),
    ("history", {"before_seq": -5}, "before_seq"),
    ("history", {"before_seq": None}, "before_seq"),
    ("history", {"limit": 0}, "limit"),
    ("history", {"limit": None}, "limit"),
    ("history", {"limit": 2.5}, "limit"),
    ("list_sessions", {"limit": 0}, "limit"),
    ("list_sessions", {"limit": "all"}, "limit"),
    ("list_sessions", {"after": 5}, "after"),
    ("ping", {"timestamp": "now"}, "timestamp"),
    ("ping", {"timestamp": 2**53 + 1}, "timestamp"),
    ("ping", {"timestamp": 1.5}, "timestamp"),
    ("ping", {"request_id": 5}, "request_id"),
    ("ping", {"request_id": "r" * 129}, "request_id"),
    ("ping", {"request_id": "r\x1b"}, "request_id"),
    ("stop", {"session_id": None}, "session_id"),
    ("session_status", {"session_id": {}}, "session_id"),
]


async def test_a_wrong_field_is_named_and_changes_nothing(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        for kind, wrong, field in WRONG:
            fields = {"request_id": "r", "client_request_id": "k", **GOOD[kind], **wrong}
            answer = await caller.ask(kind, **fields)
            case = f"{kind} {wrong} gave {answer}"
            assert (answer["type"], answer["code"]) == ("error", "bad_request"), case
            assert field in answer["message"], case
            assert answer.get("request_id") == ("r" if "request_id" not in wrong else None), case
            if "session_id" in GOOD[kind] and "session_id" not in wrong:
                assert answer["session_id"] == "s", case
            if "client_request_id" not in wrong:
                assert answer["client_request_id"] == "k", case
        assert service.store.row("s") is None
        assert await caller.ask("ping", timestamp=1) == {"type": "pong", "timestamp": 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "hello",
        "[]",
        "5",
        "null",
        '"ping"',
        '{"type":"ping","timestamp":NaN}',
        '{"type":"ping","timestamp":1e999}',
        '{"type":"ping","timestamp":' + "9" * 5000 + "}",
        "[" * 100_000,
        '{"type":"ping","x":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"type":"shrug"}',
        '{"type":5}',
        '{"type":null}',
        '{"session_id":"s"}',
        '{"type":"event","record":{}}',
        '{"type":"ack","session_id":"s","seq":1}',
    ],
    ids=range(18),
)
async def test_what_is_no_message_is_a_bad_request(tmp_path: Path, text: str) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await caller.say_text(text)
        answer = await caller.hear()
        assert (answer["type"], answer["code"]) == ("error", "bad_request")
        assert len(answer["message"].encode()) <= 4096
        assert await caller.ask("ping") == {"type": "pong"}


async def test_an_unknown_type_is_answered_with_what_could_be_read(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        answer = await caller.ask(
            "shrug", session_id="s", request_id="r", client_request_id="k", text=7
        )
        assert "shrug" in answer.pop("message")
        assert answer == {
            "type": "error",
            "code": "bad_request",
            "session_id": "s",
            "client_request_id": "k",
            "request_id": "r",
        }


async def test_a_binary_frame_is_a_bad_request(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await caller.say_bytes(b'{"type":"ping"}')
        answer = await caller.hear()
        assert (answer["type"], answer["code"]) == ("error", "bad_request")
        assert "binary" in answer["message"]
        assert await caller.ask("ping") == {"type": "pong"}


@pytest.mark.parametrize(
    "session_id", ["", " ", "-a", ".a", "a b", "a/b", "../x", "ä", "a\x00", "x" * 129, "a\n"]
)
async def test_an_invalid_session_id_has_a_code_of_its_own(tmp_path: Path, session_id: str) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        for kind, fields in GOOD.items():
            if "session_id" in fields:
                answer = await caller.ask(
                    kind, **{**fields, "session_id": session_id, "request_id": "r"}
                )
                assert (answer["type"], answer["code"]) == ("error", "invalid_session_id")
                assert answer["request_id"] == "r"
        assert service.store.statuses("", 10) == []


async def test_the_longest_session_id_serves(tmp_path: Path) -> None:
    longest = "A" + "._:@-9z" * 18 + "Z"
    assert len(longest) == 128
    async with open_service(tmp_path) as service, service.caller() as caller:
        assert (await caller.input(longest))["session_id"] == longest


@pytest.mark.parametrize("kind", ["session_status", "stop", "reset_kernel"])
async def test_an_unknown_session_is_named(tmp_path: Path, kind: str) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        answer = await caller.ask(kind, session_id="nobody", request_id="r")
        assert "nobody" in answer.pop("message")
        assert answer == {
            "type": "error",
            "code": "unknown_session",
            "session_id": "nobody",
            "request_id": "r",
        }
        assert service.store.row("nobody") is None


async def test_unsubscribe_succeeds_without_a_subscription(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        assert await caller.ask("unsubscribe", session_id="nobody") == {
            "type": "operator_ack",
            "session_id": "nobody",
            "action": "unsubscribe",
            "success": True,
        }
        assert service.store.row("nobody") is None


@pytest.mark.parametrize("timestamp", [0, -(2**53), 2**53, 12345])
async def test_pong_has_the_same_timestamp(tmp_path: Path, timestamp: int) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        assert await caller.ask("ping", timestamp=timestamp) == {
            "type": "pong",
            "timestamp": timestamp,
        }


async def test_what_is_acked_is_what_was_sent(tmp_path: Path) -> None:
    """NUL, quotes, separators of other alphabets, an emoji: all come back as they went."""
    text = 'a\x00b"\\\u2028\u2029\u0085\x7f\x1b[2J ü 漢 🙂 \r\n\t\ufffd\uffff'
    async with open_service(tmp_path) as service, service.caller() as caller:
        assert (await caller.input("s", text, source="ü🙂"))["type"] == "ack"
        await caller.hear()
        replay = await caller.replay("subscribe", "s")
        assert replay.records[0]["payload"]["text"] == text
        assert replay.records[0]["payload"]["source"] == "ü🙂"


async def test_a_lone_surrogate_is_refused_in_escapes_too(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        for text in (r"\ud83d", r"x\udc00y", r"\ude42\ud83d"):
            await caller.say_text(
                f'{{"type":"send_input","session_id":"s","source":"t","text":"{text}"}}'
            )
            answer = await caller.hear()
            assert (answer["code"], answer["session_id"]) == ("bad_request", "s")
            assert "surrogate" in answer["message"]
        await caller.say_text(
            r'{"type":"send_input","session_id":"s","source":"t","text":"\ud83d\ude42"}'
        )
        assert (await caller.hear())["type"] == "ack", "a pair is one character"


async def test_a_text_has_a_bound_in_its_json_form(tmp_path: Path) -> None:
    fits = {
        "a" * TEXT_BYTES,
        "ü" * (TEXT_BYTES // 2),
        '"' * (TEXT_BYTES // 2),
        "\x01" * (TEXT_BYTES // 6),
    }
    async with open_service(tmp_path) as service, service.caller() as caller:
        for number, text in enumerate(sorted(fits)):
            ack = await caller.input("s", text, client_request_id=str(number))
            assert ack["type"] == "ack"
            await caller.hear()
            assert (await service.store.history("s", number, 1))[0].payload["text"] == text
            refused = await caller.input("s", text + text[:1], client_request_id="long")
            assert (refused["type"], refused["code"]) == ("error", "too_large")
            assert (refused["session_id"], refused["client_request_id"]) == ("s", "long")
        assert len(await service.store.history("s", 0, 10)) == len(fits)
        replay = await caller.replay("subscribe", "s")
        assert len(replay.records) == len(fits), "each of them fits a frame"


async def test_a_frame_over_its_bound_ends_the_connection(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        async with service.caller() as caller, service.caller() as other:
            frame = json.dumps({"type": "ping", "pad": "x" * (1024 * 1024 - 27)})
            assert len(frame) == 1024 * 1024
            await caller.say_text(frame)
            assert await caller.hear() == {"type": "pong"}, "the bound itself is taken"
            with contextlib.suppress(trio_websocket.ConnectionClosed):
                await caller.say_text(frame + " ")
            assert await caller.goodbye() == 1009
            assert await other.ask("ping") == {"type": "pong"}


async def test_a_page_of_sessions_is_ascending_and_names_its_last(tmp_path: Path) -> None:
    names = sorted(["a", "B", "a.b", "a-b", "Z9", "a:1", "a@x", "0"])
    async with open_service(tmp_path) as service, service.caller() as caller:
        assert await caller.ask("list_sessions") == {"type": "session_list", "sessions": []}
        for name in reversed(names):
            await service.store.ensure_session(name)
        whole = await caller.ask("list_sessions", request_id="r")
        assert [session["session_id"] for session in whole["sessions"]] == names
        assert (whole["request_id"], "next" in whole) == ("r", False)
        found: list[str] = []
        after: str | None = None
        for size in (3, 3, 2):
            page = await caller.ask("list_sessions", after=after, limit=3)
            assert len(page["sessions"]) == size
            found += [session["session_id"] for session in page["sessions"]]
            after = page.get("next")
            assert after == (found[-1] if len(found) < len(names) else None)
        assert found == names
        past = await caller.ask("list_sessions", after="zzz")
        assert past == {"type": "session_list", "sessions": []}
        exact = await caller.ask("list_sessions", limit=len(names))
        assert "next" not in exact
        assert (await caller.ask("list_sessions", limit=10**9)) == exact, "the bound is meant"


async def test_an_entry_of_the_list_is_the_status(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await caller.input("s")
        await caller.hear()
        status = await caller.ask("session_status", session_id="s")
        assert status == {
            "type": "session_status",
            "session_id": "s",
            "state": "ready",
            "head_seq": 1,
            "pending": 1,
            "hook_epoch": 1,
        }
        assert (await caller.ask("list_sessions"))["sessions"] == [status]


async def test_a_page_of_sessions_ends_early_at_a_frame(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        for number in range(200):
            entry = await service.registry.get_or_open(f"s{number:03}", None)
            await entry.transition_to_waiting("receipt", None, "\x01" * 1000)
        found: list[str] = []
        after: str | None = None
        pages = 0
        while after is not None or not found:
            page = await caller.ask("list_sessions", after=after, limit=1000)
            found += [session["session_id"] for session in page["sessions"]]
            after = page.get("next")
            assert after == (found[-1] if len(found) < 200 else None)
            pages += 1
        assert found == [f"s{number:03}" for number in range(200)]
        assert pages == 2
