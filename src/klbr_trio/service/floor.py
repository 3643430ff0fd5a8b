"""The floor: what all clients of a service share, and what each of them may have."""

from __future__ import annotations

import attrs

from klbr_trio.config import SUBSCRIPTIONS
from klbr_trio.errors import Busy
from klbr_trio.service.records import Records
from klbr_trio.sessions.registry import SessionRegistry


@attrs.define(eq=False)
class Shared:
    """What all clients share.

    Attributes:
        has_model: Whether anything will answer an input.
    """

    registry: SessionRegistry
    has_model: bool
    records: Records


@attrs.define(eq=False)
class Floor:
    """One client's view of what is shared, with its own subscriptions."""

    _shared: Shared
    _following: set[str] = attrs.field(factory=set)

    @property
    def registry(self) -> SessionRegistry:
        """The sessions."""
        return self._shared.registry

    @property
    def has_model(self) -> bool:
        """Whether anything will answer an input."""
        return self._shared.has_model

    @property
    def records(self) -> Records:
        """The records as frames."""
        return self._shared.records

    def take_subscription(self, session_id: str) -> None:
        """The client follows one session more.

        Raises:
            Busy: It follows as many as it may.
        """
        if session_id not in self._following and len(self._following) >= SUBSCRIPTIONS:
            raise Busy(
                f"a client follows at most {SUBSCRIPTIONS} sessions; unsubscribe from one first"
            )
        self._following.add(session_id)

    def leave_subscription(self, session_id: str) -> None:
        """The client follows one session less."""
        self._following.discard(session_id)
