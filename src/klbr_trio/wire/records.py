"""Events as JSON: payloads as they are stored, and the frames that carry them."""

from __future__ import annotations

import json
from typing import Any

from klbr_trio.domain.events import Body, Event, Note, ReplyReceived
from klbr_trio.domain.text import clean
from klbr_trio.errors import TooLarge
from klbr_trio.wire.codec import CONVERTER, MAX_DEPTH, dumps, is_deeper


def payload_of(body: Body) -> dict[str, Any]:
    """The payload of an event, as plain values in the order of its class's fields."""
    if isinstance(body, Note):
        return dict(body.payload)
    values: dict[str, Any] = CONVERTER.unstructure(body)
    if "raw" in values and values["raw"] is None:
        del values["raw"]  # only a call that can't run has what came instead of code
    return values


def encode_payload(body: Body) -> str:
    """The payload as it is stored and as the wire carries it.

    It can always be stored and read again: lone surrogates are replaced, and what
    others made (notes, what a provider sent along) is not nested without end.

    Raises:
        TooLarge: It is nested deeper than `MAX_DEPTH`.
        ValueError: It holds NaN or Infinity.
    """
    try:
        values = payload_of(body)
        text = dumps(values)
    except RecursionError:
        raise _too_deep(body) from None
    if isinstance(body, Note | ReplyReceived) and is_deeper(values, MAX_DEPTH):
        raise _too_deep(body)
    return clean(text)


def _too_deep(body: Body) -> TooLarge:
    return TooLarge(f"the payload of {body.kind} is nested deeper than {MAX_DEPTH} levels")


def decode_event(seq: int, session_id: str, kind: str, payload: str, created_ms: int) -> Event:
    """A stored record as an event."""
    return Event(seq, session_id, kind, json.loads(payload), created_ms)


def event_frame(seq: int, session_id: str, kind: str, payload: str, created_ms: int) -> str:
    """The `event` message of a stored record, its payload spliced in as it is stored."""
    return (
        f'{{"type":"event","record":{{"seq":{seq},"session_id":{dumps(session_id)},'
        f'"kind":{dumps(kind)},"payload":{payload},"created_ms":{created_ms}}}}}'
    )
