"""What clients say: one class a message type, decoded strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import attrs

from klbr_trio.domain.ids import SessionId, parse_session_id
from klbr_trio.domain.text import check_name, check_text, has_surrogate
from klbr_trio.errors import BadRequest, RequestError
from klbr_trio.wire.codec import loads, structure

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE_MAX: Final = 1000
SUBSCRIBE_DEFAULT: Final = 500
SESSIONS_DEFAULT: Final = 100


def _page(limit: int) -> int:
    """A limit above the bound counts as the bound."""
    return min(limit, PAGE_MAX)


@attrs.frozen(kw_only=True)
class SendInput:
    type: ClassVar[str] = "send_input"
    session_id: str
    source: str
    text: str
    client_request_id: str | None = None
    request_id: str | None = None

    def check(self) -> None:
        check_name("source", self.source)
        if self.client_request_id is not None:
            check_name("client_request_id", self.client_request_id, empty_ok=True)
        check_text("text", self.text)


@attrs.frozen(kw_only=True)
class Subscribe:
    type: ClassVar[str] = "subscribe"
    session_id: str
    after_seq: int = 0
    limit: int = attrs.field(default=SUBSCRIBE_DEFAULT, converter=_page)
    request_id: str | None = None

    def check(self) -> None:
        _at_least("after_seq", self.after_seq, 0)
        _at_least("limit", self.limit, 0)


@attrs.frozen(kw_only=True)
class Unsubscribe:
    type: ClassVar[str] = "unsubscribe"
    session_id: str
    request_id: str | None = None


@attrs.frozen(kw_only=True)
class History:
    type: ClassVar[str] = "history"
    session_id: str
    before_seq: int
    limit: int = attrs.field(converter=_page)
    request_id: str | None = None

    def check(self) -> None:
        _at_least("before_seq", self.before_seq, 1)
        _at_least("limit", self.limit, 1)


@attrs.frozen(kw_only=True)
class GetSessionStatus:
    type: ClassVar[str] = "session_status"
    session_id: str
    request_id: str | None = None


@attrs.frozen(kw_only=True)
class ListSessions:
    type: ClassVar[str] = "list_sessions"
    after: str | None = None
    limit: int = attrs.field(default=SESSIONS_DEFAULT, converter=_page)
    request_id: str | None = None

    def check(self) -> None:
        _at_least("limit", self.limit, 1)
        if self.after is not None:
            parse_session_id(self.after, field="after")


@attrs.frozen(kw_only=True)
class Stop:
    type: ClassVar[str] = "stop"
    session_id: str
    request_id: str | None = None


@attrs.frozen(kw_only=True)
class Interrupt:
    type: ClassVar[str] = "interrupt"
    session_id: str
    request_id: str | None = None


@attrs.frozen(kw_only=True)
class ResetKernel:
    type: ClassVar[str] = "reset_kernel"
    session_id: str
    request_id: str | None = None


@attrs.frozen(kw_only=True)
class Ping:
    type: ClassVar[str] = "ping"
    timestamp: int | None = None
    request_id: str | None = None


ClientMessage: TypeAlias = (
    SendInput
    | Subscribe
    | Unsubscribe
    | History
    | GetSessionStatus
    | ListSessions
    | Stop
    | Interrupt
    | ResetKernel
    | Ping
)

TYPES: Final[Mapping[str, type[ClientMessage]]] = {
    message.type: message
    for message in (
        SendInput,
        Subscribe,
        Unsubscribe,
        History,
        GetSessionStatus,
        ListSessions,
        Stop,
        Interrupt,
        ResetKernel,
        Ping,
    )
}


@attrs.frozen
class Context:
    """What of a frame an answer carries back, as far as it could be read."""

    request_id: str | None = None
    session_id: str | None = None
    client_request_id: str | None = None


@attrs.frozen
class Refused:
    """A frame that is no message, and why."""

    error: RequestError
    context: Context


def decode(text: str) -> ClientMessage | Refused:
    """One client frame as a message.

    A message's `session_id` matches the rule for session ids. Never raises for
    what a client can send.
    """
    context = Context()
    try:
        values = loads(text)
        if not isinstance(values, dict):
            raise BadRequest("the frame must be a JSON object")
        context = _context(values)
        return _message(values)
    except RequestError as error:
        return Refused(error, context)


def _message(values: dict[str, Any]) -> ClientMessage:
    tag = values.get("type")
    if not isinstance(tag, str):
        raise BadRequest("type is missing or not a string")
    kind = TYPES.get(tag)
    if kind is None:
        known = ", ".join(sorted(TYPES))
        raise BadRequest(f"type {tag[:64]!r} is unknown; this service knows {known}")
    message = structure(values, kind)
    if message.request_id is not None:
        check_name("request_id", message.request_id, empty_ok=True)
    if not isinstance(message, Ping | ListSessions):
        parse_session_id(message.session_id)
    check = getattr(message, "check", None)
    if check is not None:
        check()
    return message


def _context(values: dict[str, Any]) -> Context:
    return Context(
        _name(values.get("request_id")),
        _session(values.get("session_id")),
        _name(values.get("client_request_id")),
    )


def _name(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        check_name("", value, empty_ok=True)
    except RequestError:
        return None
    return value


def _session(value: object) -> SessionId | None:
    if not isinstance(value, str) or has_surrogate(value):
        return None
    try:
        return parse_session_id(value)
    except RequestError:
        return None


def _at_least(field: str, value: int, least: int) -> None:
    if value < least:
        raise BadRequest(f"{field} must be at least {least}, not {value}")
