"""A subscription: one client follows one session, its records and what is live of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

import attrs
import trio

from klbr_trio.service.door import Door
from klbr_trio.service.floor import Floor
from klbr_trio.service.follower import Follower, Hold
from klbr_trio.service.live import Lane

if TYPE_CHECKING:
    from collections.abc import Generator


@attrs.define(eq=False)
class Subscription:
    """What one client follows of one session; nothing until it is begun.

    Attributes:
        is_open: Whether the client follows the session, or is about to.
    """

    session_id: str
    _floor: Floor
    _door: Door
    _nursery: trio.Nursery
    _lane: Lane
    is_open: bool = attrs.field(default=False, init=False)
    _hold: Hold = attrs.field(factory=Hold, init=False)
    _look: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack, init=False)
    _is_looking: bool = attrs.field(default=False, init=False)
    _follower: Follower | None = attrs.field(default=None, init=False)

    @classmethod
    def of(cls, session_id: str, floor: Floor, door: Door, nursery: trio.Nursery) -> Self:
        """A client's subscription to the session, not begun yet."""
        return cls(session_id, floor, door, nursery, Lane(session_id, door, floor.live_frames))

    async def prepare(self) -> None:
        """There is a place for it, and no follower; what is live is still looked at.

        Raises:
            Busy: The client follows as many sessions as it may.
        """
        if not self.is_open:
            self._floor.take_place(self)
            self.is_open = True
        await self._end_follower()

    @contextlib.contextmanager
    def begun_after(self, head: int) -> Generator[None]:
        """The block sends the range up to `head`; then all that comes after it is followed.

        If the block fails, nothing is followed.
        """
        # From here on, before anything is awaited, what is live is for this client.
        if not self._is_looking:
            self._is_looking = True
            self._look.enter_context(
                self._floor.registry.live.look(self.session_id, self._lane.take)
            )
        with self.range_alone():
            try:
                yield
            except BaseException:
                self.close()
                raise
        self._follower = Follower(
            self.session_id,
            head,
            self._door,
            self._floor.registry.store,
            self._floor.records,
            self._hold,
        )
        self._nursery.start_soon(self._follower.run, name=f"follower {self.session_id}")

    @contextlib.contextmanager
    def input_in_flight(self) -> Generator[None]:
        """Inside the block only events are sent that were there before it."""
        # Without a subscription there is nothing to hold.
        head = self._floor.records.head(self.session_id) if self.is_open else 0
        with self._held(head):
            yield

    @contextlib.contextmanager
    def range_alone(self) -> Generator[None]:
        """Inside the block no event and nothing live is sent but by the block itself."""
        with self._held(0):
            yield

    @contextlib.contextmanager
    def _held(self, through: int) -> Generator[None]:
        self._hold.begin(through)
        self._lane.hold()
        try:
            yield
        finally:
            self._hold.end()
            self._lane.release()

    async def end(self) -> None:
        """The client follows the session no more; what is being sent is sent to its end."""
        self.close()
        await self._end_follower()

    def close(self) -> None:
        """Nothing new is followed, at once."""
        self._look.close()
        self._is_looking = False
        self._lane.close()
        if self._follower is not None:
            self._follower.end()
        if self.is_open:
            self.is_open = False
            self._floor.leave_place(self)

    async def caught_up(self) -> None:
        """Return when all that is committed has been given to the door."""
        if self._follower is not None:
            await self._follower.caught_up()

    async def _end_follower(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.end()
            await follower.over.wait()
