"""Those who have connected and not said yet what they want."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Generator


@attrs.define(eq=False, kw_only=True)
class Lobby:
    """Bounds how many connections of one address may be without a whole head.

    A flood of silent connections can't lock anybody out: one too many cuts the oldest,
    and who is in earnest has long left the lobby by then.

    Attributes:
        places: How many of one address may wait here.
        seconds: How long each may wait.
    """

    places: int
    seconds: float
    _waiting: dict[str, dict[trio.CancelScope, None]] = attrs.field(factory=dict, init=False)

    @property
    def waiting(self) -> int:
        """How many wait at the moment."""
        return sum(len(scopes) for scopes in self._waiting.values())

    @contextmanager
    def wait_in(self, address: str) -> Generator[trio.CancelScope]:
        """A scope for reading a head; it is cancelled when its time or its place is gone."""
        scopes = self._waiting.setdefault(address, {})
        if len(scopes) >= self.places:
            oldest = next(iter(scopes))
            del scopes[oldest]
            oldest.cancel()
        with trio.move_on_after(self.seconds) as scope:
            scopes[scope] = None
            try:
                yield scope
            finally:
                scopes.pop(scope, None)
                if not scopes:
                    self._waiting.pop(address, None)
