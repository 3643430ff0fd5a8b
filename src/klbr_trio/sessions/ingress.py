"""Ingress: the one way for an input into a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import attrs

from klbr_trio.domain.ids import SessionId, parse_session_id
from klbr_trio.domain.text import check_name, check_text
from klbr_trio.store import Input

if TYPE_CHECKING:
    from klbr_trio.sessions.registry import SessionRegistry
    from klbr_trio.store import Admission


@attrs.frozen
class SourceRef:
    """An input as a client sends it; (session, source, client_request_id) is its key."""

    session_id: SessionId
    source: str
    text: str
    client_request_id: str | None

    @classmethod
    def from_v2_input(
        cls, session_id: str, source: str, text: str, client_request_id: str | None
    ) -> Self:
        """An input that was checked as the wire checks it.

        Raises:
            InvalidSessionId: The session id does not match the rule.
            BadRequest: Source, text or key is empty, too long or can't be stored.
            TooLarge: The text is over its bound.
        """
        checked = parse_session_id(session_id)
        check_name("source", source)
        if client_request_id is not None:
            check_name("client_request_id", client_request_id, empty_ok=True)
        check_text("text", text)
        return cls(checked, source, text, client_request_id)


async def admit_input(
    registry: SessionRegistry, session_id: str, source_ref: SourceRef
) -> Admission:
    """The input is stored, once, whatever its sender repeats.

    Raises:
        SourceKeyConflict: Its key was used with another text; nothing was stored.
        AdmissionRejected: It is new and the session is stopped or draining.
        StoreUnavailable: Nothing was stored; try again later.

    Durability: event and work item are committed when this returns.
    Cancellation: cancelled means not stored; once the commit has begun it is waited for.
    """
    if str(session_id) != source_ref.session_id:
        raise ValueError(f"the input is for session {source_ref.session_id}, not {session_id}")
    sent = Input(
        str(source_ref.session_id),
        source_ref.source,
        source_ref.text,
        source_ref.client_request_id,
    )
    return await registry.store.admit(sent, refuse=registry.refusal(sent.session_id))
