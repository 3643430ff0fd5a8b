"""A session's kernel: started when a cell needs it, and gone when it must be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from klbr_trio.kernel import Kernel, KernelSpec, WorkerConfig, run_kernel

if TYPE_CHECKING:
    from klbr_trio.kernel import Killed
    from klbr_trio.release import Release


@attrs.define(eq=False)
class KernelSlot:
    """The place of one session's kernel.

    Kernels run in the registry's nursery: they outlive turns, not their session's Stop.
    """

    _nursery: trio.Nursery
    _config: WorkerConfig
    _workspace: Path
    _kernel: Kernel | None = None
    _start: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock)

    @property
    def kernel(self) -> Kernel | None:
        """The kernel that was last started, alive or dead, until it is forgotten."""
        return self._kernel

    def has_died(self) -> bool:
        """Whether there was a kernel and it is gone, unannounced."""
        return self._kernel is not None and not self._kernel.alive

    def runs_other_than(self, digest: str) -> bool:
        """Whether a living kernel runs another release."""
        kernel = self._kernel
        return kernel is not None and kernel.alive and kernel.digest != digest

    def forget(self) -> None:
        """The kernel's end has been announced; the next cell gets a fresh one."""
        self._kernel = None

    async def get(self, release: Release) -> Kernel:
        """A living kernel that runs `release`.

        Raises:
            KernelStartFailed: None came up.

        Cancellation: a kernel that was being started is gone.
        """
        async with self._start:
            kernel = self._kernel
            if kernel is None or not kernel.alive:
                spec = KernelSpec(
                    workspace=self._workspace, release=release.path, digest=release.digest
                )
                kernel = await self._nursery.start(run_kernel, self._config, spec)
                self._kernel = kernel
            return kernel

    async def kill(self, why: str) -> Killed | None:
        """The kernel and everything it started are gone; None if there was none."""
        kernel = self._kernel
        if kernel is None:
            await trio.lowlevel.checkpoint()
            return None
        killed = await kernel.kill(why)
        if self._kernel is kernel:
            self._kernel = None
        return killed
