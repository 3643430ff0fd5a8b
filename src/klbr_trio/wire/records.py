"""Events as JSON: payloads as they are stored, and the frames that carry them."""

from __future__ import annotations

import json
from typing import Any

from klbr_trio.domain.events import Body, Event, Note
from klbr_trio.wire.codec import CONVERTER, dumps


def payload_of(body: Body) -> dict[str, Any]:
    """The payload of an event, as plain values in the order of its class's fields."""
    if isinstance(body, Note):
        return dict(body.payload)
    values: dict[str, Any] = CONVERTER.unstructure(body)
    if "raw" in values and values["raw"] is None:
        del values["raw"]  # only a call that can't run has what came instead of code
    return values


def encode_payload(body: Body) -> str:
    """The payload as it is stored and as the wire carries it."""
    return dumps(payload_of(body))


def decode_event(seq: int, session_id: str, kind: str, payload: str, created_ms: int) -> Event:
    """A stored record as an event."""
    return Event(seq, session_id, kind, json.loads(payload), created_ms)


def event_frame(seq: int, session_id: str, kind: str, payload: str, created_ms: int) -> str:
    """The `event` message of a stored record, its payload spliced in as it is stored."""
    return (
        f'{{"type":"event","record":{{"seq":{seq},"session_id":{dumps(session_id)},'
        f'"kind":{dumps(kind)},"payload":{payload},"created_ms":{created_ms}}}}}'
    )
