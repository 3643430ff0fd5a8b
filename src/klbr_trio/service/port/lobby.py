"""Those who have connected and not said yet what they want."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Generator


@attrs.define(eq=False, kw_only=True)
class Lobby:
    """Bounds how many connections may be without a whole head, and for how long.

    A flood of silent connections can't lock anybody out: one too many cuts the oldest of
    its address, or of all of them, and who is in earnest has long left the lobby by then.

    Attributes:
        places: How many of one address may wait here.
        all_places: How many may wait here in all.
        seconds: How long each may wait.
    """

    places: int
    all_places: int
    seconds: float
    _waiting: dict[trio.CancelScope, str] = attrs.field(factory=dict, init=False)
    _of_address: Counter[str] = attrs.field(factory=Counter, init=False)

    @property
    def waiting(self) -> int:
        """How many wait at the moment."""
        return len(self._waiting)

    @contextmanager
    def wait_in(self, address: str) -> Generator[trio.CancelScope]:
        """A scope for reading a head; it is cancelled when its time or its place is gone."""
        self._make_room(address)
        with trio.move_on_after(self.seconds) as scope:
            self._waiting[scope] = address
            self._of_address[address] += 1
            try:
                yield scope
            finally:
                self._forget(scope)

    def _make_room(self, address: str) -> None:
        if self._of_address[address] >= self.places:
            oldest = next(scope for scope, theirs in self._waiting.items() if theirs == address)
        elif len(self._waiting) >= self.all_places:
            oldest = next(iter(self._waiting))
        else:
            return
        self._forget(oldest)
        oldest.cancel()

    def _forget(self, scope: trio.CancelScope) -> None:
        address = self._waiting.pop(scope, None)
        if address is None:
            return
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
