"""A session's runners: one active at the most, each under a cancel scope of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable

_LOG: Final = logging.getLogger("klbr_trio.sessions")

RETIRED_GRACE_S: Final = 2.0
"""What a runner that retired itself gets to clean up when its session is quiesced."""


def is_below(ancestor: trio.Nursery | trio.lowlevel.Task) -> bool:
    """Whether the running task is `ancestor`, or was started below it."""
    task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
    while task is not None:
        nursery = task.parent_nursery
        if task is ancestor or nursery is ancestor:
            return True
        task = None if nursery is None else nursery.parent_task
    return False


@attrs.define(eq=False)
class Runner:
    """One runner's task.

    Attributes:
        attempt_id: Its name.
        why: Why it was cancelled, for the log: `aborted`, `shutdown` or `stopped`.
        done: Set when its task has ended.
    """

    attempt_id: str
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    why: str = "aborted"
    done: trio.Event = attrs.field(factory=trio.Event)
    task: trio.lowlevel.Task | None = None

    def cancel(self, why: str) -> None:
        """The runner is cancelled; the first reason counts."""
        if not self.scope.cancel_called:
            self.why = why
            self.scope.cancel()

    def is_current(self) -> bool:
        """Whether the running task is the runner or below it."""
        return self.task is not None and is_below(self.task)


@attrs.define(eq=False)
class Runners:
    """The runners of one session.

    Attributes:
        active: The runner that holds the session's place, or None.
    """

    _nursery: trio.Nursery
    _on_take: Callable[[], None]
    _on_free: Callable[[], None]
    active: Runner | None = None
    _retired: list[Runner] = attrs.field(factory=list)

    def names(self) -> list[str]:
        """The runners that have not ended, retired ones too."""
        return [runner.attempt_id for runner in self._all()]

    def _all(self) -> list[Runner]:
        return [*self._retired, *([] if self.active is None else [self.active])]

    def start(
        self,
        attempt_id: str,
        async_fn: Callable[..., Awaitable[object]],
        *args: Any,  # noqa: ANN401
    ) -> bool:
        """`async_fn(*args)` runs as the session's runner; False if another one is active."""
        if self.active is not None:
            return False
        self.active = Runner(attempt_id)
        self._on_take()
        self._nursery.start_soon(
            self._run, self.active, async_fn, args, name=f"runner {attempt_id}"
        )
        return True

    async def _run(
        self, runner: Runner, async_fn: Callable[..., Awaitable[object]], args: tuple[Any, ...]
    ) -> None:
        runner.task = trio.lowlevel.current_task()
        try:
            with runner.scope:
                await _contained(async_fn, args)
        finally:
            self._free(runner)
            if runner in self._retired:
                self._retired.remove(runner)
            runner.done.set()

    def _free(self, runner: Runner) -> None:
        if self.active is runner:
            self.active = None
            self._on_free()

    async def retire(self, attempt_id: str) -> bool:
        """The runner of that name gives up its place; False if it is not the active one.

        From outside its task is waited for, not cancelled. From the runner itself, or a
        task below it, this returns at once and the task goes on to its end.
        """
        runner = self.active
        if runner is None or runner.attempt_id != attempt_id:
            await trio.lowlevel.checkpoint()
            return False
        if runner.is_current():
            self._retired.append(runner)
            self._free(runner)
            await trio.lowlevel.checkpoint()
        else:
            await runner.done.wait()
        return True

    async def abort(self, why: str) -> None:
        """The active runner is cancelled and, unless that is the caller itself, joined."""
        runner = self.active
        if runner is None:
            await trio.lowlevel.checkpoint()
            return
        runner.cancel(why)
        if not runner.is_current():
            await runner.done.wait()

    async def end(self, why: str) -> None:
        """Every runner is cancelled, retired ones too, and joined."""
        runners = self._all()
        for runner in runners:
            runner.cancel(why)
        for runner in runners:
            await runner.done.wait()

    async def quiesce(self, why: str) -> None:
        """The active runner is cancelled, retired ones get `RETIRED_GRACE_S`; all are joined."""
        retired = tuple(self._retired)
        await self.abort(why)
        with trio.move_on_after(RETIRED_GRACE_S):  # noqa: ASYNC912 - none may be left
            for runner in retired:
                await runner.done.wait()
        for runner in retired:
            runner.cancel(why)
            await runner.done.wait()


async def _contained(async_fn: Callable[..., Awaitable[object]], args: tuple[Any, ...]) -> None:
    """A failing runner ends; its session, and every other, goes on."""
    try:
        await async_fn(*args)
    except* Exception:  # noqa: BLE001 - the boundary of a session
        _LOG.exception("a runner failed", extra={"action": "runner_failed"})
