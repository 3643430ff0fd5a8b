"""The story: a conversation, a sleep, a crash in the middle of a turn, and what remains."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs
import trio

from klbr_trio.cli.demo.claims import CannotGoOn, Claims
from klbr_trio.cli.demo.family import Process, alive, descendants
from klbr_trio.cli.demo.stage import SESSION, Record, Seat, Service, take_seat
from klbr_trio.cli.exits import Exit, Problem
from klbr_trio.cli.link import LinkLost, open_link
from klbr_trio.cli.screen import Screen
from klbr_trio.daemon.announcement import read_announcement
from klbr_trio.daemon.folder import StateFolder
from klbr_trio.store import check_file
from klbr_trio.store.lock import holder
from klbr_trio.wire.client import GetSessionStatus, History

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klbr_trio.cli.output import Output

_LONG: Final = "count to 12 slowly"
_COUNTED: Final = ", ".join(map(str, range(1, 13)))
_KEY: Final = "demo-crash"
_DIES_S: Final = 5.0


def demo(*, output: Output, behavior: str | None, keep: bool) -> Exit:
    """Show a service at work and check every claim about it."""
    folder = Path(tempfile.mkdtemp(prefix="klbr-demo-"))
    options = () if behavior is None else ("--behavior", behavior)
    service = Service(StateFolder(folder / "state"), options)
    claims = Claims(output)
    try:
        trio.run(_show, service, claims)
    finally:
        service.clear()
        if keep:
            output.note(f"everything is kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    claims.summary()
    return Exit.CHECK_FAILED if claims.broken else Exit.DONE


async def _show(service: Service, claims: Claims) -> None:
    try:
        await _Story(service, claims, Screen(claims.output, is_silent=claims.output.as_json)).tell()
    except CannotGoOn as exc:
        claims.stop_here(f"{exc}; {_last_line(service.log)}")
    except LinkLost as exc:
        claims.stop_here(f"the connection was lost ({exc.code}); {_last_line(service.log)}")
    except Problem as exc:
        claims.stop_here(str(exc))


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return f"its log ends: {lines[-1]}" if lines else "its log is empty"


@attrs.define(eq=False)
class _Story:
    _service: Service
    _claims: Claims
    _screen: Screen
    _records: dict[int, Record] = attrs.field(factory=dict)

    async def tell(self) -> None:
        """From the first start to the last check."""
        self._claims.tell(
            f"A service starts in {self._service.folder.path}. Its model is a SCRIPT (provider "
            "demo), reached over real HTTP; socket, kernel and store are the real ones."
        )
        await self._start()
        async with take_seat(self._service, self._screen, self._records) as seat:
            await self._greet(seat)
            await self._count(seat)
            await self._sleep(seat)
            await self._crash(seat)
        await self._start_again()
        async with take_seat(self._service, self._screen, self._records) as seat:
            await self._resend(seat)
        await self._end()

    async def _start(self) -> None:
        service = self._service
        await service.start()
        announcement = read_announcement(service.folder.announcement)
        host = None if announcement is None else urlsplit(announcement.url).hostname
        self._claims.check("it listens on this machine's loopback only", host == "127.0.0.1", host)
        owner = holder(service.folder.lock)
        self._claims.check(
            f"process {service.pid} holds the state folder's lock",
            owner is not None and owner.pid == service.pid,
            owner,
        )

    async def _greet(self, seat: Seat) -> None:
        check = self._claims.check
        self._claims.tell("Somebody says hello. Thought, speech and records come as they happen:")
        ack = await seat.send("hello", "demo-hello")
        check("the input was acknowledged as stored, as event 1", ack.get("seq") == 1, ack)
        done = await seat.until_event("turn.completed")
        attempt_id = done["payload"]["attempt_id"]
        lanes = {chunk["lane"] for chunk in seat.chunks}
        wanted = {"reasoning", "scratchpad", "speech"}
        check("its thought and its words came on lanes of their own", wanted <= lanes, lanes)
        said = _said(seat, attempt_id)
        check("it answered, once", len(said) == 1 and said[0].startswith("Hello!"), said)
        check(
            "what was heard live is what the log says it said",
            seat.lane("speech", attempt_id) == "".join(said),
            seat.lane("speech", attempt_id),
        )

    async def _count(self, seat: Seat) -> None:
        self._claims.tell("It counts in Python: the cell's output is a lane, too.")
        await seat.send("count to 5", "demo-count")
        done = await seat.until_event("turn.completed")
        attempt_id = done["payload"]["attempt_id"]
        output, said = seat.lane("output", attempt_id), _said(seat, attempt_id)
        self._claims.check("a real kernel printed 1 to 5", output.split() == list("12345"), output)
        self._claims.check("and it said so", said == ["I counted in Python: 1, 2, 3, 4, 5."], said)

    async def _sleep(self, seat: Seat) -> None:
        check = self._claims.check
        self._claims.tell("It is asked to sleep for two seconds and to come back by itself.")
        await seat.send("wake me in 2 seconds to stretch", "demo-sleep")
        await seat.until_event("turn.completed", outcome="waiting")
        status = await seat.link.ask(GetSessionStatus(session_id=SESSION))
        check("the session is waiting", status["state"] == "waiting", status)
        woken = await seat.until_event("session.woken")
        early_ms = woken["payload"]["wake_at_ms"] - woken["created_ms"]
        check("it woke at its time, not before", early_ms <= 0, early_ms)
        done = await seat.until_event("turn.completed")
        said = _said(seat, done["payload"]["attempt_id"])
        check("and remembered why", said == ["It is time: stretch."], said)
        woken_count = len(seat.events("session.woken"))
        check("it woke once", woken_count == 1, woken_count)

    async def _crash(self, seat: Seat) -> None:
        check, service = self._claims.check, self._service
        self._claims.tell("A longer turn; in the middle of it the service is killed (SIGKILL).")
        ack = await seat.send(_LONG, _KEY)
        check("the input was acknowledged", ack.get("type") == "ack", ack)
        await seat.until(lambda frame: frame.get("lane") == "output" and "3" in frame["delta"])
        family = descendants(service.pid)
        check("a kernel's processes run below the service", len(family) > 0)
        code = await service.end(signal.SIGKILL)
        self._screen.line("(killed)")
        check("the process died of it", code == -signal.SIGKILL, code)
        check("its lock is free", holder(service.folder.lock) is None)
        left = await _survivors(family)
        check("its kernel died with it, and all that it had started", not left, left)

    async def _start_again(self) -> None:
        self._claims.tell("The service is started again on the same folder.")
        before = self._service.pid
        await self._start()
        self._claims.check("it is another process", self._service.pid != before, before)

    async def _resend(self, seat: Seat) -> None:
        check = self._claims.check
        known = dict(self._records)
        stored = await _everything(self._service)
        same = all(stored.get(seq) == record for seq, record in known.items())
        check(f"all {len(known)} events that were seen are there, unchanged", same)
        self._claims.tell("Nobody knows whether the input got through, so it is sent again.")
        first = next(
            seq
            for seq, record in stored.items()
            if record["payload"].get("client_request_id") == _KEY
        )
        ack = await seat.send(_LONG, _KEY)
        check(
            f"the service knows it: it is event {first}, and nothing was stored again",
            ack.get("duplicate") is True and ack.get("seq") == first,
            ack,
        )
        other = await seat.send("something else", _KEY)
        check("the same key with another text is refused", other.get("code") == "conflict", other)
        if not _is_answered(seat.records, first):
            await seat.until(lambda _: _is_answered(seat.records, first))
        self._check_answer(seat, first)

    def _check_answer(self, seat: Seat, seq: int) -> None:
        check = self._claims.check
        inputs = [
            record
            for record in seat.events("input.admitted")
            if record["payload"]["client_request_id"] == _KEY
        ]
        check("the input stands in the log once", len(inputs) == 1, len(inputs))
        broken_off = [record["payload"]["why"] for record in seat.events("turn.interrupted")]
        check("the turn that the crash broke off is on record", broken_off == ["crash"], broken_off)
        said = [
            record["payload"]["text"] for record in seat.events("local.sent") if record["seq"] > seq
        ]
        check(
            "the input was answered after the restart, once",
            said == [f"I counted in Python: {_COUNTED}."],
            said,
        )

    async def _end(self) -> None:
        check, service = self._claims.check, self._service
        self._claims.tell("The service is asked to end (SIGTERM).")
        family = descendants(service.pid)
        code = await service.end(signal.SIGTERM)
        check("it ended in good order, with exit code 0", code == 0, code)
        check("it left no announcement behind", not service.folder.announcement.exists())
        left = await _survivors(family)
        check("nor any process", not left, left)
        findings = check_file(service.folder.database)
        check("every invariant of the store holds", not findings, findings)


async def _survivors(family: set[Process]) -> set[Process]:
    """Those that have not died within the time that dying may take."""
    with trio.move_on_after(_DIES_S):
        while True:
            await trio.sleep(0.05)
            if not alive(family):
                break
    return alive(family)


def _said(seat: Seat, attempt_id: str) -> list[str]:
    return [
        record["payload"]["text"]
        for record in seat.events("local.sent")
        if record["payload"]["attempt_id"] == attempt_id
    ]


def _is_answered(records: Mapping[int, Record], seq: int) -> bool:
    """Whether a turn has completed after that event."""
    return any(
        number > seq and record["kind"] == "turn.completed" for number, record in records.items()
    )


async def _everything(service: Service) -> dict[int, Record]:
    """The session's whole log, read back over a connection of its own."""
    found: dict[int, Record] = {}
    async with open_link(service.places()) as link:
        await link.send(History(session_id=SESSION, before_seq=2**31, limit=1000))
        while (frame := await link.receive()).get("type") != "sync_completed":
            if frame.get("type") == "event":
                found[frame["record"]["seq"]] = frame["record"]
    return found
