"""Recovery: settles, session by session, what an earlier service left open.

It re-queues and never executes: what it interrupts starts again through an ordinary claim.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from klbr_trio.errors import StoreUnavailable

if TYPE_CHECKING:
    from klbr_trio.sessions.registry import SessionRegistry

_LOG: Final = logging.getLogger("klbr_trio.sessions")

_RETRY_S: Final = 2.0


async def recover(registry: SessionRegistry) -> None:
    """No attempt of an earlier service is open; `registry.recovered` is set.

    Cancellation: the rest is left to the next service.
    """
    while True:
        try:
            for left in registry.store.left_open():
                await registry.store.interrupt(
                    left.session_id, left.attempt_id, why="crash", rule=registry.policy.rule()
                )
                _LOG.warning(
                    "attempt %s of session %s was broken off by a crash",
                    left.attempt_id,
                    left.session_id,
                )
            await registry.store.mark_recovered()
        except StoreUnavailable as exc:
            _LOG.error("recovery has to wait: %s", exc)
            await trio.sleep(_RETRY_S)
        else:
            registry.recovered.set()
            return
