"""A running kernel: one namespace, one cell at a time.

Made by `run_kernel`, which owns its processes. What becomes of a kernel is a state of this
object, not an error of whoever holds it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from klbr_trio.errors import CallRefused
from klbr_trio.kernel.cell import CellResult, RunningCell
from klbr_trio.kernel.messages import Call, Done, Hello, ProtocolViolation, StartFailed, printable
from klbr_trio.kernel.warden import END_S

if TYPE_CHECKING:
    from klbr_trio.kernel.channel import Channel
    from klbr_trio.kernel.config import WorkerConfig
    from klbr_trio.kernel.limits import Breach
    from klbr_trio.kernel.messages import Message
    from klbr_trio.kernel.output import Output
    from klbr_trio.kernel.warden import Killed, Warden

logger = logging.getLogger("klbr_trio.kernel")

OnCall: TypeAlias = Callable[[str, Mapping[str, object]], Awaitable[object]]
_LONGEST_REFUSAL: Final = 4096
_INTERRUPT_EVERY_S: Final = 0.1


class Kernel:
    """The host's face of one kernel."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        channel: Channel,
        output: Output,
        warden: Warden,
    ) -> None:
        self._config = config
        self._channel = channel
        self._output = output
        self._warden = warden
        self._why: str | None = None
        self._by_itself = False
        self._killed: Killed | None = None
        self._cell: RunningCell | None = None
        self._cells = 0
        self._left_behind = (0, 0)
        self._greeting: Hello | StartFailed | None = None
        self._interrupts, self._to_interrupt = trio.open_memory_channel[int](1)
        self.greeted = trio.Event()
        """Set once the kernel has said whether it is ready, or is doomed."""
        self.doomed = trio.Event()
        """Set once it is known that the kernel ends, and why."""
        self._gone = trio.Event()
        self._used_at = trio.current_time()
        self.rested = False
        """Whether it ended since nobody had used it for long."""

    def __repr__(self) -> str:
        threads, tasks = self._left_behind
        state = "busy" if self.busy else "idle"
        if self.why is not None:
            state = f"dead: {self.why}"
        return (
            f"<Kernel pid={self.pid} {state}, {self._cells} cells, "
            f"{threads} threads and {tasks} tasks in the background>"
        )

    @property
    def alive(self) -> bool:
        return self._why is None

    @property
    def why(self) -> str | None:
        """Why it is gone; None while it lives."""
        return self._why

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._warden.worker or 0

    @property
    def greeting(self) -> Hello | StartFailed | None:
        """The kernel's first message."""
        return self._greeting

    @property
    def digest(self) -> str:
        """The digest of the release that the kernel has found and runs."""
        assert isinstance(self._greeting, Hello)
        return self._greeting.digest

    @property
    def busy(self) -> bool:
        """Whether a cell is running."""
        return self._cell is not None

    @property
    def background(self) -> str:
        """What was written since the last cell has ended; it is part of the next cell's output."""
        return self._output.background

    async def run(
        self,
        call_id: str,
        code: str,
        *,
        on_call: OnCall,
        on_output: Callable[[str], None],
        timeout_s: float | None = None,
    ) -> CellResult:
        """Runs one cell to its end.

        Args:
            call_id: What the cell is called in the log.
            code: The cell.
            on_call: Awaited for each call the cell makes, one after another, in the order made.
                What it returns is the cell's answer. `CallRefused` and `ValueError` become the
                cell's exceptions; any other error ends the kernel and comes out of `run`.
            on_output: Given the output as it comes.
            timeout_s: How long the cell may run, instead of the setting.

        Raises:
            trio.BusyResourceError: Another cell is running.

        Durability: nothing is stored here; a call is answered when `on_call` has returned.
        Cancellation: the kernel is killed, and gone when Cancelled goes on.
        """
        if self._cell is not None:
            raise trio.BusyResourceError("another cell is running in this kernel")
        self._cells += 1
        cell = self._cell = RunningCell(self._cells)
        self._warden.note_busy(busy=True)
        self._output.begin(on_output, on_flood=lambda: cell.break_limit(self._flood_limit))
        finished = False
        try:
            logger.debug("a cell runs", extra={"action": "cell_started", "call": call_id})
            await self._drive(
                cell,
                code=code,
                answer=lambda call: self._answer(call, on_call),
                limit_s=self._config.cell_seconds if timeout_s is None else timeout_s,
            )
            finished = True
        finally:
            if not finished:
                with trio.move_on_after(END_S, shield=True):
                    await self.kill("the cell was cancelled")
            cell.close()
            self._warden.note_busy(busy=False)
            self._used_at = trio.current_time()
            output = self._output.finish()
            self._cell = None
        return cell.result(output, died=self._why, by_itself=self._by_itself)

    async def _drive(
        self,
        cell: RunningCell,
        *,
        code: str,
        answer: Callable[[Call], Awaitable[None]],
        limit_s: float,
    ) -> None:
        """Runs `cell` until it is done or the kernel is gone."""
        if self.alive:
            with trio.move_on_after(limit_s):
                await self._channel.send(
                    {"op": "run", "cell": cell.number, "code": printable(code)}
                )
            if cell.limit is None:
                await cell.calls_within(limit_s, answer)
        else:
            cell.abandon()
        if not cell.ended:
            cell.break_limit(f"it ran longer than its limit of {limit_s:g} s")
            self.interrupt()
            await cell.calls_within(self._config.grace_seconds, answer)
        if not cell.ended:
            self.doom(
                f"the cell was killed: {cell.limit}, and did not end when it was interrupted. "
                "The kernel is gone with all variables; files are kept"
            )
        if cell.done is None:
            await self._gone.wait()

    @property
    def _flood_limit(self) -> str:
        return f"it wrote more than its limit of {self._config.flood_bytes:,} bytes of output"

    async def _answer(self, call: Call, on_call: OnCall) -> None:
        reply: dict[str, object] = {"op": "reply", "rid": call.rid}
        try:
            reply |= {"ok": True, "value": await on_call(call.target, call.args)}
        except (CallRefused, ValueError) as error:
            reply |= _refusal(error)
        await self._channel.send(reply)

    def interrupt(self) -> None:
        """The running cell gets a KeyboardInterrupt; without one nothing happens."""
        if self._cell is not None and not self._cell.ended:
            with contextlib.suppress(trio.WouldBlock):  # one is on its way already
                self._interrupts.send_nowait(self._cell.number)

    async def end_cell(self, why: str) -> bool:
        """The running cell has ended, by an interrupt or else with its kernel; False without one.

        Cancellation: the cell ends all the same.
        """
        cell = self._cell
        if cell is None or cell.ended:
            await trio.lowlevel.checkpoint()
            return False
        cell.break_limit(why)
        await cell.over.wait()
        return True

    async def kill(self, why: str) -> Killed:
        """The kernel is killed, and gone with everything that it has started when this returns.

        The kill has begun before the first checkpoint. A kernel that is gone stays as it is.

        Cancellation: the kill goes on.
        """
        self.doom(why)
        await self._gone.wait()
        assert self._killed is not None
        return self._killed

    async def wait_dead(self) -> str:
        """Why the kernel is gone, once every process of it is."""
        await self._gone.wait()
        assert self._why is not None
        return self._why

    def doom(self, why: str, *, by_itself: bool = False) -> None:
        """The kernel is to end, or has been seen to. The first reason stays."""
        if self._why is None:
            self._why = printable(why)
            self._by_itself = by_itself
            self.doomed.set()
            self.greeted.set()
        if self._cell is not None:
            self._cell.abandon()
        self._warden.ask_to_end()

    def break_limit(self, breach: Breach) -> None:
        """The kernel has more than it may: it ends, or the running cell is interrupted."""
        if breach.is_deadly:
            self.doom(f"killed: {breach}", by_itself=True)
        elif self._cell is not None:
            self._cell.break_limit(str(breach))

    def bury(self, killed: Killed) -> None:
        """Every process is gone, or the time for that was over."""
        self._killed = killed
        self._gone.set()

    async def accept(self, message: Message) -> None:
        """Takes one message of the worker.

        Raises:
            ProtocolViolation: No worker sends that at this point.
        """
        match message:
            case Hello() | StartFailed():
                if self._greeting is not None:
                    raise ProtocolViolation("a second greeting")
                self._greeting = message
                self.greeted.set()
            case Done():
                if (cell := self._running(message.cell)) is not None:
                    self._left_behind = (message.threads, message.tasks)
                    cell.finish(message)
            case Call():
                if (cell := self._running(message.cell)) is not None:
                    await cell.add_call(message)
                else:
                    refusal = _refusal(CallRefused("the cell that this call is of has ended"))
                    await self._channel.send({"op": "reply", "rid": message.rid, **refusal})

    async def rest_at_last(self) -> None:
        """Ends the kernel once it has run no cell for as long as the settings say."""
        self._used_at = trio.current_time()
        while self.busy or self._idle_until > trio.current_time():  # noqa: ASYNC110  # until a time
            await trio.sleep(max(self._idle_until - trio.current_time(), 1.0))
        self.rested = True
        self.doom(f"no cell had run in it for {self._config.idle_seconds:g} s")

    @property
    def _idle_until(self) -> float:
        return self._used_at + self._config.idle_seconds

    async def send_interrupts(self) -> None:
        """Passes interrupts on to the worker, for ever.

        Python only looks for a signal between two instructions, so one that comes just before a
        system call waits for its end. Therefore an interrupt is repeated; the worker ignores
        that if the first one has arrived.
        """
        while True:
            number, again = await self._to_interrupt.receive(), False
            while self._running(number) is not None:
                await self._channel.send({"op": "interrupt", "cell": number, "again": again})
                again = True
                with trio.move_on_after(_INTERRUPT_EVERY_S):
                    number, again = await self._to_interrupt.receive(), False

    def _running(self, number: int) -> RunningCell | None:
        """The running cell, if that is its number."""
        cell = self._cell
        return None if cell is None or cell.ended or cell.number != number else cell


def _refusal(error: Exception) -> dict[str, object]:
    kind = "ValueError" if isinstance(error, ValueError) else "Refused"
    return {"ok": False, "error": printable(str(error))[:_LONGEST_REFUSAL], "error_type": kind}
