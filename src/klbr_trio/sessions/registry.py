"""The registry: it owns the nursery in which every session's tasks live.

Entries are made as sessions are opened or run. Stop, reset and shutdown run in tasks of
the registry, so that whoever asked for them may leave.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from klbr_trio.domain.clock import Clock
from klbr_trio.domain.ids import parse_session_id
from klbr_trio.errors import RegistryClosed, StoreUnavailable, UnknownSession, sole
from klbr_trio.kernel import WorkerConfig
from klbr_trio.sessions.clock import WallClock
from klbr_trio.sessions.entry import SessionEntry
from klbr_trio.sessions.groups import ServiceTaskGroup, TaskGroup
from klbr_trio.sessions.kernels import KernelSlot
from klbr_trio.sessions.live import LiveHub
from klbr_trio.sessions.operator import Errand, reset_session, stop_session
from klbr_trio.sessions.resting import RESTING_KERNELS, RestingKernels
from klbr_trio.sessions.runners import Runners, is_below
from klbr_trio.sessions.wakeful import Wakeful
from klbr_trio.store import CrashRule, Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from klbr_trio.release import Release
    from klbr_trio.store import SessionRow

    Order = Callable[[Store, SessionEntry, Errand], Awaitable[None]]

_LOG: Final = logging.getLogger("klbr_trio.sessions")

CLIENTS_GRACE_S: Final = 2.0
"""What clients get, all together, to hear that the service stops."""

QUIESCE_GRACE_S: Final = 10.0
"""> a retired runner's 2 s + a kernel's kill + the last commits; < a supervisor's kill."""


@attrs.frozen
class RecoveryObservationPolicy:
    """What becomes of work that crashes broke off.

    Attributes:
        max_crashes: The crash that ends a work item.
        observe: Whether the agent is then told of it, by a Recovery item.
    """

    max_crashes: int = 3
    observe: bool = True

    def rule(self) -> CrashRule:
        """The same, as the store takes it."""
        return CrashRule(self.max_crashes, self.observe)


@attrs.define(eq=False)
class SessionRegistry:
    """The sessions of one store in this process; make it with `open`.

    Attributes:
        store: The store that it serves.
        config: How kernels are started.
        policy: What becomes of work that crashes broke off.
        clock: The time of deadlines.
        live: Who looks at which session.
        wakeful: What the driver is to look at.
        closing: Set when the shutdown begins: nothing new is taken.
        closed: Set when nothing of the registry runs any more.
        recovered: Set when nothing of an earlier service is left open.
        running: How many sessions have an active runner.
        over: The registry's block has been left.
    """

    store: Store
    config: WorkerConfig
    policy: RecoveryObservationPolicy
    clock: Clock
    _nursery: trio.Nursery
    _groups: dict[ServiceTaskGroup, TaskGroup]
    _resting: RestingKernels
    live: LiveHub = attrs.field(factory=LiveHub)
    wakeful: Wakeful = attrs.field(factory=Wakeful)
    closing: trio.Event = attrs.field(factory=trio.Event)
    closed: trio.Event = attrs.field(factory=trio.Event)
    recovered: trio.Event = attrs.field(factory=trio.Event)
    running: int = 0
    over: bool = False
    _entries: dict[str, SessionEntry] = attrs.field(factory=dict)
    _shutting: bool = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        store: Store,
        config: WorkerConfig,
        recovery_policy: RecoveryObservationPolicy | None = None,
        *,
        clock: Clock | None = None,
        resting_kernels: int = RESTING_KERNELS,
    ) -> AsyncGenerator[SessionRegistry]:
        """A registry of `store`; it starts no task and writes nothing.

        Leaving the block quiesces: everything that runs is cancelled and joined, and
        what can be resumed is kept.

        Args:
            store: The sessions' store.
            config: How kernels are started.
            recovery_policy: What becomes of work that crashes broke off.
            clock: The time of deadlines; by default the machine's.
            resting_kernels: How many kernels are kept for sessions that do not run.
        """
        try:
            async with trio.open_nursery() as nursery:
                registry = cls(
                    store,
                    config,
                    recovery_policy or RecoveryObservationPolicy(),
                    clock or WallClock(),
                    nursery,
                    {group: TaskGroup(nursery) for group in ServiceTaskGroup},
                    RestingKernels(resting_kernels),
                )
                with store.watch(registry._follow):
                    try:
                        yield registry
                    finally:
                        await registry._end()  # noqa: ASYNC102 - it shields itself, with a deadline
        except BaseExceptionGroup as group:
            # A caller's own error leaves as it came, not wrapped by a nursery of ours.
            if (only := sole(group)) is not group:
                raise only from None
            raise

    def __repr__(self) -> str:
        state = "closed" if self.closed.is_set() else "closing" if self.closing.is_set() else "open"
        return f"<SessionRegistry {state}, {len(self._entries)} entries, {self.running} running>"

    @property
    def living_kernels(self) -> int:
        """How many sessions have a kernel that lives."""
        return sum(entry.kernels.kernel is not None for entry in self._entries.values())

    # Entries

    def get(self, session_id: str) -> SessionEntry | None:
        """The session's entry, if it was opened or has run here."""
        return self._entries.get(session_id)

    async def get_or_open(self, session_id: str, release: Release | None) -> SessionEntry:
        """The session's entry; its next turn runs `release`.

        The session's row is made if it is missing. An attempt that an earlier service
        left open is interrupted first.

        Raises:
            RegistryClosed: The registry was shut down.
            InvalidSessionId: The id does not match the rule.
        """
        self._check_open()
        parse_session_id(session_id)
        await self.store.ensure_session(session_id)
        await self.settle_left_open(session_id)
        self._check_open()
        entry = self.entry(session_id)
        if release is not None:
            entry.release = release
        return entry

    async def settle_left_open(self, session_id: str) -> None:
        """An attempt of the session that an earlier service left open is interrupted."""
        row = self.store.row(session_id)
        if row is not None and row.attempt_id is not None and self.store.is_left_open(row):
            await self.store.interrupt(
                session_id, row.attempt_id, why="crash", rule=self.policy.rule()
            )

    def entry(self, session_id: str) -> SessionEntry:
        """The entry of a session that has a row; made if it is missing.

        Raises:
            UnknownSession: It has no row.
        """
        entry = self._entries.get(session_id)
        if entry is None:
            row = self.store.row(session_id)
            if row is None:
                raise UnknownSession(f"no session {session_id!r}; the first input makes one")
            entry = self._entries[session_id] = self._make_entry(row)
        return entry

    def _make_entry(self, row: SessionRow) -> SessionEntry:
        session_id = row.session_id
        workspaces = self.config.workspaces or self.store.path.parent / "workspaces"
        entry = SessionEntry.restore(
            row,
            store=self.store,
            runners=Runners(
                self._nursery, self._runner_came, lambda: self._runner_left(session_id)
            ),
            kernels=KernelSlot(self._nursery, self.config, workspaces / session_id),
        )
        if self.closing.is_set():
            entry.close("the service is shutting down")
        return entry

    def _follow(self, touched: Mapping[str, SessionRow]) -> None:
        for session_id, row in touched.items():
            entry = self._entries.get(session_id)
            if entry is not None:
                entry.follow(row)
            self.wakeful.note(row)

    def _runner_came(self) -> None:
        self.running += 1

    def _runner_left(self, session_id: str) -> None:
        self.running -= 1
        row = self.store.row(session_id)
        entry = self._entries.get(session_id)
        if row is not None and entry is not None:
            entry.follow(row)
            self.wakeful.note(row)
            self._resting.rest(entry)
        self.wakeful.ring()

    def refusal(self, session_id: str) -> str | None:
        """Why no new input is taken for the session, besides what the store says."""
        if self.closing.is_set():
            return "the service is shutting down; send it again later"
        entry = self._entries.get(session_id)
        return None if entry is None else entry.refusal

    # Tasks

    async def start_service_task(
        self,
        group: ServiceTaskGroup,
        async_fn: Callable[..., Awaitable[object]],
        *args: Any,  # noqa: ANN401
    ) -> None:
        """`async_fn(*args)` runs until it returns or the registry is shut down.

        Raises:
            RegistryClosed: The registry was shut down.
        """
        self._check_open()
        self._groups[group].start(async_fn, args, f"{group.value} task")
        await trio.lowlevel.checkpoint()

    def leave(self, group: ServiceTaskGroup) -> trio.Event:
        """Set when the group's tasks are asked to end by themselves."""
        return self._groups[group].leave

    # The operator

    async def stop(self, session_id: str) -> str | None:
        """The operator's Stop: stopped in one commit, then everything it runs is gone.

        Returns:
            The receipt: how many processes ended, and how soon; None if none ran.

        Raises:
            UnknownSession: No such session was ever made.
            RegistryClosed: The registry ended before this was done.
            StoreUnavailable: The commit failed; everything was killed all the same, and
                the session takes nothing more in this process.
            SurvivorsLeft: Something could not be killed within five seconds.

        Durability: stopped until the operator's reset, across restarts.
        Cancellation: the stop goes on.
        """
        entry = self.entry(session_id)
        return await self._carry_out(stop_session, entry, f"stop {session_id}")

    async def interrupt(self, session_id: str) -> bool:
        """The cell that runs has ended, with its error; kernel, turn and session go on.

        A cell that can't be interrupted is killed with its kernel, after its grace.

        Returns:
            False if no cell is running.

        Raises:
            UnknownSession: No such session was ever made.

        Cancellation: the cell ends all the same.
        """
        kernel = self.entry(session_id).kernels.kernel
        await trio.lowlevel.checkpoint()
        return kernel is not None and await kernel.end_cell("the operator interrupted it")

    async def reopen(self, session_id: str, release: Release | None) -> SessionEntry:
        """The operator's Reset: a stopped session is ready again, any other has no kernel.

        A reset sent after a stop waits until that stop is done.

        Raises:
            RegistryClosed: The registry was shut down.
            UnknownSession: No such session was ever made.
            StoreUnavailable: The commit failed and nothing changed; or a Stop before it
                could not be stored, and has to be done again first.
            SurvivorsLeft: The old kernel could not be killed within five seconds.

        Cancellation: the reset goes on.
        """
        self._check_open()
        entry = self.entry(session_id)
        if release is not None:
            entry.release = release
        await self._carry_out(reset_session, entry, f"reset {session_id}")
        return entry

    async def _carry_out(self, order: Order, entry: SessionEntry, name: str) -> str | None:
        """The order is carried out in a task of the registry; whoever gave it may leave."""
        if self.over:
            raise RegistryClosed("the registry has ended; open a new one")
        errand = Errand()
        self._nursery.start_soon(errand.carry_out, order, self.store, entry, name=name)
        await errand.wait()
        return errand.receipt

    # Shutdown

    async def shutdown_all(self) -> None:
        """Nothing of the registry runs any more, and nothing will; resumable state is kept.

        Ends, in this order: driver, runners and kernels, recovery, clients. Idempotent;
        calls at the same time all wait.

        Raises:
            RuntimeError: Called from a task of the registry, which would wait for itself.
        """
        if is_below(self._nursery):
            raise RuntimeError("a task of the registry can't wait for the registry's end")
        if not self._shutting:
            self._shutting = True
            self.begin_shutdown()
            self._nursery.start_soon(self._shut_down, name="shutdown")
        await self.closed.wait()

    async def idle(self) -> None:
        """Return when no session has an active runner."""
        for entry in tuple(self._entries.values()):
            while (runner := entry.runners.active) is not None:
                await runner.done.wait()

    def begin_shutdown(self) -> None:
        """Take nothing new; what runs goes on."""
        self.closing.set()
        for entry in self._entries.values():
            entry.close("the service is shutting down")

    async def _end(self) -> None:
        """The shutdown is over, whoever began it; at the end of the registry's block."""
        with trio.move_on_after(QUIESCE_GRACE_S + 2 * CLIENTS_GRACE_S, shield=True):
            await self.shutdown_all()
        self.over = True
        self._nursery.cancel_scope.cancel()

    async def _shut_down(self) -> None:
        try:
            with trio.move_on_after(QUIESCE_GRACE_S + CLIENTS_GRACE_S, shield=True) as grace:
                await self._groups[ServiceTaskGroup.DRIVER].end()
                await self._quiesce_entries()
                await self._groups[ServiceTaskGroup.RECOVERY].end()
                await self._groups[ServiceTaskGroup.CLIENT].end(patience_s=CLIENTS_GRACE_S)
            if grace.cancelled_caught:
                _LOG.error("the shutdown took too long; cutting what is left: %r", self)
        finally:
            self.closed.set()  # an error in here ends the registry, and nobody waits for ever

    async def _quiesce_entries(self) -> None:
        async with trio.open_nursery() as nursery:
            for entry in self._entries.values():
                nursery.start_soon(self._quiesce, entry)

    async def _quiesce(self, entry: SessionEntry) -> None:
        try:
            await entry.quiesce(self.store)
        except StoreUnavailable as exc:
            _LOG.error("session %s is left for recovery: %s", entry.session_id, exc)

    def _check_open(self) -> None:
        if self.closing.is_set():
            raise RegistryClosed("the registry was shut down; open a new one")
