"""Owns one kernel's processes and tasks, from its start to the end of the last process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from klbr_trio.errors import KernelStartFailed
from klbr_trio.kernel.channel import Channel
from klbr_trio.kernel.kernel import Kernel
from klbr_trio.kernel.messages import Hello, ProtocolViolation, StartFailed
from klbr_trio.kernel.network.proxy import Proxy, Rules
from klbr_trio.kernel.output import Output
from klbr_trio.kernel.warden import END_S, Killed, launch

if TYPE_CHECKING:
    from klbr_trio.kernel.config import KernelSpec, WorkerConfig
    from klbr_trio.kernel.network.way_out import Exit
    from klbr_trio.kernel.warden import Launched, Warden

logger = logging.getLogger("klbr_trio.kernel")

_LAST_WORDS_S = 0.25
"""How long the channel's end and the warden's report of an exit wait for each other."""


async def run_kernel(
    config: WorkerConfig,
    spec: KernelSpec,
    *,
    task_status: trio.TaskStatus[Kernel] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Starts a kernel and stays until it is dead; then none of its processes is left.

    Start it with `nursery.start`, which gives the kernel once it is ready. A kernel that dies
    afterwards is no error here: this function just returns.

    Args:
        config: This machine's settings.
        spec: What the kernel is to be.
        task_status: Told the kernel when it is ready.

    Raises:
        KernelStartFailed: It did not become ready, or found another release than `spec` states.

    Cancellation: kills the kernel; its processes are gone when Cancelled goes on (six seconds
    at most, whatever happens).
    """
    launched = launch(config, spec)
    output = Output(launched.output, config.output_bytes, config.flood_bytes)
    channel = Channel.over(launched.channel)
    kernel = Kernel(config, channel=channel, output=output, warden=launched.warden)
    launched.warden.on_breach = kernel.break_limit
    ready = False
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_frames, kernel, channel, launched.warden)
            nursery.start_soon(_watch_warden, kernel, channel, launched.warden)
            nursery.start_soon(output.pump)
            nursery.start_soon(kernel.send_interrupts)
            if launched.exit.exists:
                nursery.start_soon(_let_out, kernel, launched.exit, config, spec)
            await _become_ready(kernel, channel, launched, config=config, spec=spec)
            if kernel.alive:
                ready = True
                task_status.started(kernel)
                nursery.start_soon(kernel.rest_at_last)
                await kernel.doomed.wait()
            nursery.cancel_scope.cancel()
    except* Exception:
        logger.exception("a kernel's supervisor failed", extra={"action": "kernel_failed"})
        kernel.doom("an internal error of the service")
    finally:
        kernel.doom("the kernel was shut down")
        killed = Killed(processes=0, survivors=(launched.warden.pid,), ms=END_S * 1000)
        with trio.move_on_after(END_S, shield=True):
            killed = await launched.warden.end()
        launched.exit.close()
        _bury(kernel, killed, warden=launched.warden, channel=channel, output=output)
    if not ready:
        raise KernelStartFailed(_start_failure(kernel, output))


async def _become_ready(
    kernel: Kernel, channel: Channel, launched: Launched, *, config: WorkerConfig, spec: KernelSpec
) -> None:
    """The kernel is ready, or doomed."""
    with trio.move_on_after(config.start_seconds):
        await channel.send(launched.start)
        await kernel.greeted.wait()
        if kernel.alive:
            await launched.warden.announced.wait()
    match kernel.greeting:
        case Hello(digest=digest) if digest == spec.digest:
            pass
        case Hello(digest=digest):
            kernel.doom(f"it found the release {digest[:80]}, not {spec.digest}")
        case StartFailed(error=error):
            kernel.doom(error)
        case None:
            kernel.doom(f"it was not ready within {config.start_seconds:g} s")


async def _let_out(kernel: Kernel, way_out: Exit, config: WorkerConfig, spec: KernelSpec) -> None:
    """Serves the kernel's proxy."""
    rules = Rules(session=spec.workspace.name, domains=config.domains, password=way_out.password)
    try:
        listener = await way_out.listener()
    except OSError as error:
        kernel.doom(f"its network can't be set up: {error}", by_itself=True)
        return
    await Proxy(rules).serve(listener)


def _start_failure(kernel: Kernel, output: Output) -> str:
    written = output.background.strip()
    return f"the kernel did not start: {kernel.why}" + (f"\n{written}" if written else "")


async def _read_frames(kernel: Kernel, channel: Channel, warden: Warden) -> None:
    try:
        while (message := await channel.receive()) is not None:
            await kernel.accept(message)
    except ProtocolViolation as error:
        kernel.doom(f"protocol violation: {error}", by_itself=True)
        return
    with trio.move_on_after(_LAST_WORDS_S):
        await warden.worker_ended.wait()
    kernel.doom(warden.how_worker_ended() or "it closed its channel", by_itself=True)


async def _watch_warden(kernel: Kernel, channel: Channel, warden: Warden) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch_worker, kernel, channel, warden)
        await warden.listen()
        if not warden.worker_ended.is_set():
            kernel.doom(await warden.how_warden_ended(), by_itself=True)


async def _watch_worker(kernel: Kernel, channel: Channel, warden: Warden) -> None:
    await warden.worker_ended.wait()
    with trio.move_on_after(_LAST_WORDS_S):  # a `done` that it has sent before counts
        await channel.ended.wait()
    kernel.doom(warden.how_worker_ended() or "", by_itself=True)


def _bury(
    kernel: Kernel, killed: Killed, *, warden: Warden, channel: Channel, output: Output
) -> None:
    """Nothing of the kernel is open, and everyone who waits for its end is told."""
    if killed.survivors:
        logger.error(
            "processes survive a kernel: %s", killed.survivors, extra={"action": "kernel_survives"}
        )
    output.close()
    channel.close()
    warden.close()
    logger.info("a kernel is gone: %s", kernel.why, extra={"action": "kernel_gone"})
    kernel.bury(killed)
