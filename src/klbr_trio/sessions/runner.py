"""A session's runner: one turn after the other, until nothing is runnable.

This is the one place where runners come from: the driver and `trigger_session_turn`
both start `run_session`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.domain.ids import OperationId, parse_session_id
from klbr_trio.errors import ClaimLost, StoreError, StoreUnavailable
from klbr_trio.models import LlmClient
from klbr_trio.release import Release
from klbr_trio.sessions.live import LiveStream, Publish
from klbr_trio.sessions.means import Means
from klbr_trio.sessions.turn import TurnRun
from klbr_trio.store import Failure, Results

if TYPE_CHECKING:
    from klbr_trio.sessions.entry import SessionEntry
    from klbr_trio.sessions.registry import SessionRegistry
    from klbr_trio.store import Turn
    from klbr_trio.wire.server import LiveMessage

_LOG: Final = logging.getLogger("klbr_trio.sessions")

SETTLE_GRACE_S: Final = 5.0
"""What the interrupt of a cancelled attempt may take: > a slow commit, < a shutdown's grace."""


@attrs.frozen
class Agent:
    """What a runner runs with.

    Attributes:
        release: The release of sessions that were given none of their own.
        soul: Who the agent is; None: the release's own.
    """

    llm: LlmClient
    release: Release
    soul: str | None = None
    publish: Publish | None = None


async def trigger_session_turn(
    registry: SessionRegistry,
    llm: LlmClient | None,
    session_id: str,
    release: Release,
    publish: Publish | None = None,
) -> bool:
    """A runner of the session has started with this model and release.

    It goes on until nothing is runnable. No service is needed.

    Args:
        registry: The registry in whose nursery it runs.
        llm: The model; None starts nothing.
        session_id: The session.
        release: What it runs; also of its later turns in this process.
        publish: Called, without waiting, with each live message.

    Returns:
        False if nothing is runnable, a runner is active, or `llm` is None.

    Raises:
        SessionStopped: The operator stopped the session.
        RegistryClosed: The registry was shut down.
    """
    entry = await registry.get_or_open(parse_session_id(session_id), release)
    if llm is None:
        return False
    agent = Agent(llm, release, None, publish)
    return start_runner(registry, entry, agent)


def start_runner(registry: SessionRegistry, entry: SessionEntry, agent: Agent) -> bool:
    """A runner has started; False if nothing is runnable or one is active.

    Raises:
        SessionStopped: The operator stopped the session.
    """
    row = registry.store.row(entry.session_id)
    stopped = row is not None and row.stopped
    if not stopped and not registry.store.is_runnable(entry.session_id):
        return False
    return entry.start_runner(OperationId.fresh(), run_session, registry, entry, agent)


async def run_session(registry: SessionRegistry, entry: SessionEntry, agent: Agent) -> None:
    """Nothing of the session is runnable any more.

    Cancellation: the open attempt is interrupted.
    """
    name: str | None = None if entry.runners.active is None else entry.runners.active.attempt_id
    while not registry.closing.is_set():
        release = entry.release or agent.release
        try:
            turn = await registry.store.claim_turn(
                entry.session_id,
                attempt_id=name or OperationId.fresh(),
                release=release.digest,
                model=agent.llm.name,
            )
        except StoreUnavailable as exc:
            _LOG.error("no turn of %s could begin: %s", entry.session_id, exc)
            registry.wakeful.hold_off(entry.session_id)
            return
        if turn is None:
            return
        name = None
        if not await _run_attempt(registry, entry, turn, attrs.evolve(agent, release=release)):
            return


async def _run_attempt(
    registry: SessionRegistry, entry: SessionEntry, turn: Turn, agent: Agent
) -> bool:
    """Run one attempt; False if it could not be closed and the runner must end."""
    closed = False
    try:
        closed = await _attempt(registry, entry, turn, agent)
    finally:
        if not closed:
            await _interrupt(registry, entry, turn)
    return closed


async def _attempt(
    registry: SessionRegistry, entry: SessionEntry, turn: Turn, agent: Agent
) -> bool:
    """Run the attempt to its closing event, whatever fails; True if it is closed."""

    def publish(message: LiveMessage) -> None:
        registry.live.publish(message)
        if agent.publish is not None:
            agent.publish(message)

    live = LiveStream(turn.session_id, turn.attempt_id, publish)
    means = Means(registry.store, entry, agent.llm, agent.release, agent.soul, registry.clock, live)
    closed = False
    try:
        await _settle_kernel(registry, entry, agent.release)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.run)
            await TurnRun.begin(turn, means).run()
            nursery.cancel_scope.cancel()
        closed = True
    except* ClaimLost:
        closed = True  # somebody else ended it: the operator's Stop
    except* StoreError as group:
        _LOG.error("attempt %s stops where it is: %s", turn.attempt_id, group.exceptions[0])
    except* Exception:  # noqa: BLE001 - the boundary of an attempt
        _LOG.exception("attempt %s failed", turn.attempt_id)
        closed = await _fail_internally(registry, turn)
    return closed


async def _fail_internally(registry: SessionRegistry, turn: Turn) -> bool:
    """A bug of ours ends the turn, not the session."""
    message = f"an internal error ended the turn; the service's log has it under {turn.attempt_id}"
    failure = Failure("internal", message, retryable=False)
    try:
        open_calls = await registry.store.broken_off(turn, because=message)
        await registry.store.fail(turn, failure, results=Results(open_calls))
    except StoreError as exc:
        _LOG.error("attempt %s could not be closed: %s", turn.attempt_id, exc)
        return False
    return True


async def _settle_kernel(registry: SessionRegistry, entry: SessionEntry, release: Release) -> None:
    """A kernel that died, or runs another release, is announced before the model is asked."""
    if entry.kernels.has_died():
        entry.kernels.forget()
        await registry.store.kernel_gone(entry.session_id, why="died")
    elif entry.kernels.runs_other_than(release.digest):
        await entry.kernels.kill("the behaviour changed")
        await registry.store.kernel_gone(entry.session_id, why="release")


async def _interrupt(registry: SessionRegistry, entry: SessionEntry, turn: Turn) -> None:
    runner = entry.runners.active
    why = runner.why if runner is not None and runner.scope.cancel_called else "aborted"
    if registry.closing.is_set():
        why = "shutdown"
    with trio.move_on_after(SETTLE_GRACE_S, shield=True) as grace:
        try:
            await registry.store.interrupt(turn.session_id, turn.attempt_id, why=_written(why))
        except StoreError as exc:
            _LOG.error("attempt %s is left open: %s", turn.attempt_id, exc)
            registry.wakeful.unsettled(turn.session_id, turn.attempt_id)
    if grace.cancelled_caught:
        registry.wakeful.unsettled(turn.session_id, turn.attempt_id)


def _written(why: str) -> str:
    """The `why` of the interrupt of a runner cancelled for `why`.

    A Stop has interrupted the attempt in its own commit; if that failed, this is an abort.
    """
    return "aborted" if why == "stopped" else why
