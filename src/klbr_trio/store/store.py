"""The store: one owner of one file, with every durable step as a method.

Writes go through the writer and return once they are committed. Reads come from a
read-only connection and see every commit that has returned. `ticket` ends with a
session's next commit; `watch` tells in-process followers what a commit left.

Size: one method a durable step or question, each a line or two; split, it would only
be harder to find them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import trio

from klbr_trio.domain.clock import wall_now_ms
from klbr_trio.domain.ids import parse_session_id
from klbr_trio.domain.text import check_text
from klbr_trio.errors import RequestError, StoreBroken, StoreForeign, UnknownSession, sole
from klbr_trio.store import (
    admission,
    calls,
    deadlines,
    failures,
    interrupts,
    lock,
    notes,
    operator,
    turns,
)
from klbr_trio.store.bells import Bells
from klbr_trio.store.opening import open_writing, refuse_foreign
from klbr_trio.store.points import CommitPoint
from klbr_trio.store.reader import PAGE, PAGE_BYTES, Reader, connect_readonly
from klbr_trio.store.turns import Turn
from klbr_trio.store.writer import BUSY_S, Writer
from klbr_trio.wire.records import decode_event

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping, Sequence

    from klbr_trio.domain.events import (
        CellFinished,
        CellRequested,
        Event,
        LocalSent,
        ReplyReceived,
    )
    from klbr_trio.domain.frontier import Frontier
    from klbr_trio.domain.work import WorkItem
    from klbr_trio.store.admission import Admission, Input
    from klbr_trio.store.bells import Ticket
    from klbr_trio.store.failures import Failure
    from klbr_trio.store.interrupts import CrashRule
    from klbr_trio.store.reader import NumberedWork, OpenAttempt, Status
    from klbr_trio.store.rows import EventRow, SessionRow
    from klbr_trio.store.turns import Results, WaitFor
    from klbr_trio.store.tx import Tx
    from klbr_trio.store.written import Counter

    Watcher = Callable[[Mapping[str, SessionRow]], None]

T = TypeVar("T")

_NO_ID: Final = "zzzz"


@attrs.frozen
class Claim:
    """What became of a claim.

    Attributes:
        turn: The open attempt, or None when the item could not be claimed.
    """

    turn: Turn | None

    @property
    def is_claimed(self) -> bool:
        """Whether the item now belongs to the attempt."""
        return self.turn is not None


@attrs.define(eq=False)
class Store:
    """One open store; make it with `open`.

    Attributes:
        path: The database file.
        boot: The number of this opening; 1 for a new store.
    """

    path: Path
    boot: int
    now_ms: Callable[[], int]
    _writer: Writer
    _reader: Reader
    _bells: Bells
    _watchers: list[Watcher]

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        path: Path | str,
        *,
        now_ms: Callable[[], int] = wall_now_ms,
        on_commit: Callable[[str], None] | None = None,
        lock_path: Path | str | None = None,
        busy_s: float = BUSY_S,
    ) -> AsyncGenerator[Store]:
        """The store at `path` is ours inside the block; it is made if it is missing.

        Args:
            path: The database file; its folder is made if it is missing.
            now_ms: The clock of everything written.
            on_commit: Called with `before:` and `after:` and the label of a commit
                point, around each commit; it may end the process, nothing else.
            lock_path: The lock file; by default beside the database.
            busy_s: How long a write waits while another process holds the file.

        Raises:
            StoreLocked: Another process (or opening) owns it; the message names it.
            StoreTooNew: A newer version has changed it.
            StoreForeign: It is not a store, or can't be opened for writing.
            StoreUnavailable: It can't be written at the moment.
            StoreBroken: The file is corrupt; also out of the block, when that turns out.

        Durability: leaving the block commits what was asked for before.
        """
        path = Path(path)
        _make_folder(path.parent)
        refuse_foreign(path)
        lock_file = Path(lock_path) if lock_path else path.with_name(path.name + ".lock")
        with lock.hold(lock_file):
            conn, boot = open_writing(path, now_ms(), busy_s=busy_s)
            with (
                contextlib.closing(conn),
                contextlib.closing(Reader(connect_readonly(path))) as reader,
            ):
                watchers: list[Watcher] = []
                bells = Bells()

                def publish(touched: Mapping[str, SessionRow]) -> None:
                    for watcher in tuple(watchers):
                        watcher(touched)
                    bells.ring(touched)

                writer = Writer(conn, boot, now_ms, on_commit or _ignore, publish, busy_s)
                store = cls(path, boot, now_ms, writer, reader, bells, watchers)
                async with _writing(writer):
                    yield store

    # Questions

    @property
    def trouble(self) -> str | None:
        """Why the last write failed, or None while writing works."""
        return self._writer.trouble

    async def history(self, session_id: str, after_seq: int, limit: int) -> list[Event]:
        """At most `limit` events after `after_seq`, oldest first; [] for an unknown session."""
        found: list[Event] = []
        while len(found) < limit:
            await trio.lowlevel.checkpoint()
            at = found[-1].seq if found else after_seq
            rows = self._reader.page(session_id, at, min(PAGE, limit - len(found)), PAGE_BYTES)
            found.extend(
                decode_event(row.seq, row.session_id, row.kind, row.payload, row.created_ms)
                for row in rows
            )
            if not rows:
                break
        return found

    async def pending(self, session_id: str, limit: int) -> list[int]:
        """The seqs of inputs whose work item is pending or claimed, ascending."""
        await trio.lowlevel.checkpoint()
        return self._reader.pending_inputs(session_id, limit)

    async def session_state(self, session_id: str) -> tuple[str, int | None] | None:
        """The stored state and the armed deadline, or None for an unknown session."""
        await trio.lowlevel.checkpoint()
        row = self._reader.session(session_id)
        return None if row is None else (row.state_name, row.wake_at_ms)

    async def get_work_item(self, item_id: str) -> WorkItem | None:
        """The item of that id, or None."""
        await trio.lowlevel.checkpoint()
        return self._reader.work(item_id)

    async def pending_work_items(self, session_id: str) -> list[WorkItem]:
        """The session's pending items, oldest first."""
        found: list[WorkItem] = []
        after = 0
        while rows := await _unhurried(self._reader.pending_work, session_id, after, PAGE):
            found += [row.item for row in rows]
            after = rows[-1].n
        return found

    async def all_pending_work_items(self) -> list[WorkItem]:
        """The pending items of all sessions, oldest first."""
        found: list[NumberedWork] = []
        after = ("", 0)
        while rows := await _unhurried(self._reader.all_pending_work, after, PAGE):
            found += rows
            after = (str(rows[-1].item.session_id), rows[-1].n)
        return [row.item for row in sorted(found, key=lambda row: row.n)]

    def work_item(self, item_id: str) -> WorkItem | None:
        """The item of that id, or None, at once."""
        return self._reader.work(item_id)

    def row(self, session_id: str) -> SessionRow | None:
        """The session's facts now, or None."""
        return self._reader.session(session_id)

    def status(self, session_id: str) -> Status | None:
        """The session's facts with what is pending, or None."""
        return self._reader.status(session_id)

    def statuses(self, after: str, limit: int) -> list[Status]:
        """The facts of the sessions after `after`, ascending by id."""
        return self._reader.statuses(after, limit)

    def event_rows(self, session_id: str, after_seq: int, limit: int) -> list[EventRow]:
        """At most `limit` stored events after `after_seq`, payloads as the wire carries them."""
        return self._reader.events(session_id, after_seq, limit)

    def page(self, session_id: str, after_seq: int, limit: int, max_bytes: int) -> list[EventRow]:
        """As `event_rows`, but the page ends with the event that brings it to `max_bytes`."""
        return self._reader.page(session_id, after_seq, limit, max_bytes)

    def earliest_seq(self, session_id: str) -> int | None:
        """The seq of the earliest event that is still there."""
        return self._reader.earliest_seq(session_id)

    def head(self, session_id: str) -> int:
        """The newest event's seq; 0 for none."""
        return self._reader.head(session_id)

    def frontier(self, session_id: str) -> Frontier | None:
        """The newest fold, or None."""
        return self._reader.frontier(session_id)

    def is_runnable(self, session_id: str) -> bool:
        """Whether the session is not stopped, has no open attempt and has a pending item."""
        return self._reader.is_runnable(session_id)

    def runnable(self, after: str, limit: int) -> list[str]:
        """The runnable sessions after `after`, ascending by id."""
        return self._reader.runnable(after, limit)

    def next_deadline(self) -> int | None:
        """When the earliest deadline comes, or None."""
        return self._reader.next_deadline()

    def left_open(self) -> list[OpenAttempt]:
        """The attempts of earlier services that nobody has ended."""
        return self._reader.open_attempts(self.boot)

    def is_left_open(self, row: SessionRow) -> bool:
        """Whether the session's open attempt is one of an earlier service."""
        if row.attempt_id is None:
            return False
        boot = self._reader.attempt_boot(row.attempt_id)
        return boot is not None and boot < self.boot

    # Following

    def ticket(self, session_id: str) -> Ticket:
        """A ticket that ends with the session's next commit; take it before reading."""
        return self._bells.ticket(session_id)

    @contextlib.contextmanager
    def watch(self, watcher: Watcher) -> Generator[None]:
        """Inside the block `watcher` is called after each commit with the rows it left."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    @contextlib.contextmanager
    def count(self, counter: Counter) -> Generator[None]:
        """Inside the block `counter` is told of each commit that changed something."""
        self._writer.counters.append(counter)
        try:
            yield
        finally:
            self._writer.counters.remove(counter)

    def states(self) -> dict[str, int]:
        """How many sessions are in each state that is stored."""
        return self._reader.states()

    # Durable steps

    async def ensure_session(self, session_id: str) -> None:
        """The session's row is there; no event is written.

        Raises:
            InvalidSessionId: The id does not match the rule.

        Durability: committed when this returns.
        """
        parse_session_id(session_id)
        if self._reader.session(session_id) is not None:
            await trio.lowlevel.checkpoint()
            return
        await self._writer.commit(
            CommitPoint.OPEN_SESSION,
            session_id,
            lambda tx: tx.session(session_id) or tx.make_session(session_id),
        )

    async def admit(self, sent: Input, *, refuse: str | None = None) -> Admission:
        """The input is stored, or was; see `admission.admit` and `admission.check`.

        Durability: committed when this returns.
        """
        admission.check(sent)
        return await self._writer.commit(
            CommitPoint.ADMIT, sent.session_id, partial(admission.admit, sent=sent, refuse=refuse)
        )

    async def admit_all(
        self, sent: Sequence[Input], *, refuse: str | None = None
    ) -> list[Admission | RequestError]:
        """Inputs of one session are stored in this order, each as by `admit`, in one step.

        Returns:
            What became of each: a refused one does not hinder the others.

        Durability: committed when this returns.
        """
        return await self._writer.commit(
            CommitPoint.ADMIT,
            sent[0].session_id,
            lambda tx: [_admit_one(tx, one, refuse) for one in sent],
        )

    async def append(self, session_id: str, kind: str, payload: Mapping[str, Any]) -> Event:
        """A note is the session's newest event; see `notes.append`.

        Durability: committed when this returns.
        """
        note = notes.make_note(kind, payload)
        seq = await self._writer.commit(
            CommitPoint.NOTE, session_id, lambda tx: notes.append(tx, session_id, note)
        )
        return self._event(session_id, seq)

    async def insert_work_item(self, item: WorkItem) -> bool:
        """The item is pending; False if that id exists; see `notes.check_work`.

        Durability: committed when this returns.
        """
        notes.check_work(item)
        return await self._writer.commit(
            CommitPoint.ADD_WORK, str(item.session_id), lambda tx: notes.insert_work(tx, item)
        )

    async def claim_work_item(self, id: str, attempt_id: str, now_ms: int) -> Claim:  # noqa: A002
        """That one item belongs to a new attempt, and the session is executing.

        Not claimed: an item that is unknown, claimed or ended, or whose session is
        stopped or has an open attempt.

        Durability: committed when this returns.
        """
        found = self._reader.work(id)
        key = _NO_ID if found is None or found.session_id is None else found.session_id
        turn = await self._writer.commit(
            CommitPoint.CLAIM,
            key,
            lambda tx: turns.claim_item(tx, id, attempt_id=str(attempt_id), now_ms=now_ms),
        )
        return Claim(turn)

    async def claim_turn(
        self, session_id: str, *, attempt_id: str, release: str | None, model: str | None
    ) -> Turn | None:
        """What is runnable belongs to a new attempt; None if nothing is.

        Durability: committed when this returns.
        """
        return await self._writer.commit(
            CommitPoint.CLAIM,
            session_id,
            partial(
                turns.claim,
                session_id=session_id,
                attempt_id=attempt_id,
                release=release,
                model=model,
            ),
        )

    async def reply(
        self,
        turn: Turn,
        received: ReplyReceived,
        *,
        scratchpad: str | None,
        calls: Sequence[CellRequested],
        refused: Sequence[CellFinished],
    ) -> None:
        """The model's reply is in the log; see `turns.reply`."""
        await self._writer.commit(
            CommitPoint.REPLY,
            turn.session_id,
            lambda tx: turns.reply(
                tx, turn, received, scratchpad=scratchpad, calls=calls, refused=refused
            ),
        )

    async def say(self, turn: Turn, said: LocalSent, *, hook_epoch: int) -> int:
        """The words are in the log; see `turns.say`.

        Raises:
            TooLarge: They are over the bound of a text; nothing is cut off what is said.
            BadRequest: They hold a lone surrogate.
        """
        check_text("text", said.text, empty_ok=True)
        return await self._writer.commit(
            CommitPoint.SAY,
            turn.session_id,
            lambda tx: turns.say(tx, turn, said, hook_epoch=hook_epoch),
        )

    async def result(self, turn: Turn, results: Results) -> None:
        """The results of calls are in the log; see `turns.result`."""
        await self._writer.commit(
            CommitPoint.RESULT, turn.session_id, lambda tx: turns.result(tx, turn, results)
        )

    async def complete(
        self,
        turn: Turn,
        *,
        outcome: str,
        wait: WaitFor | None,
        results: Results,
        usage: Mapping[str, Any] | None,
    ) -> None:
        """The turn has ended well; see `turns.complete`."""
        await self._writer.commit(
            CommitPoint.CLOSE,
            turn.session_id,
            lambda tx: turns.complete(
                tx, turn, outcome=outcome, wait=wait, results=results, usage=usage
            ),
        )

    async def fail(self, turn: Turn, failure: Failure, *, results: Results) -> None:
        """The turn has failed; see `failures.fail`."""
        await self._writer.commit(
            CommitPoint.CLOSE,
            turn.session_id,
            lambda tx: failures.fail(tx, turn, failure, results=results),
        )

    async def broken_off(self, turn: Turn, *, because: str) -> tuple[CellFinished, ...]:
        """A result for each open call of the attempt; nothing is written."""
        return await self._writer.commit(
            CommitPoint.CLOSE,
            turn.session_id,
            lambda tx: tuple(
                calls.broken_off(tx, turn.session_id, turn.attempt_id, because=because)
            ),
        )

    async def interrupt(
        self, session_id: str, attempt_id: str, *, why: str, rule: CrashRule | None = None
    ) -> bool:
        """The attempt is interrupted; False if it had ended; see `interrupts.interrupt`."""
        return await self._writer.commit(
            CommitPoint.INTERRUPT,
            session_id,
            lambda tx: interrupts.interrupt(tx, session_id, attempt_id, why=why, rule=rule),
        )

    async def stop(self, session_id: str) -> bool:
        """The session is stopped; False if it was; see `operator.stop`."""
        return await self._writer.commit(
            CommitPoint.STOP, session_id, lambda tx: operator.stop(tx, session_id)
        )

    async def reset(self, session_id: str) -> bool:
        """The session is reopened (True) or its kernel reset (False); see `operator.reset`."""
        return await self._writer.commit(
            CommitPoint.RESET, session_id, lambda tx: operator.reset(tx, session_id)
        )

    async def kernel_gone(self, session_id: str, *, why: str) -> int:
        """The log says that the session's kernel is gone; returns the new hook epoch."""
        return await self._writer.commit(
            CommitPoint.RESET, session_id, lambda tx: operator.kernel_gone(tx, session_id, why=why)
        )

    async def arm(
        self, session_id: str, *, receipt: str | None, wake_at_ms: int | None, reason: str | None
    ) -> None:
        """The session waits, outside any attempt; see `deadlines.arm`."""
        await self._writer.commit(
            CommitPoint.ARM,
            session_id,
            lambda tx: deadlines.arm(
                tx, session_id, receipt=receipt, wake_at_ms=wake_at_ms, reason=reason
            ),
        )

    async def wake_due(self, now_ms: int) -> list[str]:
        """Every deadline that is due at `now_ms` has fired, exactly once.

        Returns:
            The sessions woken, earliest deadline first.

        Durability: each chunk is one commit; all are committed when this returns.
        Cancellation: chunks that were committed stay fired.
        """
        woken: list[str] = []
        while True:
            due = self._reader.next_deadline()
            if due is None or due > now_ms:
                await trio.lowlevel.checkpoint()
                return woken
            woken += await self._writer.commit(
                CommitPoint.WAKE, "", lambda tx: deadlines.wake(tx, now_ms=now_ms)
            )

    async def install_frontier(self, session_id: str, frontier: Frontier) -> Event:
        """The session's older events are summarised; see `notes.fold`.

        Durability: committed when this returns.
        """
        seq = await self._writer.commit(
            CommitPoint.FOLD, session_id, lambda tx: notes.fold(tx, session_id, frontier)
        )
        return self._event(session_id, seq)

    async def mark_recovered(self) -> None:
        """This service has settled what earlier ones left open."""
        await self._writer.commit(CommitPoint.RECOVERED, "", lambda tx: tx.recovered())

    def _event(self, session_id: str, seq: int) -> Event:
        row = self._reader.events(session_id, seq - 1, 1)[0]
        return decode_event(row.seq, row.session_id, row.kind, row.payload, row.created_ms)


@contextlib.asynccontextmanager
async def _writing(writer: Writer) -> AsyncGenerator[None]:
    """The writer's task runs inside the block; leaving it commits what is queued."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write_to_the_end, writer)
            try:
                yield
            finally:
                writer.close()
    except BaseExceptionGroup as group:
        # A caller's own error leaves as it came, not wrapped by a nursery of ours; and
        # a corrupt file is one error, however many callers met it.
        broken, rest = group.split(StoreBroken)
        if broken is not None and rest is None:
            raise _first(broken) from None
        if (only := sole(group)) is not group:
            raise only from None
        raise


def _first(group: BaseExceptionGroup[StoreBroken]) -> StoreBroken:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise StoreForeign(f"{folder} can't be made: {exc.strerror}") from exc


async def _write_to_the_end(writer: Writer) -> None:
    # Those inside the block write their last words while they are being cancelled, so
    # the writer outlives a cancel from outside; `close`, at the block's end, ends it.
    with trio.CancelScope(shield=True):
        await writer.run()


def _admit_one(tx: Tx, sent: Input, refuse: str | None) -> Admission | RequestError:
    # A refusal comes before anything of its input is written.
    try:
        admission.check(sent)
        return admission.admit(tx, sent, refuse=refuse)
    except RequestError as refusal:
        return refusal


async def _unhurried(read: Callable[..., T], *values: object) -> T:
    """A page of a scan, with a checkpoint before it."""
    await trio.lowlevel.checkpoint()
    return read(*values)


def _ignore(_: str) -> None:
    """No fault point."""


__all__ = ["Claim", "RequestError", "Store", "UnknownSession"]
