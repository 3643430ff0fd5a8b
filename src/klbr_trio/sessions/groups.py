"""Service tasks: driver, recovery and clients, in groups that are ended one by one."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class ServiceTaskGroup(enum.Enum):
    """What a service task is for; shutdown ends the groups in a fixed order."""

    DRIVER = "driver"  # starts runners and fires deadlines
    RECOVERY = "recovery"  # settles what an earlier service left
    CLIENT = "client"  # serves sockets


@attrs.define(eq=False)
class TaskGroup:
    """The tasks of one group.

    Attributes:
        leave: Set when its tasks are asked to end by themselves.
    """

    _nursery: trio.Nursery
    leave: trio.Event = attrs.field(factory=trio.Event)
    _running: dict[trio.CancelScope, trio.Event] = attrs.field(factory=dict)

    def start(
        self, async_fn: Callable[..., Awaitable[object]], args: tuple[Any, ...], name: str
    ) -> None:
        """`async_fn(*args)` runs until it returns or the group ends.

        Its errors are its own business: one that escapes ends the registry.
        """
        scope = trio.CancelScope()
        self._running[scope] = trio.Event()
        self._nursery.start_soon(self._run, scope, async_fn, args, name=name)

    async def _run(
        self,
        scope: trio.CancelScope,
        async_fn: Callable[..., Awaitable[object]],
        args: tuple[Any, ...],
    ) -> None:
        try:
            with scope:
                await async_fn(*args)
        finally:
            self._running.pop(scope).set()

    async def end(self, *, patience_s: float = 0) -> None:
        """No task of the group is left; they get `patience_s` to end by themselves."""
        self.leave.set()
        if patience_s:
            with trio.move_on_after(patience_s):
                await self._join()
        for scope in tuple(self._running):
            scope.cancel()
        await self._join()

    async def _join(self) -> None:
        for ended in tuple(self._running.values()):
            await ended.wait()
