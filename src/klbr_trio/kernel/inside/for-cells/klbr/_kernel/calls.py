"""Calls to the host: tagged with the running cell, answered in any thread and any event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from typing import TYPE_CHECKING

from klbr._kernel.channel import encode

if TYPE_CHECKING:
    from klbr._kernel.channel import Channel
    from klbr._kernel.interrupts import Interrupts

    Answer = concurrent.futures.Future[object]


class Refused(RuntimeError):
    """What was asked for is not allowed; the text says why."""


class Calls:
    """The open calls, and which cell new ones belong to.

    One lock covers both the running cell's number and the socket, so that no frame of a cell is
    sent after that cell's `done`.
    """

    def __init__(self, channel: Channel, interrupts: Interrupts) -> None:
        self._channel = channel
        self._interrupts = interrupts
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._open: dict[int, Answer] = {}
        self._count = 0
        self.cell: int | None = None
        """The running cell's number."""
        self.last = 0
        """The number of the last cell that has begun."""

    def begin(self, cell: int) -> None:
        with self._lock:
            self.cell = self.last = cell

    def end(self, done: dict[str, object]) -> None:
        """Sends `done`; from here on calls are refused."""
        frame = encode(done)
        with self._lock:
            self.cell = None
            self._channel.send(frame)

    def tell(self, message: dict[str, object]) -> None:
        with self._lock:
            self._channel.send(encode(message))

    def call(self, target: str, args: dict[str, object]) -> Answer:
        """Sends a call; the future has the host's answer.

        Raises:
            RuntimeError: No cell is running, or this is a forked child.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(f"{target} cannot be used in a forked child process")
        answer: Answer = concurrent.futures.Future()
        answer.set_running_or_notify_cancel()  # an awaiter that gives up can't cancel it
        with self._interrupts.held(), self._lock:
            if self.cell is None:
                raise RuntimeError(f"{target} works only while a cell is running")
            number = self._count + 1
            frame = encode(
                {"op": "call", "rid": number, "cell": self.cell, "target": target, "args": args}
            )
            self._count = number
            self._open[number] = answer
            self._channel.send(frame)
        return answer

    def answer(self, reply: dict[str, object]) -> None:
        """Completes the call that `reply` answers."""
        answer = self._open.pop(reply["rid"], None)  # type: ignore[call-overload]  # the host's int
        if answer is None:
            return
        if reply["ok"]:
            answer.set_result(reply["value"])
        elif reply["error_type"] == "ValueError":
            answer.set_exception(ValueError(reply["error"]))
        else:
            answer.set_exception(Refused(reply["error"]))


_calls: list[Calls] = []  # one, once the worker has connected


def connect(calls: Calls) -> None:
    """Makes `calls` the way that `klbr.local` and `klbr.runtime` take."""
    _calls[:] = [calls]


async def call(target: str, args: dict[str, object]) -> object:
    """Calls the host and waits for its answer."""
    if not _calls:
        raise RuntimeError(f"{target} works only inside a kernel")
    return await asyncio.wrap_future(_calls[0].call(target, args))
