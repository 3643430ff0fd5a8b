"""Signals: the first asks for an end in good order, the second ends at once."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Final

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

INTERRUPTED: Final = 130
"""The exit code after a second signal."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOG: Final = logging.getLogger("klbr_trio.daemon")


@attrs.define(eq=False)
class Stopping:
    """Whether the process was asked to end.

    Attributes:
        asked: Set at the first signal.
    """

    asked: trio.Event = attrs.field(factory=trio.Event)
    _early: list[int] = attrs.field(factory=list)

    def note_signals(self) -> None:
        """From here on no signal ends the process by itself, in the middle of its start or end.

        Those that come before `listen` runs are kept for it.
        """
        for number in _SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._early.append(number)

    async def listen(
        self, tell: Callable[[str], None], *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Act on signals, until cancelled."""
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            if self._early:
                self._first(self._early[0], tell)
            task_status.started()
            async for number in signals:
                if self.asked.is_set():
                    _end_at_once(number)
                self._first(number, tell)

    def _first(self, number: int, tell: Callable[[str], None]) -> None:
        _LOG.info("stopping: %s", signal.Signals(number).name, extra={"action": "stopping"})
        tell("stopping in good order; once more (Ctrl-C) stops at once")
        self.asked.set()


def _end_at_once(number: int) -> None:
    """The process is gone; its kernels die with it, and its attempts are recovered."""
    _LOG.warning("ended at once by a second %s", signal.Signals(number).name)
    os._exit(INTERRUPTED)
