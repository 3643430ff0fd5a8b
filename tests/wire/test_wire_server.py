"""What the service says: tag first, nothing empty, always a frame that can be sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from klbr_trio.domain.text import MESSAGE_BYTES, json_bytes
from klbr_trio.wire import server
from klbr_trio.wire.client import Context

STATUS = server.SessionStatus(
    session_id="s", state="ready", head_seq=0, pending=0, hook_epoch=1
)  # fmt: skip
MESSAGES: list[tuple[server.ServerMessage, dict[str, Any]]] = [
    (
        server.Ack(session_id="s", seq=1, duplicate=False),
        {"type": "ack", "session_id": "s", "seq": 1, "duplicate": False},
    ),
    (
        server.Ack(session_id="s", seq=1, client_request_id="", duplicate=True, request_id="r"),
        {
            "type": "ack", "session_id": "s", "seq": 1, "client_request_id": "",
            "duplicate": True, "request_id": "r",
        },
    ),
    (
        server.Error.of("busy", "later", Context("r", None, "k")),
        {
            "type": "error", "code": "busy", "message": "later", "client_request_id": "k",
            "request_id": "r",
        },
    ),
    (
        server.SyncStarted(session_id="s", from_seq=1, to_seq=0, fold_seq=0),
        {"type": "sync_started", "session_id": "s", "from_seq": 1, "to_seq": 0, "fold_seq": 0},
    ),
    (
        server.SyncCompleted(session_id="s", to_seq=0),
        {"type": "sync_completed", "session_id": "s", "to_seq": 0},
    ),
    (
        server.LiveChunk(session_id="s", lane="output", delta="", attempt_id="o", step=1, call_id="c"),
        {
            "type": "live_chunk", "session_id": "s", "lane": "output", "delta": "",
            "attempt_id": "o", "step": 1, "call_id": "c",
        },
    ),
    (
        server.LiveDiscard(session_id="s", attempt_id="o", step=2),
        {"type": "live_discard", "session_id": "s", "attempt_id": "o", "step": 2},
    ),
    (server.LiveGap(session_id="s", dropped=3), {"type": "live_gap", "session_id": "s", "dropped": 3}),
    (
        STATUS,
        {
            "type": "session_status", "session_id": "s", "state": "ready", "head_seq": 0,
            "pending": 0, "hook_epoch": 1,
        },
    ),
    (server.SessionList(sessions=()), {"type": "session_list", "sessions": []}),
    (
        server.SessionList(sessions=(STATUS,), next="s"),
        {
            "type": "session_list", "next": "s",
            "sessions": [
                {
                    "type": "session_status", "session_id": "s", "state": "ready",
                    "head_seq": 0, "pending": 0, "hook_epoch": 1,
                }
            ],
        },
    ),
    (
        server.OperatorAck(session_id="s", action="stop", success=False, message="why"),
        {"type": "operator_ack", "session_id": "s", "action": "stop", "success": False, "message": "why"},
    ),
    (
        server.OperatorAck(session_id="s", action="stop", success=True),
        {"type": "operator_ack", "session_id": "s", "action": "stop", "success": True},
    ),
    (server.Pong(timestamp=0), {"type": "pong", "timestamp": 0}),
    (server.Pong(), {"type": "pong"}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "values"), MESSAGES)
def test_a_message_is_its_filled_fields(
    message: server.ServerMessage, values: dict[str, Any]
) -> None:
    text = server.encode(message)
    assert json.loads(text) == values
    assert text.startswith('{"type":"')
    assert server.to_values(message) == values


@given(st.text(st.characters(), max_size=50))
def test_a_frame_can_always_be_sent(text: str) -> None:
    chunk = server.LiveChunk(session_id="s", lane="output", delta=text, attempt_id="o", step=1)
    frame = server.encode(chunk).encode()
    assert json.loads(frame)["delta"] == "".join(
        "\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text
    )


def test_messages_are_bounded() -> None:
    long = "é" * MESSAGE_BYTES
    assert json_bytes(server.Error.of("internal", long, Context()).message) <= MESSAGE_BYTES
    ack = server.OperatorAck(session_id="s", action="stop", success=False, message=long)
    assert ack.message is not None
    assert json_bytes(ack.message) <= MESSAGE_BYTES
