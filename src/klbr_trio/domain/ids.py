"""Names: of sessions, chosen by clients, and of attempts, made here."""

from __future__ import annotations

import re
import secrets
from typing import Final, Self

from klbr_trio.errors import InvalidSessionId

SESSION_ID_RULE: Final = "[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}"
_SESSION_ID: Final = re.compile(SESSION_ID_RULE)


class SessionId(str):
    """A session's name; make one with `parse_session_id`."""

    __slots__ = ()


class OperationId(str):
    """The name of an attempt (or of the runner that makes attempts)."""

    __slots__ = ()

    @classmethod
    def fresh(cls) -> Self:
        """A name that no other operation has: 128 random bits."""
        return cls(f"op-{secrets.token_hex(16)}")


def parse_session_id(text: object, *, field: str = "session_id") -> SessionId:
    """`text` as a session id; a refusal calls it `field`.

    Raises:
        InvalidSessionId: It does not match `SESSION_ID_RULE`.
    """
    if not isinstance(text, str) or _SESSION_ID.fullmatch(text) is None:
        raise InvalidSessionId(
            f"{field} must be 1 to 128 of A-Z a-z 0-9 . _ : @ - and begin with a letter or digit"
        )
    return SessionId(text)
