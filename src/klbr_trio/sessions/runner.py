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
from klbr_trio.errors import ClaimLost, StoreBroken, StoreError, StoreUnavailable
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

BROKEN_PAUSE_S: Final = 60.0
"""How long a session that a bug or damage keeps from running is left alone before the next try."""

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
    await settle_unsettled(registry)
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


async def settle_unsettled(registry: SessionRegistry) -> None:
    """Interrupt attempts whose own interrupt could not be written."""
    wakeful = registry.wakeful
    for session_id, attempt_id in wakeful.take_unsettled():
        try:
            await registry.store.interrupt(session_id, attempt_id, why="aborted")
        except StoreUnavailable:
            wakeful.unsettled(session_id, attempt_id)


async def run_session(registry: SessionRegistry, entry: SessionEntry, agent: Agent) -> None:
    """Nothing of the session is runnable any more.

    Cancellation: the open attempt is interrupted.
    """
    name: str | None = None if entry.runners.active is None else entry.runners.active.attempt_id
    broken = False
    try:
        while not registry.closing.is_set():
            turn_agent = attrs.evolve(agent, release=entry.release or agent.release)
            turn = await _claim(registry, entry, turn_agent, name or OperationId.fresh())
            name = None
            if turn is None or not await _run_attempt(registry, entry, turn, turn_agent):
                return
    except* Exception:  # noqa: BLE001 - the boundary of a session
        _LOG.exception("session %s can't be run", entry.session_id)
        broken = True
    if broken:
        await trio.sleep(BROKEN_PAUSE_S)


async def _claim(
    registry: SessionRegistry, entry: SessionEntry, agent: Agent, attempt_id: str
) -> Turn | None:
    """The next turn; None if nothing is runnable, or nothing can be written now."""
    try:
        return await registry.store.claim_turn(
            entry.session_id,
            attempt_id=attempt_id,
            release=agent.release.digest,
            model=agent.llm.models.named_or_default(agent.release.settings.model).model,
        )
    except StoreUnavailable as exc:
        _LOG.error("no turn of %s could begin: %s", entry.session_id, exc)
        registry.wakeful.hold_off(entry.session_id)
        return None


async def _run_attempt(
    registry: SessionRegistry, entry: SessionEntry, turn: Turn, agent: Agent
) -> bool:
    """Run one attempt; False if it could not be closed and the runner must end."""
    try:
        await _attempt(registry, entry, turn, agent)
    finally:
        closed = not _is_open(registry, turn)
        if not closed:
            await _interrupt(registry, entry, turn)  # noqa: ASYNC102 - shields itself, with a deadline
    if not closed:
        registry.wakeful.hold_off(entry.session_id)
    return closed


def _is_open(registry: SessionRegistry, turn: Turn) -> bool:
    row = registry.store.row(turn.session_id)
    return row is not None and row.attempt_id == turn.attempt_id


async def _attempt(
    registry: SessionRegistry, entry: SessionEntry, turn: Turn, agent: Agent
) -> None:
    """Run the attempt to its closing event, whatever fails, as long as it can be written."""

    def publish(message: LiveMessage) -> None:
        registry.live.publish(message)
        if agent.publish is not None:
            agent.publish(message)

    live = LiveStream(turn.session_id, turn.attempt_id, publish)
    means = Means(registry.store, entry, agent.llm, agent.release, agent.soul, registry.clock, live)
    failed = False
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.run)
            await TurnRun.begin(turn, means).run()
            nursery.cancel_scope.cancel()
    except* StoreUnavailable as group:
        _LOG.error("attempt %s stops where it is: %s", turn.attempt_id, group.exceptions[0])
    except* ClaimLost:
        failed = True  # unless somebody else has ended it, as the operator's Stop does
    except* StoreBroken:
        raise
    except* Exception:  # noqa: BLE001 - the boundary of an attempt
        _LOG.exception("attempt %s failed", turn.attempt_id)
        failed = True
    if failed and _is_open(registry, turn):
        _LOG.error("attempt %s ends by an internal error", turn.attempt_id)
        await _fail_internally(registry, turn)


async def _fail_internally(registry: SessionRegistry, turn: Turn) -> None:
    """A bug of ours ends the turn, not the session."""
    message = f"an internal error ended the turn; the service's log has it under {turn.attempt_id}"
    failure = Failure("internal", message, retryable=False)
    try:
        await registry.store.fail(turn, failure, results=Results())
    except (StoreUnavailable, ClaimLost) as exc:
        _LOG.error("attempt %s could not be closed: %s", turn.attempt_id, exc)


async def _interrupt(registry: SessionRegistry, entry: SessionEntry, turn: Turn) -> None:
    why = _why(registry, entry)
    settled = False
    with trio.move_on_after(SETTLE_GRACE_S, shield=True):  # noqa: ASYNC912 - commits can be waited for
        try:
            await registry.store.interrupt(turn.session_id, turn.attempt_id, why=why)
            settled = True
        except StoreError as exc:
            _LOG.error("attempt %s is left open: %s", turn.attempt_id, exc)
    if not settled:
        registry.wakeful.unsettled(turn.session_id, turn.attempt_id)


def _why(registry: SessionRegistry, entry: SessionEntry) -> str:
    """Why the running attempt is interrupted, in the log's words."""
    if registry.closing.is_set():
        return "shutdown"
    runner = entry.runners.active
    if runner is not None and runner.scope.cancel_called:
        # A Stop has interrupted the attempt in its own commit; if that failed, this is an abort.
        return "aborted" if runner.why == "stopped" else runner.why
    # Cancelled from further out: the registry itself is ending.
    cancelled = trio.current_effective_deadline() == float("-inf")
    return "shutdown" if cancelled else "aborted"
