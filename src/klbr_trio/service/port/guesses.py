"""Wrong tokens, slowed down.

A token of 256 random bits is not guessed at any rate; this keeps a program that tries
from filling the log and the machine, and shows it to the operator. The right token is
never slowed, so that nobody can lock the owner out by guessing.
"""

from __future__ import annotations

from typing import Final

import attrs
import trio

FREE_GUESSES: Final = 20
FORGIVEN_A_SECOND: Final = 1 / 3
SECONDS_A_GUESS: Final = 0.25
MOST_WAITING: Final = 8


@attrs.define(eq=False)
class Guesses:
    """Counts wrong tokens of all clients together; they are all on one machine.

    Attributes:
        total: All there ever were.
    """

    total: int = attrs.field(default=0, init=False)
    _counted: float = attrs.field(default=0.0, init=False)
    _counted_at: float = attrs.field(default=0.0, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def wait_turn(self) -> bool:
        """Wait before a wrong token is answered; False if too many are waiting."""
        self.total += 1
        now = trio.current_time()
        forgiven = (now - self._counted_at) * FORGIVEN_A_SECOND
        self._counted = max(0.0, self._counted - forgiven) + 1
        self._counted_at = now
        if self._counted <= FREE_GUESSES:
            await trio.lowlevel.checkpoint()
            return True
        self._counted = min(self._counted, 2.0 * FREE_GUESSES)
        if self._turn.statistics().tasks_waiting >= MOST_WAITING:
            await trio.lowlevel.checkpoint()
            return False
        async with self._turn:
            await trio.sleep(SECONDS_A_GUESS)
        return True
