"""A session's kernel: started when a cell needs it, and gone when it must be."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.errors import KernelStartFailed
from klbr_trio.kernel import Kernel, KernelSpec, WorkerConfig, run_kernel

if TYPE_CHECKING:
    from klbr_trio.kernel import Killed
    from klbr_trio.release import Release

_LOG: Final = logging.getLogger("klbr_trio.sessions")


@attrs.define(eq=False)
class KernelSlot:
    """The place of one session's kernel.

    Kernels run in the registry's nursery: they outlive turns, not their session's Stop.

    Attributes:
        unannounced: Why a kernel is gone that the log still believes in, or None: `died`,
            `release`, `idle`, or at the first turn `restart`, since an earlier registry of this
            store may have had one.
    """

    _nursery: trio.Nursery
    _config: WorkerConfig
    _workspace: Path
    unannounced: str | None = "restart"
    _kernel: Kernel | None = None
    _dying: Kernel | None = None
    _warming: trio.CancelScope | None = None
    _start: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock)

    @property
    def kernel(self) -> Kernel | None:
        """The living kernel, or None."""
        return self._kernel if self._kernel is not None and self._kernel.alive else None

    @property
    def process(self) -> int | None:
        """The process id of a kernel that is not known to be gone."""
        kernel = self._kernel or self._dying
        return None if kernel is None else kernel.pid

    def runs_other_than(self, digest: str) -> bool:
        """Whether a living kernel runs another release."""
        return self.kernel is not None and self.kernel.digest != digest

    def take_note(self) -> str | None:
        """Why a kernel is gone unannounced, now that its end is looked for."""
        if self._kernel is not None and not self._kernel.alive:
            self.unannounced = "idle" if self._kernel.rested else "died"
            self._let_go()
        return self.unannounced

    def is_of(self, kernel: Kernel) -> bool:
        """Whether `kernel` is still the session's: nobody has killed it on purpose."""
        return self._kernel is kernel

    def announced(self) -> None:
        """The log says that the last kernel is gone; the next cell gets a fresh one."""
        if self._kernel is not None and not self._kernel.alive:
            self._let_go()
        self.unannounced = None

    def _let_go(self) -> None:
        self._kernel, self._dying = None, self._kernel

    def retire(self) -> None:
        """The kernel ends, since nothing has used it for long; the next turn tells of it."""
        if self._kernel is not None:
            self._kernel.doom("it had rested for too long")
            self._let_go()
            self.unannounced = "idle"

    def warm(self, release: Release) -> None:
        """A kernel is being started, if none is there: the model is about to need one."""
        if self._kernel is None and self._dying is None and self._warming is None:
            self._warming = trio.CancelScope()
            self._nursery.start_soon(self._warm, release, self._warming, name="kernel start")

    async def _warm(self, release: Release, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self.get(release)
        except KernelStartFailed as exc:
            _LOG.info("a kernel did not start ahead of its cell: %s", exc)
        finally:
            self._warming = None

    async def get(self, release: Release) -> Kernel:
        """A living kernel that runs `release`; at most one of the session lives at a time.

        Raises:
            KernelStartFailed: None came up.

        Cancellation: a kernel that was being started is gone.
        """
        async with self._start:
            if self._kernel is not None and not self._kernel.alive:
                self._let_go()
            if self._kernel is None:
                if self._dying is not None:
                    await self._dying.wait_dead()
                    self._dying = None
                spec = KernelSpec(
                    workspace=self._workspace, release=release.path, digest=release.digest
                )
                self._kernel = await self._nursery.start(run_kernel, self._config, spec)
            assert self._kernel is not None
            return self._kernel

    async def kill(self, why: str, *, unannounced: str | None = None) -> Killed | None:
        """The kernel and everything it started are gone; None if there was none.

        Args:
            why: What a cell that runs is told.
            unannounced: The `why` of the `kernel.reset` that is still to be written.

        Cancellation: the kill goes on.
        """
        if self._warming is not None:
            self._warming.cancel()
            async with self._start:  # what it had started is gone
                pass
        kernel = self._kernel or self._dying
        if kernel is None:
            await trio.lowlevel.checkpoint()
            return None
        # At once, so that a turn whose cell ends by this knows that it was on purpose.
        if self._kernel is not None:
            self._let_go()
            self.unannounced = unannounced or self.unannounced
        killed = await kernel.kill(why)
        if self._dying is kernel:
            self._dying = None
        return killed
