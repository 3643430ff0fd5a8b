"""The stage: a service in a process of its own, and one connection that follows a session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from klbr_trio.cli.demo.claims import CannotGoOn
from klbr_trio.cli.link import Link, check, open_link
from klbr_trio.cli.place import Place, find_places
from klbr_trio.cli.screen import Screen
from klbr_trio.cli.settings import resolve
from klbr_trio.daemon.announcement import read_announcement
from klbr_trio.daemon.folder import StateFolder
from klbr_trio.wire.client import SendInput, Subscribe

if TYPE_CHECKING:
    import signal
    from pathlib import Path

SESSION: Final = "demo"
PATIENCE_S: Final = 60.0
"""Far longer than anything here takes on a slow machine."""

_LOOK_S: Final = 0.05
_OTHERS_SETTINGS: Final = ("KLBR_", "OPENAI_")

Record = Mapping[str, Any]


@attrs.define(eq=False)
class Service:
    """A service's process on one state folder, started as often as wanted."""

    folder: StateFolder
    options: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process that runs now, or ran last."""
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> Path:
        """What the service writes to stderr."""
        return self.folder.path.with_name(self.folder.path.name + ".log")

    async def start(self) -> None:
        """A new process is ready.

        Raises:
            CannotGoOn: It ended, or did not become ready.
        """
        self.process = process = self._spawn()
        with trio.move_on_after(PATIENCE_S):
            while True:
                await trio.sleep(_LOOK_S)
                if self._is_ready():
                    return
                if process.poll() is not None:
                    raise CannotGoOn(f"the service ended with {process.returncode}")
        raise CannotGoOn(f"the service was not ready within {PATIENCE_S:.0f} s")

    def _spawn(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "klbr_trio", "serve", "--state", str(self.folder.path)]
        argv += ["--listen", "127.0.0.1:0", "--provider", "demo", *self.options]
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_OTHERS_SETTINGS)
        }
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C is for the demonstration, which ends it in order.
            return subprocess.Popen(  # noqa: S603 - our own command
                argv, env=environ, stdout=log, stderr=log, start_new_session=True
            )

    def _is_ready(self) -> bool:
        announcement = read_announcement(self.folder.announcement)
        return announcement is not None and announcement.pid == self.pid

    async def end(self, number: signal.Signals) -> int:
        """Send the process a signal; what it ended with.

        Raises:
            CannotGoOn: It did not end.
        """
        assert self.process is not None
        self.process.send_signal(number)
        with trio.move_on_after(PATIENCE_S):
            return await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)
        raise CannotGoOn(f"the service did not end within {PATIENCE_S:.0f} s")

    def clear(self) -> None:
        """No process is left; at the end of the demonstration, however it ended."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def places(self) -> list[Place]:
        """The ways to it."""
        return find_places(resolve({"state": str(self.folder.path)}, {}))


@attrs.define(eq=False)
class Seat:
    """Follows the demonstration's session over one connection, and shows it.

    Attributes:
        records: The session's events by number, over all connections.
        chunks: The live chunks of this connection.
    """

    link: Link
    screen: Screen
    records: dict[int, Record]
    chunks: list[Record] = attrs.field(factory=list)

    async def send(self, text: str, key: str) -> Record:
        """What the service answers to an input."""
        message = SendInput(session_id=SESSION, source="demo", text=text, client_request_id=key)
        request_id = await self.link.send(message)
        return await self.until(lambda frame: frame.get("request_id") == request_id)

    async def until(self, reached: Callable[[Record], bool]) -> Record:
        """The next frame that is `reached`; everything up to it is shown.

        Raises:
            CannotGoOn: It did not come.
        """
        with trio.move_on_after(PATIENCE_S):
            while True:
                frame = await self.link.receive()
                self._take(frame)
                if reached(frame):
                    return frame
        raise CannotGoOn(f"something expected did not come within {PATIENCE_S:.0f} s")

    async def until_event(self, kind: str, **payload: object) -> Record:
        """The next event of that kind with those values in its payload."""

        def reached(frame: Record) -> bool:
            record = frame.get("record")
            return (
                record is not None
                and record["kind"] == kind
                and all(record["payload"].get(name) == value for name, value in payload.items())
            )

        frame = await self.until(reached)
        record: Record = frame["record"]
        return record

    def _take(self, frame: Record) -> None:
        if frame.get("type") == "event":
            self.records[frame["record"]["seq"]] = frame["record"]
        elif frame.get("type") == "live_chunk":
            self.chunks.append(frame)
        self.screen.frame(frame)

    def lane(self, lane: str, attempt_id: str) -> str:
        """Everything that an attempt streamed on a lane."""
        return "".join(
            chunk["delta"]
            for chunk in self.chunks
            if (chunk["lane"], chunk["attempt_id"]) == (lane, attempt_id)
        )

    def events(self, kind: str) -> list[Record]:
        """The events of that kind so far, in order."""
        return [
            self.records[seq] for seq in sorted(self.records) if self.records[seq]["kind"] == kind
        ]


@asynccontextmanager
async def take_seat(
    service: Service, screen: Screen, records: dict[int, Record]
) -> AsyncGenerator[Seat]:
    """A connection that follows the session from the newest of `records` on."""
    async with open_link(service.places()) as link:
        seat = Seat(link, screen, records)
        await link.send(Subscribe(session_id=SESSION, after_seq=max(records, default=0)))
        check(
            dict(await seat.until(lambda frame: frame.get("type") in ("sync_completed", "error")))
        )
        yield seat
