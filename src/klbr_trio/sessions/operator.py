"""Stop and Reset: first the commit, then the end of everything that runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from klbr_trio.errors import KernelError, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from klbr_trio.sessions.entry import SessionEntry
    from klbr_trio.store import Store

_LOG: Final = logging.getLogger("klbr_trio.sessions")

ANSWER_S: Final = 5.0
"""An operator is answered within this time, whatever still lives."""

STOPPED: Final = "the operator stopped the session"
RESET: Final = "the kernel was reset by the operator"


class SurvivorsLeft(KernelError):
    """Something of a session could not be ended in time; the message names it."""


async def stop_session(store: Store, entry: SessionEntry) -> None:
    """The session is stopped, and nothing that it started lives.

    Raises:
        UnknownSession: No such session was ever made.
        StoreUnavailable: The commit failed; everything was killed all the same.
        SurvivorsLeft: Something still lives after `ANSWER_S`.
    """
    ended = trio.Event()
    entry.stopping.append(ended)
    failure: StoreError | None = None
    try:
        with trio.move_on_after(ANSWER_S) as answer:
            try:
                await store.stop(entry.session_id)
            except StoreError as exc:
                failure = exc
                entry.refusal = f"its stop could not be stored: {exc}"
            await _end_everything(entry)
    finally:
        entry.stopping.remove(ended)
        ended.set()
    if answer.cancelled_caught:
        raise SurvivorsLeft(_survivors(entry))
    if failure is not None:
        raise StoreUnavailable(
            f"everything it ran was killed, but the stop could not be stored: {failure}"
        ) from failure
    entry.refusal = None


async def _end_everything(entry: SessionEntry) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(entry.runners.abort, "stopped")
        nursery.start_soon(_kill, entry, STOPPED)
    # A runner that was starting a kernel when it was cancelled may have left one.
    await _kill(entry, STOPPED)


async def _kill(entry: SessionEntry, why: str) -> None:
    killed = await entry.kernels.kill(why)
    if killed is not None and killed.survivors:
        raise SurvivorsLeft(f"processes {', '.join(map(str, killed.survivors))} still live")


def _survivors(entry: SessionEntry) -> str:
    runner, kernel = entry.runners.active, entry.kernels.kernel
    alive = [
        *([f"runner {runner.attempt_id}"] if runner is not None else []),
        *([f"kernel {kernel.pid}"] if kernel is not None and kernel.alive else []),
    ]
    return f"still alive after {ANSWER_S:g} s: {', '.join(alive) or 'a commit'}"


async def reset_session(store: Store, entry: SessionEntry) -> None:
    """A stopped session is ready again; any other gets a fresh kernel.

    Raises:
        UnknownSession: No such session was ever made.
        StoreUnavailable: The commit failed; nothing changed.
        SurvivorsLeft: The old kernel still lives after `ANSWER_S`.
    """
    async with entry.resetting:
        while entry.stopping:
            await entry.stopping[-1].wait()
        old = entry.kernels.kernel
        await store.reset(entry.session_id)
        if old is None:
            return
        with trio.move_on_after(ANSWER_S) as answer:
            await _kill(entry, RESET)
        if answer.cancelled_caught:
            raise SurvivorsLeft(_survivors(entry))
