"""One session in the registry: its state as shown, its runners, its kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import trio

from klbr_trio.domain import session as states
from klbr_trio.domain.session import SessionState
from klbr_trio.errors import IllegalTransition, SessionStopped
from klbr_trio.release import Release
from klbr_trio.sessions.kernels import KernelSlot
from klbr_trio.sessions.runners import Runners
from klbr_trio.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from klbr_trio.store import SessionRow


@attrs.define(eq=False)
class Runtime:
    """What of a session's kernels the log tells.

    Attributes:
        hook_epoch: 1 plus the number of `kernel.reset` and `session.reopened` events.
    """

    hook_epoch: int


@attrs.define(eq=False)
class SessionEntry:
    """One session of a registry; get one with `SessionRegistry.get_or_open`.

    `state` follows every commit of the store, whoever made it. What a runner does is the
    runner's: starting one does not touch the state.

    Attributes:
        release: The release last given for the session in this process.
        budget_chars: How long a prompt its model took when a longer one was too long.
        stop_failed: Why it takes nothing new since its Stop could not be stored, or None.
        stopping: The stops that are being carried out.
        resetting: Held by a reset that is being carried out.
    """

    session_id: str
    runtime: Runtime
    runners: Runners
    kernels: KernelSlot
    _store: Store
    _state: SessionState
    _restored_wait: int | None
    release: Release | None = None
    budget_chars: int | None = None
    stop_failed: str | None = None
    _closed: str | None = None
    stopping: list[trio.Event] = attrs.field(factory=list)
    resetting: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock)

    @classmethod
    def restore(
        cls, row: SessionRow, *, store: Store, runners: Runners, kernels: KernelSlot
    ) -> SessionEntry:
        """The entry of a session as the store has it; what it waits for is in the log."""
        entry = cls(
            row.session_id, Runtime(row.hook_epoch), runners, kernels, store, row.state,
            None if row.wait is None else row.wait.seq,
        )  # fmt: skip
        entry.follow(row)
        return entry

    @property
    def refusal(self) -> str | None:
        """Why it takes nothing new, though the store does not say so, or None."""
        return self.stop_failed or self._closed

    def close(self, why: str) -> None:
        """It takes nothing new in this process any more."""
        self._closed = self._closed or why

    def __repr__(self) -> str:
        runner = self.runners.active
        doing = "idle" if runner is None else f"runner {runner.attempt_id}"
        return f"<SessionEntry {self.session_id} {self.state!r} {doing}>"

    @property
    def state(self) -> SessionState:
        """The session's state; `Draining` when it takes nothing more in this process."""
        if self.refusal is not None and not isinstance(self._state, states.Stopped):
            return states.Draining()
        return self._state

    @property
    def can_admit(self) -> bool:
        """Whether a new input would be taken."""
        return not isinstance(self.state, states.Draining | states.Stopped)

    def follow(self, row: SessionRow) -> None:
        """Show what a commit left."""
        self.runtime.hook_epoch = row.hook_epoch
        state = row.state
        if isinstance(state, states.Waiting) and row.wait is not None:
            if row.wait.seq == self._restored_wait:
                state = attrs.evolve(state, reason=None)
            else:
                self._restored_wait = None
        self._state = state

    async def try_start_runner(
        self,
        attempt_id: str,
        async_fn: Callable[..., Awaitable[object]],
        *args: Any,  # noqa: ANN401
    ) -> bool:
        """`async_fn(*args)` runs in the registry's nursery, under a cancel scope of its own.

        Returns:
            False when another runner is active or the session is quiesced.

        Raises:
            SessionStopped: The operator stopped the session.
        """
        await trio.lowlevel.checkpoint()
        return self.start_runner(attempt_id, async_fn, *args)

    def start_runner(
        self,
        attempt_id: str,
        async_fn: Callable[..., Awaitable[object]],
        *args: Any,  # noqa: ANN401
    ) -> bool:
        """As `try_start_runner`, at once."""
        if isinstance(self._state, states.Stopped):
            raise SessionStopped(
                f"session {self.session_id!r} is stopped; only the operator's reset reopens it"
            )
        if self.refusal is not None:
            return False
        return self.runners.start(str(attempt_id), async_fn, *args)

    async def retire_runner(self, attempt_id: str) -> bool:
        """The runner of that name gives up its place; see `Runners.retire`."""
        return await self.runners.retire(str(attempt_id))

    async def abort_runner(self) -> None:
        """The active runner is cancelled and joined, and its kernel is gone."""
        active = self.runners.active is not None
        await self.runners.abort("aborted")
        if active:
            await self.kernels.kill("the turn was aborted", unannounced="died")

    async def quiesce(self, store: Store) -> None:
        """Nothing of the session runs any more, and nothing will; what it can resume is kept."""
        self.close("the service is shutting down")
        await self.runners.quiesce("shutdown")
        await self.kernels.kill("the service was shut down")
        row = store.row(self.session_id)
        if row is not None and row.attempt_id is not None and not store.is_left_open(row):
            await store.interrupt(self.session_id, row.attempt_id, why="shutdown")

    async def transition_to_executing(self, epoch: int, attempt_id: str) -> None:
        """Show the session as executing, in memory alone.

        Raises:
            IllegalTransition: It is neither ready nor waiting, nor executing that attempt.
        """
        await trio.lowlevel.checkpoint()
        current = self.state
        if isinstance(current, states.Executing) and current.attempt_id == attempt_id:
            return
        self._state = states.begin(current, attempt_id=str(attempt_id), epoch=epoch)

    async def transition_to_waiting(
        self, receipt: str | None, wake_at_ms: int | None, reason: str | None
    ) -> None:
        """The session waits for a time, a receipt, or both.

        Raises:
            ValueError: Neither is given.
            IllegalTransition: It is stopped or draining, or the store has an open attempt.

        Durability: `session.waiting` and the deadline are committed when this returns.
        """
        if isinstance(self.state, states.Draining):
            raise IllegalTransition(f"session {self.session_id!r} is draining")
        await self._store.arm(
            self.session_id, receipt=receipt, wake_at_ms=wake_at_ms, reason=reason
        )
