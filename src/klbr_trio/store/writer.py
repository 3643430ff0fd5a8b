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
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs
import outcome
import trio

from klbr_trio.errors import KlbrError, StoreBroken, StoreUnavailable
from klbr_trio.store.points import CommitPoint
from klbr_trio.store.rows import SessionRow
from klbr_trio.store.tx import Tx

T = TypeVar("T")

BATCH: Final = 64
"""Operations a commit: past that, latency grows and the rate hardly does."""

BUSY_S: Final = 5.0
"""How long a BEGIN is retried while another process holds the file."""

STUCK_S: Final = 30.0
"""A COMMIT that is out this long has an outcome that nobody can know: the process ends."""

_YIELD_AFTER_S: Final = 0.001
_YIELD_S: Final = 20e-6

_LOG: Final = logging.getLogger("klbr_trio.store")


@attrs.define(eq=False)
class _Request:
    """One operation and the task that waits for its answer."""

    point: CommitPoint
    key: str
    operation: Callable[[Tx], Any]
    task: trio.lowlevel.Task
    begun: bool = False
    answer: outcome.Outcome[Any] | None = None
    touched: Mapping[str, SessionRow] = attrs.field(factory=dict)


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
    """

    _conn: sqlite3.Connection
    _boot: int
    _now_ms: Callable[[], int]
    _on_commit: Callable[[str], None]
    _publish: Callable[[Mapping[str, SessionRow]], None]
    trouble: str | None = None
    _queue: deque[_Request] = attrs.field(factory=deque)
    _bell: trio.Event = attrs.field(factory=trio.Event)
    _closed: bool = False
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))

    async def commit(self, point: CommitPoint, key: str, operation: Callable[[Tx], T]) -> T:
        """The operation's changes are durable, and its answer is returned.

        Args:
            point: Which durable step this is.
            key: The session it is about; a batch is ordered by it.
            operation: A function of the transaction, about a millisecond at most; it
                may be run twice.

        Raises:
            StoreUnavailable: Nothing was written.

        Durability: committed with synchronous=FULL when this returns.
        Cancellation: cancelled means not written; once its batch has begun the answer
            is waited for and returned.
        """
        if self._closed:
            raise StoreUnavailable("the store is closed")
        request = _Request(point, key, operation, trio.lowlevel.current_task())
        self._queue.append(request)
        self._bell.set()

        def abort(_: object) -> trio.lowlevel.Abort:
            if request.begun:
                return trio.lowlevel.Abort.FAILED
            self._queue.remove(request)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.checkpoint_if_cancelled()
        answer: T = await trio.lowlevel.wait_task_rescheduled(abort)
        return answer

    async def run(self) -> None:
        """Commit what comes until `close`; then what is left, and return.

        Raises:
            StoreBroken: The file is corrupt.
        """
        try:
            while not (self._closed and not self._queue):
                await self._bell.wait()
                self._bell = trio.Event()
                while self._queue:
                    await self._write(self._take())
        finally:
            self._closed = True

    def close(self) -> None:
        """Take nothing more; `run` returns once the queue is empty."""
        self._closed = True
        self._bell.set()

    def _take(self) -> list[_Request]:
        batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
        for request in batch:
            request.begun = True
        return sorted(batch, key=lambda request: request.key)

    async def _write(self, batch: list[_Request]) -> None:
        try:
            await self._transact(batch)
        except _TransactionEnded as exc:
            if len(batch) == 1:
                self._refuse(batch, exc.cause)
            else:
                for request in batch:
                    await self._write([request])
                return
        except sqlite3.Error as exc:
            self._roll_back()
            self._refuse(batch, exc)
        self._answer(batch)

    async def _transact(self, batch: list[_Request]) -> None:
        with trio.CancelScope(
            shield=True
        ):  # the wait for a begun COMMIT: ends with it, or at STUCK_S
            await self._begin()
            for request in batch:
                self._perform(request)
            for request in batch:
                self._on_commit(f"before:{request.point.label}")
            await self._commit()
        self.trouble = None
        for request in batch:
            self._on_commit(f"after:{request.point.label}")

    async def _begin(self) -> None:
        with trio.move_on_after(BUSY_S):
            while True:
                try:
                    self._conn.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as exc:
                    if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                        raise
                    await trio.sleep(0.01)
                else:
                    return
        self._conn.execute("BEGIN IMMEDIATE")

    def _perform(self, request: _Request) -> None:
        tx = Tx(self._conn, self._now_ms(), self._boot)
        self._conn.execute("SAVEPOINT operation")
        try:
            request.answer = outcome.Value(request.operation(tx))
            request.touched = tx.touched
        except Exception as exc:
            if not self._conn.in_transaction and isinstance(exc, sqlite3.Error):
                raise _TransactionEnded(exc) from exc
            self._conn.execute("ROLLBACK TO operation")
            request.answer = outcome.Error(_translate(exc))
            request.touched = {}
        self._conn.execute("RELEASE operation")

    async def _commit(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up_gil)
            done = await outcome.acapture(self._commit_in_thread)
            nursery.cancel_scope.cancel()
        done.unwrap()

    async def _commit_in_thread(self) -> None:
        await trio.to_thread.run_sync(self._conn.execute, "COMMIT", limiter=self._limiter)

    async def _give_up_gil(self) -> None:
        await trio.sleep(_YIELD_AFTER_S)
        stuck_at = time.monotonic() + STUCK_S
        while True:
            time.sleep(_YIELD_S)  # noqa: ASYNC251, TID251 - the point: the thread gets the GIL
            if time.monotonic() > stuck_at:
                _LOG.critical("a commit has been out for %d s; ending the process", STUCK_S)
                os._exit(70)
            await trio.lowlevel.checkpoint()

    def _roll_back(self) -> None:
        if self._conn.in_transaction:
            self._conn.execute("ROLLBACK")

    def _refuse(self, batch: list[_Request], exc: sqlite3.Error) -> None:
        error = _translate(exc)
        if isinstance(error, StoreUnavailable):
            self.trouble = str(error)
            _LOG.error("can't write: %s", error)
        for request in batch:
            request.answer = outcome.Error(error)
            request.touched = {}

    def _answer(self, batch: list[_Request]) -> None:
        touched: dict[str, SessionRow] = {}
        for request in batch:
            touched.update(request.touched)
        if touched:
            self._publish(touched)
        broken = None
        for request in batch:
            assert request.answer is not None
            trio.lowlevel.reschedule(request.task, request.answer)
            if isinstance(request.answer, outcome.Error) and isinstance(
                request.answer.error, StoreBroken
            ):
                broken = request.answer.error
        if broken is not None:
            raise StoreBroken(str(broken))


def _translate(exc: Exception) -> Exception:
    """What a caller is told of an error of SQLite; anything else goes as it is."""
    if isinstance(exc, KlbrError) or not isinstance(exc, sqlite3.Error):
        return exc
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreBroken(f"the store's file is corrupt: {exc}; restore a backup")
    if code in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
    ):
        return StoreUnavailable(f"the store can't be written now: {exc}; nothing was stored")
    return exc
