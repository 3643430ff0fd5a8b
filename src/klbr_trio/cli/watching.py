"""`klbr watch` and `klbr history`: a session as it happens and as it was."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

import attrs
import trio

from klbr_trio.cli.exits import Exit, Problem
from klbr_trio.cli.link import check
from klbr_trio.cli.output import Output
from klbr_trio.cli.persist import once, persist
from klbr_trio.cli.records import record_text
from klbr_trio.cli.screen import Screen
from klbr_trio.cli.settings import here
from klbr_trio.cli.terminal import to_json
from klbr_trio.domain.ids import parse_session_id
from klbr_trio.wire.client import PAGE_MAX, GetSessionStatus, History, Subscribe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klbr_trio.cli.link import Frame, Link
    from klbr_trio.cli.settings import Settings


def watch(session: str, *, last: int, output: Output, flags: Mapping[str, object]) -> Exit:
    """Show a session as it happens, until nobody looks any more."""
    watching = _Watching(parse_session_id(session), last, output, Screen(output))
    trio.run(_while_read, here(flags), watching)
    return Exit.DONE


def history(
    session: str,
    *,
    before: int | None,
    limit: int | None,
    output: Output,
    flags: Mapping[str, object],
) -> Exit:
    """Show a part of a session's log, oldest first."""
    reading = _Reading(parse_session_id(session), before, limit, output)
    trio.run(once, here(flags), reading.talk)
    return Exit.DONE


async def _while_read(settings: Settings, watching: _Watching) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until_unread, nursery.cancel_scope)
        await persist(settings, watching.talk)


async def _until_unread(scope: trio.CancelScope) -> None:
    """Cancel `scope` when stdout is a pipe whose reader has gone."""
    fd = sys.stdout.fileno()
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        # A pipe's writing end is never readable: this returns when its reader goes.
        await trio.lowlevel.wait_readable(fd)
        scope.cancel()


@attrs.define(eq=False)
class _Watching:
    """One session being watched.

    Attributes:
        cursor: The newest event that was shown.
    """

    session_id: str
    last: int
    output: Output
    screen: Screen
    cursor: int = 0

    async def talk(self, link: Link) -> None:
        """Follow the session from the cursor on, until the connection ends."""
        request = Subscribe(session_id=self.session_id, after_seq=self.cursor, limit=self.last)
        if self.cursor == 0 and self.last == 0:
            self.output.note(f"watching {self.session_id} from here on")
        await link.send(request)
        while True:
            frame = await link.receive()
            check(frame)
            if frame.get("type") == "event":
                if frame["record"]["seq"] <= self.cursor:
                    continue
                self.cursor = frame["record"]["seq"]
            elif frame.get("type") == "sync_completed":
                # An empty window, too, is followed from its end on.
                self.cursor = max(self.cursor, frame["to_seq"])
            self.screen.frame(frame)


@attrs.define(eq=False)
class _Reading:
    """A range of a log being read, a page at a time."""

    session_id: str
    before: int | None
    limit: int | None
    output: Output
    _count: int = 0

    async def talk(self, link: Link) -> None:
        """Print the range."""
        status = await link.ask(GetSessionStatus(session_id=self.session_id))
        end = status["head_seq"] + 1
        if self.before is not None:
            end = min(end, self.before)
        first = 1 if self.limit is None else max(1, end - self.limit)
        if self.output.as_json:
            head = to_json({"session_id": self.session_id})
            self.output.write(head.removesuffix("}") + ',"events":[')
        while first < end:
            stop = min(end, first + PAGE_MAX)
            await self._page(link, stop, stop - first)
            first = stop
        if self.output.as_json:
            self.output.write("]}\n")

    async def _page(self, link: Link, before: int, limit: int) -> None:
        request_id = await link.send(
            History(session_id=self.session_id, before_seq=before, limit=limit)
        )
        check(await link.reply(request_id))
        while (frame := await link.receive()).get("type") != "sync_completed":
            check(frame)
            if frame.get("type") == "event":
                self._show(frame["record"])
        if frame.get("request_id") != request_id:
            raise Problem(Exit.FAILED, "the service's answers are out of order")

    def _show(self, record: Frame) -> None:
        if self.output.as_json:
            self.output.write(("," if self._count else "") + to_json(record))
        else:
            self.output.write(self.output.shown(record_text(record)) + "\n")
        self._count += 1
