"""Rights: which tokens open the service, and what a client that may only look is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.errors import RequestError
from klbr_trio.wire import client as asks
from klbr_trio.wire.client import Context, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klbr_trio.service.port.connection import Connection
    from klbr_trio.wire.client import ClientMessage

_LOOKS: Final = (
    asks.Subscribe,
    asks.Unsubscribe,
    asks.History,
    asks.GetSessionStatus,
    asks.ListSessions,
    asks.Ping,
)
"""All that a read-only token may ask for; whatever is added later changes something until said."""


class Unauthorized(RequestError):
    """The client's token does not allow this; nothing was done."""

    code = "unauthorized"


def permitted(message: ClientMessage | Refused, connection: Connection) -> ClientMessage | Refused:
    """The message, if the client may ask for that; else its refusal."""
    if connection.may_write or isinstance(message, (*_LOOKS, Refused)):
        return message
    error = Unauthorized(f"this token is read-only; {message.type} needs the service's own token")
    context = Context(
        message.request_id,
        getattr(message, "session_id", None),
        getattr(message, "client_request_id", None),
    )
    return Refused(error, context)


@attrs.frozen
class Tokens:
    """The tokens that open a service.

    Attributes:
        full: Any of them may do everything; None: no token is asked for.
        read_only: These may look, and change nothing.
    """

    full: tuple[str, ...] | None = attrs.field(repr=False)
    read_only: tuple[str, ...] = attrs.field(default=(), repr=False)


@attrs.define(eq=False)
class KeyRing:
    """The tokens of a service that runs, which may be replaced.

    Attributes:
        tokens: Those that count.
        replaced: Set by the next `replace`; then there is another event.
    """

    tokens: Tokens
    replaced: trio.Event = attrs.field(factory=trio.Event, init=False)

    @classmethod
    def of(cls, auth: str | Sequence[str] | KeyRing | None) -> KeyRing:
        """The key ring that `serve_listener` was given, in whatever form."""
        if isinstance(auth, KeyRing):
            return auth
        if auth is None or isinstance(auth, str):
            return cls(Tokens(None if auth is None else (auth,)))
        return cls(Tokens(tuple(auth)))

    def replace(self, tokens: Tokens) -> None:
        """From here on these tokens count; who came with another one is sent away."""
        self.tokens = tokens
        self.replaced.set()
        self.replaced = trio.Event()
