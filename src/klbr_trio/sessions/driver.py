"""The driver: starts runners where something is runnable, and fires deadlines.

It scans once, at its start; from then on it looks only at what commits ring for.
"""

from __future__ import annotations

import logging
from typing import Final

import attrs
import trio

from klbr_trio.errors import SessionStopped, StoreError, UnknownSession
from klbr_trio.sessions.registry import SessionRegistry
from klbr_trio.sessions.runner import Agent, settle_unsettled, start_runner

_LOG: Final = logging.getLogger("klbr_trio.sessions")

MAX_RUNNERS: Final = 256
"""Sessions that run at the same time; more would only wait for the provider inside their turns."""

_PAGE: Final = 500
_BACKOFF_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


async def drive(
    registry: SessionRegistry, agent: Agent | None, max_runners: int = MAX_RUNNERS
) -> None:
    """Run what becomes runnable, until cancelled; without an agent, only fire deadlines."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_fire_deadlines, registry)
        if agent is not None:
            registry.wakeful.attended = True
            await _scan(registry)
            nursery.start_soon(_Driver(registry, agent, max_runners).run)


async def _scan(registry: SessionRegistry) -> None:
    after = ""
    while page := registry.store.runnable(after, _PAGE):
        for session_id in page:
            registry.wakeful.add(session_id)
        after = page[-1]
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class _Driver:
    _registry: SessionRegistry
    _agent: Agent
    _max_runners: int
    _failures: int = 0

    async def run(self) -> None:
        wakeful = self._registry.wakeful
        while True:
            await wakeful.runnable.wait()
            if wakeful.has_trouble():
                await self._back_off()
            else:
                self._failures = 0
            wakeful.look()
            await settle_unsettled(self._registry)
            while self._registry.running < self._max_runners and (session_id := wakeful.next()):
                self._start(session_id)
                await trio.lowlevel.checkpoint()

    async def _back_off(self) -> None:
        """The store could not be written: wait, longer each time."""
        pause = _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
        self._failures += 1
        await trio.sleep(pause)

    def _start(self, session_id: str) -> None:
        """Start the session's runner, if it is due one."""
        registry = self._registry
        try:
            start_runner(registry, registry.entry(session_id), self._agent)
        except (SessionStopped, UnknownSession) as exc:
            _LOG.debug("%s is not run: %s", session_id, exc)


async def _fire_deadlines(registry: SessionRegistry) -> None:
    """Fire every deadline when it comes; late ones at once."""
    failures = 0
    while True:
        registry.wakeful.look_for_deadline()
        now_ms = registry.clock.now_ms()
        try:
            await registry.store.wake_due(now_ms)
            failures = 0
        except StoreError as exc:
            _LOG.error("deadlines could not be fired: %s", exc)
            await trio.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
            failures += 1
            continue
        await _next_deadline(registry)


async def _next_deadline(registry: SessionRegistry) -> None:
    """Return when the next deadline comes, or when one was armed that may be nearer."""
    due = registry.store.next_deadline()
    if due is None:
        await registry.wakeful.nearer.wait()
        return
    registry.wakeful.next_ms = due
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until, registry, due, nursery.cancel_scope)
        await registry.wakeful.nearer.wait()
        nursery.cancel_scope.cancel()


async def _until(registry: SessionRegistry, due_ms: int, scope: trio.CancelScope) -> None:
    await registry.clock.sleep_until_ms(due_ms)
    scope.cancel()
