"""The writer: one task owns the writing connection and commits what waits, together.

Callers hand it small synchronous operations. It performs up to `BATCH` of them in one
transaction, a savepoint each, in the Trio thread; only COMMIT runs in a worker thread,
since that is where the disk is waited for. While a COMMIT is out, the loop gives up the
GIL for 20 µs a pass: a loop that is always busy would starve the thread for good.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import outcome
import trio

from klbr_trio.domain.events import Body
from klbr_trio.errors import StoreBroken, StoreUnavailable
from klbr_trio.store.faults import code, is_broken, translate
from klbr_trio.store.points import CommitPoint
from klbr_trio.store.rows import SessionRow
from klbr_trio.store.tx import Tx
from klbr_trio.store.written import Counter, Written

T = TypeVar("T")

BATCH: Final = 64
"""Operations a commit: past that, latency grows and the rate hardly does."""

BATCH_S: Final = 0.003
"""How long a batch may hold the loop; what is left then waits for the next one."""

BUSY_S: Final = 5.0
"""How long a BEGIN is retried while another process holds the file."""

STUCK_S: Final = 30.0
"""A COMMIT that is out this long has an outcome that nobody can know: the process ends."""

_RETRY_S: Final = 0.01
_YIELD_AFTER_S: Final = 0.001
_YIELD_S: Final = 20e-6
# A commit that is slower than this waits for the disk, not for the GIL.
_EVERY_PASS_S: Final = 0.02

_LOG: Final = logging.getLogger("klbr_trio.store")


@attrs.define(eq=False)
class _Request:
    """One operation and the task that waits for its answer.

    Attributes:
        begun: Its batch is being written; it can't be taken back any more.
        wrote: It changed the tables.
        bodies: The events that it appended.
    """

    point: CommitPoint
    key: str
    operation: Callable[[Tx], Any]
    task: trio.lowlevel.Task
    begun: bool = False
    wrote: bool = False
    answer: outcome.Outcome[Any] | None = None
    touched: Mapping[str, SessionRow] = attrs.field(factory=dict)
    bodies: Sequence[Body] = ()

    def refuse(self, error: Exception) -> None:
        self.answer = outcome.Error(error)
        self.touched = {}
        self.wrote = False


class _TransactionEnded(Exception):
    """SQLite has rolled the whole transaction back by itself."""

    def __init__(self, cause: sqlite3.Error) -> None:
        super().__init__(str(cause))
        self.cause = cause


@attrs.define(eq=False)
class Writer:
    """Commits operations in groups; `run` is its task.

    Attributes:
        trouble: Why the last write failed, or None while writing works.
        counters: Told of every commit that changed something.
    """

    _conn: sqlite3.Connection
    _boot: int
    _now_ms: Callable[[], int]
    _on_commit: Callable[[str], None]
    _publish: Callable[[Mapping[str, SessionRow]], None]
    _busy_s: float = BUSY_S
    _stuck_s: float = STUCK_S
    trouble: str | None = None
    counters: list[Counter] = attrs.field(factory=list)
    _queue: deque[_Request] = attrs.field(factory=deque)
    _begun: set[_Request] = attrs.field(factory=set)
    _bell: trio.Event = attrs.field(factory=trio.Event)
    _closed: bool = False
    _broken: str | None = None

    async def commit(self, point: CommitPoint, key: str, operation: Callable[[Tx], T]) -> T:
        """The operation's changes are durable, and its answer is returned.

        Args:
            point: Which durable step this is.
            key: The session it is about; a batch is ordered by it.
            operation: A function of the transaction, about a millisecond at most; it
                may be run twice.

        Raises:
            StoreUnavailable: Nothing was written.
            StoreBroken: The file is corrupt, or the writer ended.

        Durability: committed with synchronous=FULL when this returns.
        Cancellation: cancelled means not written; once its batch has begun the answer
            is waited for and returned.
        """
        if self._closed:
            raise self._closed_error()
        request = _Request(point, key, operation, trio.lowlevel.current_task())
        self._queue.append(request)
        self._bell.set()

        def abort(_: object) -> trio.lowlevel.Abort:
            if request.begun:
                return trio.lowlevel.Abort.FAILED
            self._queue.remove(request)
            return trio.lowlevel.Abort.SUCCEEDED

        answer: T = await trio.lowlevel.wait_task_rescheduled(abort)
        return answer

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Commit what comes until `close`; then what is left, and return.

        However it ends, nobody is left without an answer.

        Raises:
            StoreBroken: The file is corrupt.
        """
        try:
            while True:
                while self._queue:
                    await self._write_some()
                if self._closed:
                    return
                await self._bell.wait()
                self._bell = trio.Event()
        finally:
            self._closed = True
            self._abandon()

    def close(self) -> None:
        """Take nothing more; `run` returns once the queue is empty."""
        self._closed = True
        self._bell.set()

    async def _write_some(self) -> None:
        """One batch of what waits: answered, one way or the other."""
        try:
            await self._begin()
        except sqlite3.Error as exc:
            while self._queue:
                self._refuse(self._take(), exc)
            return
        # Taken only now: whoever was cancelled while the file was busy is not in it.
        batch = self._take()
        if batch:
            await self._write(batch)
        else:
            self._roll_back()

    def _take(self) -> list[_Request]:
        batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
        for request in batch:
            request.begun = True
        self._begun.update(batch)
        batch.sort(key=lambda request: request.key)
        return batch

    async def _write(self, batch: list[_Request]) -> None:
        """Perform and commit `batch` in the transaction that has begun."""
        try:
            done = self._perform_all(batch)
        except _TransactionEnded as exc:
            await self._write_each(batch, exc.cause)
            return
        except sqlite3.Error as exc:
            self._roll_back()
            self._refuse(batch, exc)
            return
        try:
            await self._commit(done)
        except sqlite3.Error as exc:
            self._roll_back()
            self._refuse(done, exc)
            return
        self._answer(done)

    async def _write_each(self, batch: list[_Request], cause: sqlite3.Error) -> None:
        """Each in a transaction of its own: SQLite has ended the one they shared."""
        if len(batch) == 1:
            self._refuse(batch, cause)
            return
        for request in batch:
            try:
                await self._begin()
            except sqlite3.Error as exc:
                self._refuse([request], exc)
            else:
                await self._write([request])

    async def _begin(self) -> None:
        for _ in range(round(self._busy_s / _RETRY_S)):
            if self._has_begun():
                return
            await trio.sleep(_RETRY_S)
        self._conn.execute("BEGIN IMMEDIATE")

    def _has_begun(self) -> bool:
        try:
            self._conn.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as exc:
            if code(exc) != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    def _perform_all(self, batch: list[_Request]) -> list[_Request]:
        """Those that were performed; when time is up the rest waits for the next batch."""
        stop_at = time.monotonic() + BATCH_S
        for index, request in enumerate(batch):
            if index and time.monotonic() > stop_at:
                self._put_back(batch[index:])
                return batch[:index]
            self._perform(request)
        return batch

    def _put_back(self, rest: Sequence[_Request]) -> None:
        for request in rest:
            request.begun = False
        self._begun.difference_update(rest)
        self._queue.extendleft(reversed(rest))

    def _perform(self, request: _Request) -> None:
        tx = Tx(self._conn, self._now_ms(), self._boot, request.point)
        changes = self._conn.total_changes
        self._conn.execute("SAVEPOINT operation")
        try:
            request.answer = outcome.Value(request.operation(tx))
        except Exception as exc:
            if is_broken(exc):
                raise
            if isinstance(exc, sqlite3.Error) and not self._conn.in_transaction:
                raise _TransactionEnded(exc) from exc
            self._conn.execute("ROLLBACK TO operation")
            request.refuse(self._told(exc))
        else:
            request.touched = tx.touched
            request.bodies = tx.bodies
            request.point = tx.point
            request.wrote = self._conn.total_changes != changes
        self._conn.execute("RELEASE operation")

    async def _commit(self, batch: list[_Request]) -> None:
        wrote = [request.point.label for request in batch if request.wrote]
        if not wrote:
            self._conn.execute("COMMIT")  # it has nothing to wait for
            return
        for label in wrote:
            self._on_commit(f"before:{label}")
        began = time.perf_counter()
        await self._commit_in_thread()
        self.trouble = None
        self._count(batch, time.perf_counter() - began)
        for label in wrote:
            self._on_commit(f"after:{label}")

    def _count(self, batch: list[_Request], seconds: float) -> None:
        if self.counters:
            bodies = tuple(body for request in batch if request.wrote for body in request.bodies)
            written = Written(seconds, bodies)
            for counter in tuple(self.counters):
                counter(written)

    async def _commit_in_thread(self) -> None:
        came = trio.Event()
        token = trio.lowlevel.current_trio_token()
        results: list[outcome.Outcome[sqlite3.Cursor]] = []

        def deliver(result: outcome.Outcome[sqlite3.Cursor]) -> None:
            results.append(result)
            token.run_sync_soon(came.set)

        commit = partial(self._conn.execute, "COMMIT")
        trio.lowlevel.start_thread_soon(commit, deliver, "klbr_trio commit")
        # The wait for a begun COMMIT is the one that no deadline can end but the process's.
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_YIELD_AFTER_S):
                await came.wait()
            if not came.is_set():
                await self._give_up_gil(came)
        results[0].unwrap()

    async def _give_up_gil(self, came: trio.Event) -> None:
        """Wait for the commit's thread, which may be waiting for us to let go of the GIL."""
        started = time.monotonic()
        while not came.is_set():
            time.sleep(_YIELD_S)  # noqa: ASYNC251, TID251 - the point: the thread gets the GIL
            out_s = time.monotonic() - started
            if out_s > self._stuck_s:
                _LOG.critical("a commit has been out for %d s; ending the process", out_s)
                os._exit(70)
            if out_s < _EVERY_PASS_S:
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(_YIELD_AFTER_S)

    def _roll_back(self) -> None:
        if self._conn.in_transaction:
            self._conn.execute("ROLLBACK")

    def _refuse(self, batch: list[_Request], exc: sqlite3.Error) -> None:
        """Nothing of `batch` was written, and each caller is told why."""
        for request in batch:
            request.refuse(self._told(exc))
        self._answer(batch)
        if is_broken(exc):
            broken = translate(exc)
            self._broken = str(broken)
            raise broken from exc

    def _told(self, exc: Exception) -> Exception:
        """What one caller is told of `exc`; trouble is noted."""
        error = translate(exc)
        if error is not exc:
            error.__cause__ = exc
        if isinstance(error, StoreUnavailable):
            if self.trouble is None:
                _LOG.error("can't write: %s", error)
            self.trouble = str(error)
        return error

    def _answer(self, batch: list[_Request]) -> None:
        touched: dict[str, SessionRow] = {}
        for request in batch:
            touched.update(request.touched)
        try:
            if touched:
                self._publish(touched)
        finally:
            for request in batch:
                assert request.answer is not None
                self._begun.discard(request)
                trio.lowlevel.reschedule(request.task, request.answer)

    def _closed_error(self) -> Exception:
        if self._broken is not None:
            return StoreBroken(self._broken)
        return StoreUnavailable("the store is closed; nothing was written")

    def _abandon(self) -> None:
        """Answer those that a writer which ended by an error left waiting."""
        for request in self._queue:
            trio.lowlevel.reschedule(request.task, outcome.Error(self._closed_error()))
        self._queue.clear()
        for request in self._begun:
            error = StoreBroken("the writer ended; whether this was written is not known")
            trio.lowlevel.reschedule(request.task, outcome.Error(error))
        self._begun.clear()
