"""Stop and Reset: first the commit, then the end of everything that runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.errors import KernelError, RegistryClosed, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from klbr_trio.kernel import Killed
    from klbr_trio.sessions.entry import SessionEntry
    from klbr_trio.store import Store

_LOG: Final = logging.getLogger("klbr_trio.sessions")

ANSWER_S: Final = 5.0
"""An operator is answered within this time, whatever still lives."""

COMMIT_S: Final = 2.0
"""What a Stop's commit gets before everything is killed without it: > a slow commit."""

STOPPED: Final = "the operator stopped the session"
RESET: Final = "the kernel was reset by the operator"


class SurvivorsLeft(KernelError):
    """Something of a session could not be ended in time; the message names it."""


@attrs.define(eq=False)
class Errand:
    """An operator's order; it is carried out to its end, though it may be answered before."""

    _answered: trio.Event = attrs.field(factory=trio.Event)
    _failure: Exception | None = None
    receipt: str | None = None
    """What was ended, once it is answered; None if nothing was running."""

    def answer(self, failure: Exception | None = None) -> None:
        """Tell whoever waits; the first answer counts."""
        if not self._answered.is_set():
            self._failure = failure
            self._answered.set()

    async def carry_out(
        self, order: Callable[[Store, SessionEntry, Errand], Awaitable[None]],
        store: Store, entry: SessionEntry,
    ) -> None:  # fmt: skip
        """The order is carried out, and answered in time."""
        try:
            await order(store, entry, self)
        except Exception as exc:  # noqa: BLE001 - handed to whoever gave the order
            self.answer(exc)
        finally:
            self.answer(RegistryClosed("the registry was shut down before this was done"))

    async def wait(self) -> None:
        """Return when the order is answered; raise what went wrong.

        Cancellation: the order goes on.
        """
        await self._answered.wait()
        if self._failure is not None:
            raise self._failure


async def stop_session(store: Store, entry: SessionEntry, errand: Errand) -> None:
    """The session is stopped, and nothing that it started lives.

    If its commit fails, or takes too long, everything is killed all the same and the
    session takes nothing more in this process.
    """
    answer_at = trio.current_time() + ANSWER_S
    ended = trio.Event()
    entry.stopping.append(ended)
    commit = _StopCommit()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit.run, store, entry)
            with trio.move_on_after(COMMIT_S):
                await commit.over.wait()
            if not commit.over.is_set():
                entry.stop_failed = "its stop could not be stored yet"
            ended_all = await _end_everything(entry, answer_at)
            errand.receipt = ended_all.receipt()
            errand.answer(_stop_failure(commit, ended_all.alive()))
    finally:
        entry.stopping.remove(ended)
        ended.set()


@attrs.define(eq=False)
class _StopCommit:
    """The commit of a Stop, which may be slower than its answer."""

    over: trio.Event = attrs.field(factory=trio.Event)
    failure: str | None = "the disk takes too long"

    async def run(self, store: Store, entry: SessionEntry) -> None:
        try:
            await store.stop(entry.session_id)
        except StoreError as exc:
            self.failure = str(exc)
            entry.stop_failed = f"its stop could not be stored: {exc}"
            _LOG.error("the stop of %s could not be stored: %s", entry.session_id, exc)
        else:
            self.failure = entry.stop_failed = None
        finally:
            self.over.set()


def _stop_failure(commit: _StopCommit, alive: tuple[str, ...]) -> Exception | None:
    if alive:
        return SurvivorsLeft(f"still alive: {', '.join(alive)}")
    if commit.failure is not None:
        return StoreUnavailable(
            f"everything it ran was killed, but the stop could not be stored: {commit.failure}"
        )
    return None


@attrs.define(eq=False)
class _Ended:
    """What the end of everything came to."""

    left: set[str] = attrs.field(factory=set)
    processes: int = 0
    ms: float = 0.0

    def add(self, killed: Killed) -> None:
        self.left.update(_survivors(killed))
        self.processes = max(self.processes, killed.processes)
        self.ms = max(self.ms, killed.ms)

    def alive(self) -> tuple[str, ...]:
        return tuple(sorted(self.left))

    def receipt(self) -> str | None:
        if not self.processes:
            return None
        left = ", ".join(self.alive()) or "none"
        return f"{self.processes} processes ended in {self.ms:.0f} ms; survivors: {left}"


async def _end_everything(entry: SessionEntry, until: float) -> _Ended:
    """No runner and no kernel of the session is left; says what is all the same."""
    ended = _Ended()

    async def kill() -> None:
        killed = await entry.kernels.kill(STOPPED)
        if killed is not None:
            ended.add(killed)

    with trio.move_on_at(until) as in_time:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(entry.runners.end, "stopped")
            nursery.start_soon(kill)
        # A runner that was starting a kernel when it was cancelled may have left one.
        await kill()
    if in_time.cancelled_caught:
        ended.left.update(_alive(entry))
    return ended


async def _kill(entry: SessionEntry, why: str) -> tuple[str, ...]:
    killed = await entry.kernels.kill(why)
    return () if killed is None else _survivors(killed)


def _survivors(killed: Killed) -> tuple[str, ...]:
    return tuple(f"process {pid}" for pid in killed.survivors)


def _alive(entry: SessionEntry) -> tuple[str, ...]:
    kernel = entry.kernels.process
    return (
        *(f"runner {name}" for name in entry.runners.names()),
        *(() if kernel is None else (f"kernel {kernel}",)),
    )


async def reset_session(store: Store, entry: SessionEntry, errand: Errand) -> None:
    """A stopped session is ready again; any other gets a fresh kernel.

    A stop that was asked for before is waited for.
    """
    async with entry.resetting:
        while entry.stopping:
            await entry.stopping[-1].wait()
        if entry.stop_failed is not None:
            errand.answer(StoreUnavailable(f"{entry.stop_failed}; stop it again, then reset it"))
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_in_time, entry, errand)
            errand.answer(await _reset(store, entry))
            nursery.cancel_scope.cancel()


async def _answer_in_time(entry: SessionEntry, errand: Errand) -> None:
    await trio.sleep(ANSWER_S)
    alive = ", ".join(_alive(entry)) or "the commit"
    errand.answer(SurvivorsLeft(f"not done within {ANSWER_S:g} s: {alive}"))


async def _reset(store: Store, entry: SessionEntry) -> Exception | None:
    try:
        await store.reset(entry.session_id)
    except StoreError as exc:
        return exc
    entry.kernels.announced()
    alive = await _kill(entry, RESET)
    return SurvivorsLeft(f"still alive: {', '.join(alive)}") if alive else None
