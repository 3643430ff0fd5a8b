"""Runs one cell after another in one namespace, and says what became of each."""

from __future__ import annotations

import builtins
import inspect
import os
import sys
import threading
import traceback
import types
from typing import TYPE_CHECKING, NoReturn, TypeVar

from klbr._kernel import policy, report
from klbr._kernel.calls import Refused
from klbr._kernel.source import Source

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from klbr._kernel.interrupts import Interrupts
    from klbr._kernel.loop import CellLoop
    from klbr._kernel.stdio import Stdio

T = TypeVar("T")

_OWN_THREADS = 2  # the main one and the one that reads the channel


class Cells:
    """The namespace, and the state of the process that cells may have left in disorder."""

    def __init__(
        self, *, loop: CellLoop, interrupts: Interrupts, stdio: Stdio, inside: str
    ) -> None:
        self._loop = loop
        self._interrupts = interrupts
        self._stdio = stdio
        self._inside = inside
        self._pid = os.getpid()
        self._main = types.ModuleType("__main__", None)
        self._worker_main = sys.modules["__main__"]  # kept, or its globals would be cleared
        _adapt_builtins()
        sys.modules["__main__"] = self._main
        self._modules = dict(sys.modules)
        self.namespace["__builtins__"] = builtins

    @property
    def namespace(self) -> dict[str, object]:
        return self._main.__dict__

    def prepare(self) -> None:
        """Puts right what the last cell has left in disorder."""
        for name in self._modules.keys() - sys.modules.keys():
            sys.modules[name] = self._modules[name]
        self._stdio.restore()
        self._loop.ensure()
        self._interrupts.arm()

    def run(self, number: int, code: str) -> dict[str, object]:
        """Runs a cell to its end, after `prepare`; gives its `done` message. Raises nothing."""
        value: str | None = None
        error: str | None = None
        try:
            result = self._evaluate(Source(self._checked(code), name=f"<cell {number}>"))
            value = self._show(result)
        except BaseException as problem:  # noqa: BLE001  # a cell may raise anything; it is reported
            error = self._describe(problem)
        self._leave_if_forked(error)
        self._stdio.flush()
        return {
            "op": "done",
            "cell": number,
            "ok": error is None,
            "value": value,
            "error": error,
            "interrupted": self._interrupts.delivered,
            "threads": max(0, threading.active_count() - _OWN_THREADS),
            "tasks": self._loop.tasks(),
        }

    def _checked(self, code: str) -> str:
        hook = policy.cell_hook()
        if hook is None:
            return code
        asked = hook
        return self._await(lambda: policy.ask(asked, code))

    def _evaluate(self, source: Source) -> object:
        if source.awaits:
            return self._await(lambda: source.run_async(self.namespace))
        return self._loop.context.run(self._interrupts.guarded, lambda: source.run(self.namespace))

    def _await(self, function: Callable[[], Awaitable[T]]) -> T:
        """Awaits `function()` in the persistent loop, where it can be interrupted."""
        outcome: list[T] = []
        problem: list[BaseException] = []

        async def drive() -> None:
            try:
                outcome.append(await self._interrupts.guarded_async(function))
            except BaseException as error:  # noqa: BLE001  # else it would end the loop's run
                problem.append(error)
            if os.getpid() != self._pid:
                self._leave(problem[0] if problem else None)

        task = self._loop.start(drive())
        self._interrupts.task = task
        self._loop.until(task)
        if problem:
            raise problem[0]
        if task.cancelled():  # before its first step
            raise KeyboardInterrupt
        if not outcome:
            raise RuntimeError("the cell's event loop was closed while it ran")
        return outcome[0]

    def _show(self, value: object) -> str | None:
        if value is None:
            return None
        try:
            text = self._interrupts.guarded(lambda: report.value_text(value))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # the object's own repr failed, not the cell
            return f"<{type(value).__name__} object; its repr() failed: {type(error).__name__}>"
        if inspect.iscoroutine(value):
            text += "  # nothing has run yet: write `await` in front of it"
        return text

    def _describe(self, error: BaseException) -> str:
        if isinstance(error, SystemExit):
            return f"SystemExit: {error.code!r}. The kernel goes on; a cell just ends at its last line."
        if isinstance(error, Refused) and error.__traceback__ is not None:
            text = report.error_text(error, inside=self._inside)
            return str(error) if _raised_by_policy(error) else text
        return report.error_text(error, inside=self._inside)

    def _leave_if_forked(self, error: str | None) -> None:
        """A forked child that has come to the end of the cell ends here."""
        if os.getpid() != self._pid:
            if error is not None:
                os.write(2, error.encode(errors="backslashreplace") + b"\n")
            os._exit(1 if error is not None else 0)

    def _leave(self, error: BaseException | None) -> NoReturn:
        if error is not None:
            traceback.print_exception(error)
        os._exit(1 if error is not None else 0)


def _raised_by_policy(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == "policy"


def _adapt_builtins() -> None:
    """What needs a terminal or would end the process says so instead."""

    def no_terminal(*_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(
            "the kernel has no terminal: nobody can be asked, and nothing can be read"
        )

    builtins.input = no_terminal
    sys.breakpointhook = no_terminal
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
