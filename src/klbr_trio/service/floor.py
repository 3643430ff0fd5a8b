"""The floor: what all clients of a service share, and what each of them may have."""

from __future__ import annotations

from typing import Protocol

import attrs
import trio

from klbr_trio.config import SUBSCRIPTIONS
from klbr_trio.errors import Busy, StoreBroken
from klbr_trio.service.figures import Figures
from klbr_trio.service.live import LiveFrames
from klbr_trio.service.records import Records
from klbr_trio.sessions.registry import SessionRegistry


@attrs.define(eq=False)
class Shared:
    """What all clients share.

    Attributes:
        has_model: Whether anything will answer an input.
        clients: How many clients are being served.
        followers: How many subscriptions they have, all together.
        figures: What is counted for those who watch the service.
        broken: How the store turned out to be corrupt, which ends the service.
    """

    registry: SessionRegistry
    has_model: bool
    records: Records
    live_frames: LiveFrames = attrs.field(factory=LiveFrames, init=False)
    clients: int = attrs.field(default=0, init=False)
    followers: int = attrs.field(default=0, init=False)
    figures: Figures = attrs.field(factory=Figures, init=False)
    broken: StoreBroken | None = attrs.field(default=None, init=False)
    broke: trio.Event = attrs.field(factory=trio.Event, init=False)
    client_left: trio.Event = attrs.field(factory=trio.Event, init=False)

    def leave(self) -> None:
        """One client less."""
        self.clients -= 1
        self.client_left.set()
        self.client_left = trio.Event()

    def break_down(self, error: StoreBroken) -> None:
        """A client met a corrupt page; nobody may go on with this file."""
        self.broken = error
        self.broke.set()


class Closable(Protocol):
    """What takes a place among a client's subscriptions."""

    def close(self) -> None:
        """Leave the place, at once."""


@attrs.define(eq=False)
class Floor:
    """One client's view of what is shared, with its own subscriptions."""

    _shared: Shared
    _subscriptions: set[Closable] = attrs.field(factory=set, init=False)

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

    @property
    def live_frames(self) -> LiveFrames:
        """Live messages as frames."""
        return self._shared.live_frames

    def count_inputs(self, count: int, seconds: float) -> None:
        """So many inputs were stored, or found stored, within that time."""
        self._shared.figures.acknowledged(count, seconds)

    def take_place(self, subscription: Closable) -> None:
        """The client follows one session more.

        Raises:
            Busy: It follows as many as it may.
        """
        if len(self._subscriptions) >= SUBSCRIPTIONS:
            raise Busy(
                f"a client follows at most {SUBSCRIPTIONS} sessions; unsubscribe from one first"
            )
        self._subscriptions.add(subscription)
        self._shared.followers += 1

    def leave_place(self, subscription: Closable) -> None:
        """The client follows one session less."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._shared.followers -= 1

    def close(self) -> None:
        """The client has gone, and follows nothing."""
        for subscription in tuple(self._subscriptions):
            subscription.close()
