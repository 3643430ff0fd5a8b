"""The records of a session's log: one frozen class a kind.

The fields of a class are the keys of its payload, in this order; `kind` is the
name under which it is stored. `Note` stands for a kind that this table lacks.

Texts that come from a model, a kernel or an error are bounded when the record is
made, so that no record outgrows a frame. What a client or the agent said is never
cut: it is refused instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias

import attrs
from attrs.converters import optional

from klbr_trio.domain.text import clean, cut, cut_message, cut_note
from klbr_trio.domain.work import RunCause


@attrs.frozen
class Event:
    """One record of a session's log.

    Attributes:
        seq: Its number in the session: 1, 2, 3 … without gaps.
        payload: JSON as plain Python values.
    """

    seq: int
    session_id: str
    kind: str
    payload: dict[str, Any]
    created_ms: int


@attrs.frozen
class InputAdmitted:
    kind: ClassVar[str] = "input.admitted"
    source: str
    text: str
    client_request_id: str | None
    work_item_id: str


@attrs.frozen
class TurnStarted:
    kind: ClassVar[str] = "turn.started"
    attempt_id: str
    causes: tuple[RunCause, ...]
    work_items: tuple[str, ...]
    release: str | None
    model: str | None


@attrs.frozen
class ReplyReceived:
    kind: ClassVar[str] = "reply.received"
    attempt_id: str
    step: int
    model: str | None
    finish: str | None
    usage: Mapping[str, Any] | None
    opaque: Mapping[str, Any] | None


@attrs.frozen
class Scratchpad:
    kind: ClassVar[str] = "scratchpad"
    text: str = attrs.field(converter=cut)
    attempt_id: str
    step: int


@attrs.frozen
class CellRequested:
    """A call of the model; `code` None and `raw` when it can't run."""

    kind: ClassVar[str] = "cell.requested"
    attempt_id: str
    step: int
    call_id: str = attrs.field(converter=clean)
    code: str | None = attrs.field(converter=optional(cut))
    raw: str | None = attrs.field(default=None, converter=optional(cut))


@attrs.frozen
class CellFinished:
    """A call's result; `error` is what the model was told, or None."""

    kind: ClassVar[str] = "cell.finished"
    attempt_id: str
    step: int
    call_id: str = attrs.field(converter=clean)
    ok: bool
    output: str = attrs.field(converter=cut)
    value: str | None = attrs.field(converter=optional(cut))
    error: str | None = attrs.field(converter=optional(cut))
    truncated: bool
    duration_ms: int | None


@attrs.frozen
class LocalSent:
    """Confirmed speech; `call_id` None when the release speaks its plain text."""

    kind: ClassVar[str] = "local.sent"
    text: str
    attempt_id: str
    step: int
    call_id: str | None = attrs.field(converter=optional(clean))


@attrs.frozen
class TurnCompleted:
    kind: ClassVar[str] = "turn.completed"
    attempt_id: str
    outcome: str
    usage: Mapping[str, Any] | None


@attrs.frozen
class TurnFailed:
    kind: ClassVar[str] = "turn.failed"
    type: str
    attempt_id: str
    code: str
    message: str = attrs.field(converter=cut_message)
    retryable: bool


@attrs.frozen
class TurnInterrupted:
    kind: ClassVar[str] = "turn.interrupted"
    attempt_id: str
    why: str
    failed: tuple[str, ...]


@attrs.frozen
class Retry:
    """Which wake a retry deadline is for, and the how-manieth it is."""

    of_ms: int
    n: int


@attrs.frozen
class SessionWaiting:
    kind: ClassVar[str] = "session.waiting"
    wake_at_ms: int | None
    reason: str | None = attrs.field(converter=cut_note)
    receipt: str | None
    retry: Retry | None = None


@attrs.frozen
class SessionWoken:
    kind: ClassVar[str] = "session.woken"
    wake_at_ms: int
    late_ms: int


@attrs.frozen
class SessionStopped:
    kind: ClassVar[str] = "session.stopped"


@attrs.frozen
class SessionReopened:
    kind: ClassVar[str] = "session.reopened"
    hook_epoch: int


@attrs.frozen
class KernelReset:
    kind: ClassVar[str] = "kernel.reset"
    why: str
    hook_epoch: int


@attrs.frozen
class FrontierInstalled:
    kind: ClassVar[str] = "frontier.installed"
    epoch: int
    drained_through_seq: int
    summary: str = attrs.field(converter=cut)
    derived_by: str


@attrs.frozen
class Note:
    """A record of a kind that the table lacks, or a `scratchpad` outside attempts."""

    kind: str
    payload: Mapping[str, Any]


Body: TypeAlias = (
    InputAdmitted
    | TurnStarted
    | ReplyReceived
    | Scratchpad
    | CellRequested
    | CellFinished
    | LocalSent
    | TurnCompleted
    | TurnFailed
    | TurnInterrupted
    | SessionWaiting
    | SessionWoken
    | SessionStopped
    | SessionReopened
    | KernelReset
    | FrontierInstalled
    | Note
)

KINDS: Final[Mapping[str, type[Body]]] = {
    body.kind: body
    for body in (
        InputAdmitted,
        TurnStarted,
        ReplyReceived,
        Scratchpad,
        CellRequested,
        CellFinished,
        LocalSent,
        TurnCompleted,
        TurnFailed,
        TurnInterrupted,
        SessionWaiting,
        SessionWoken,
        SessionStopped,
        SessionReopened,
        KernelReset,
        FrontierInstalled,
    )
}
"""Every kind that the service itself writes. Kinds are added, never removed or renamed."""
