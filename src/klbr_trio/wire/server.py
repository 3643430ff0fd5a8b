"""What the service says: one class a message type; fields without a value are left out.

`event` is not here: stored records are spliced into ready-made frames by
`klbr_trio.wire.records.event_frame`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import attrs

from klbr_trio.domain.text import clean, cut_message
from klbr_trio.wire.codec import CONVERTER, dumps

if TYPE_CHECKING:
    from klbr_trio.wire.client import Context


@attrs.frozen(kw_only=True)
class Ack:
    type: ClassVar[str] = "ack"
    session_id: str
    seq: int
    client_request_id: str | None = None
    duplicate: bool
    request_id: str | None = None


@attrs.frozen(kw_only=True)
class Error:
    type: ClassVar[str] = "error"
    code: str
    message: str = attrs.field(converter=cut_message)
    session_id: str | None = None
    client_request_id: str | None = None
    request_id: str | None = None

    @classmethod
    def of(cls, code: str, message: str, context: Context) -> Error:
        """An error that carries back what is known of the frame it answers."""
        return cls(
            code=code,
            message=message,
            session_id=context.session_id,
            client_request_id=context.client_request_id,
            request_id=context.request_id,
        )


@attrs.frozen(kw_only=True)
class SyncStarted:
    type: ClassVar[str] = "sync_started"
    session_id: str
    from_seq: int
    to_seq: int
    earliest_seq: int | None = None
    fold_seq: int | None = None
    request_id: str | None = None


@attrs.frozen(kw_only=True)
class SyncCompleted:
    type: ClassVar[str] = "sync_completed"
    session_id: str
    to_seq: int
    request_id: str | None = None


@attrs.frozen(kw_only=True)
class LiveChunk:
    """A piece of what is happening; never stored, never replayed.

    Attributes:
        lane: `scratchpad`, `reasoning`, `speech` or `output`.
    """

    type: ClassVar[str] = "live_chunk"
    session_id: str
    lane: str
    delta: str
    attempt_id: str
    step: int
    call_id: str | None = None


@attrs.frozen(kw_only=True)
class LiveDiscard:
    """What was streamed as scratchpad and reasoning for this step does not count."""

    type: ClassVar[str] = "live_discard"
    session_id: str
    attempt_id: str
    step: int


@attrs.frozen(kw_only=True)
class LiveGap:
    type: ClassVar[str] = "live_gap"
    session_id: str
    dropped: int


@attrs.frozen(kw_only=True)
class SessionStatus:
    """A session's state.

    Attributes:
        usage: What its replies cost together, by name.
    """

    type: ClassVar[str] = "session_status"
    session_id: str
    state: str
    wake_at_ms: int | None = None
    reason: str | None = None
    attempt_id: str | None = None
    head_seq: int
    fold_seq: int | None = None
    pending: int
    release: str | None = None
    hook_epoch: int
    usage: Mapping[str, float] | None = None
    request_id: str | None = None


@attrs.frozen(kw_only=True)
class SessionList:
    type: ClassVar[str] = "session_list"
    sessions: tuple[SessionStatus, ...]
    next: str | None = None
    request_id: str | None = None


@attrs.frozen(kw_only=True)
class OperatorAck:
    type: ClassVar[str] = "operator_ack"
    session_id: str
    action: str
    success: bool
    message: str | None = attrs.field(
        default=None, converter=attrs.converters.optional(cut_message)
    )
    request_id: str | None = None


@attrs.frozen(kw_only=True)
class Pong:
    type: ClassVar[str] = "pong"
    timestamp: int | None = None
    request_id: str | None = None


LiveMessage: TypeAlias = LiveChunk | LiveDiscard
ServerMessage: TypeAlias = (
    Ack
    | Error
    | SyncStarted
    | SyncCompleted
    | LiveChunk
    | LiveDiscard
    | LiveGap
    | SessionStatus
    | SessionList
    | OperatorAck
    | Pong
)


def to_values(message: ServerMessage) -> dict[str, Any]:
    """The message as plain values, tag first, empty fields left out."""
    values = CONVERTER.unstructure(message)
    present = {key: value for key, value in values.items() if value is not None}
    if isinstance(message, SessionList):
        present["sessions"] = [to_values(status) for status in message.sessions]
    return {"type": message.type, **present}


def encode(message: ServerMessage) -> str:
    """The message as one JSON text frame, which can always be sent: no lone surrogates."""
    return clean(dumps(to_values(message)))
