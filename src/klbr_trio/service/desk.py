"""A desk: one client's requests about one session, served in the order they come.

`stop` is not served here: it acts at once. Everything else about a session waits its
turn, and no session waits for another.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.errors import Busy, KernelError, RegistryClosed, RequestError, StoreError
from klbr_trio.service.door import Door
from klbr_trio.service.floor import Floor
from klbr_trio.service.follower import Follower, Hold
from klbr_trio.service.port.frames import frame
from klbr_trio.service.records import PAGE
from klbr_trio.service.statuses import status_message
from klbr_trio.store import Input
from klbr_trio.wire import client as asks, server as says
from klbr_trio.wire.client import PAGE_MAX, ClientMessage, Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klbr_trio.wire.server import LiveMessage

_LOG: Final = logging.getLogger("klbr_trio.service")

INPUTS_A_STEP: Final = 32
"""Inputs that a client has sent in a row are admitted together, up to this many."""


@attrs.define(eq=False)
class Desk:
    """One client's dealings with one session.

    Attributes:
        follower: The subscription, or None.
        stopping: Stops of this client that are on their way.
    """

    session_id: str
    _floor: Floor
    _door: Door
    _nursery: trio.Nursery
    _on_idle: Callable[[Desk], None]
    _on_served: Callable[[], None]
    follower: Follower | None = None
    stopping: list[trio.Event] = attrs.field(factory=list)
    _queue: deque[ClientMessage] = attrs.field(factory=deque)
    _working: bool = False
    _hold: Hold = attrs.field(factory=Hold)
    _chunks: list[bytes] = attrs.field(factory=list)
    _syncing: bool = False
    _look: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked and nothing is followed."""
        return not self._working and self.follower is None and not self.stopping

    def ask(self, message: ClientMessage) -> None:
        """Serve the message after those that were asked before."""
        self._queue.append(message)
        if not self._working:
            self._working = True
            self._nursery.start_soon(self._work, name=f"desk {self.session_id}")

    def close(self) -> None:
        """The client has gone."""
        self._look.close()

    async def _work(self) -> None:
        try:
            while self._queue:
                batch = self._next()
                await self._contained(batch)
                for _ in batch:
                    self._on_served()
        finally:
            self._working = False
        self._on_idle(self)

    def _next(self) -> list[ClientMessage]:
        """The next request, or as many inputs as stand in a row."""
        batch = [self._queue.popleft()]
        if isinstance(batch[0], asks.SendInput):
            while (
                self._queue
                and len(batch) < INPUTS_A_STEP
                and isinstance(self._queue[0], asks.SendInput)
            ):
                batch.append(self._queue.popleft())
        return batch

    async def _contained(self, batch: Sequence[ClientMessage]) -> None:
        """Serve a request; whatever fails becomes its answer."""
        refusal: RequestError | None = None
        try:
            await self._serve(batch)
        except* RequestError as group:
            refusal = _first(group)
        except* StoreError as group:
            refusal = Busy(str(group.exceptions[0]))
        except* Exception:  # noqa: BLE001 - the boundary of a client's request
            fault = secrets.token_hex(4)
            _LOG.exception("internal error %s", fault)
            refusal = _Internal(f"internal error {fault}; the service's log has it")
        if refusal is not None:
            for message in batch:
                self._refuse(message, refusal)

    def _refuse(self, message: ClientMessage, refusal: RequestError) -> None:
        self._door.reply(says.Error.of(refusal.code, str(refusal), _context(message)))

    async def _serve(self, batch: Sequence[ClientMessage]) -> None:
        match batch[0]:
            case asks.SendInput():
                await self._admit([one for one in batch if isinstance(one, asks.SendInput)])
            case asks.Subscribe() as message:
                await self._subscribe(message)
            case asks.Unsubscribe() as message:
                await self._leave()
                self._acknowledge(message)
            case asks.History() as message:
                await self._history(message)
            case asks.GetSessionStatus() as message:
                self._door.reply(self._status(message))
            case asks.ResetKernel() as message:
                await self._reset(message)
            case _:
                raise AssertionError(f"{batch[0].type} is not served at a desk")

    # Inputs

    async def _admit(self, messages: Sequence[asks.SendInput]) -> None:
        registry = self._floor.registry
        sent = [
            Input(self.session_id, one.source, one.text, one.client_request_id) for one in messages
        ]
        acked = 0
        self._hold.begin()
        try:
            answers = await registry.store.admit_all(sent, refuse=registry.refusal(self.session_id))
            for message, answer in zip(messages, answers, strict=True):
                if isinstance(answer, RequestError):
                    self._refuse(message, answer)
                    continue
                acked = max(acked, answer.seq)
                self._door.reply(
                    says.Ack(
                        session_id=self.session_id,
                        seq=answer.seq,
                        client_request_id=message.client_request_id,
                        duplicate=answer.duplicate,
                        request_id=message.request_id,
                    )
                )
                if not self._floor.has_model and answer.pending:
                    self._door.reply(
                        says.Error.of("no_model_configured", NO_MODEL, _context(message))
                    )
        finally:
            self._hold.end(acked)
            self._release_chunks()

    # Following

    async def _subscribe(self, message: asks.Subscribe) -> None:
        if self.follower is None:
            self._floor.take_subscription(self.session_id)
        await self._leave(keep_place=True)
        store = self._floor.registry.store
        row = store.row(self.session_id)
        head = 0 if row is None else row.head_seq
        fold = None if row is None else row.fold_seq
        if message.after_seq > 0:
            first = min(message.after_seq, head) + 1
        else:
            first = max(head - min(message.limit, PAGE_MAX), fold or 0) + 1
        # From here on, before anything is awaited, what is live is for this client.
        self._look.enter_context(self._floor.registry.live.look(self.session_id, self._live))
        self._syncing = True
        await self._send_range(message, first, head)
        self._syncing = False
        self._release_chunks()
        self.follower = Follower(
            self.session_id, head, self._door, store, self._floor.records, self._hold
        )
        self._nursery.start_soon(self.follower.run, name=f"follower {self.session_id}")

    async def _leave(self, *, keep_place: bool = False) -> None:
        """Follow no more; what is being sent is sent to its end."""
        follower, self.follower = self.follower, None
        self._look.close()
        self._door.forget_chunks(len(self._chunks))
        self._chunks.clear()
        if follower is not None:
            follower.end()
            await follower.over.wait()
        if not keep_place:
            self._floor.leave_subscription(self.session_id)

    def _live(self, message: LiveMessage) -> None:
        """Take a live message; waits for nobody."""
        data = frame(says.encode(message))
        if isinstance(message, says.LiveChunk):
            if not self._door.admit_chunk(self.session_id):
                return
            if self._hold.is_held or self._syncing:
                self._chunks.append(data)
            else:
                self._door.chunk(data)
        else:
            self._release_chunks()
            self._door.discard(data)

    def _release_chunks(self) -> None:
        if not self._hold.is_held and not self._syncing:
            chunks, self._chunks = self._chunks, []
            for data in chunks:
                self._door.chunk(data)

    # Ranges

    async def _history(self, message: asks.History) -> None:
        head = self._floor.registry.store.head(self.session_id)
        last = min(message.before_seq, head + 1) - 1
        first = max(1, last - min(message.limit, PAGE_MAX) + 1)
        await self._send_range(message, first, last)

    async def _send_range(
        self, message: asks.Subscribe | asks.History, first: int, last: int
    ) -> None:
        """`sync_started`, the events from `first` to `last`, `sync_completed`."""
        store = self._floor.registry.store
        row = store.row(self.session_id)
        self._door.reply(
            says.SyncStarted(
                session_id=self.session_id,
                from_seq=first,
                to_seq=last,
                earliest_seq=store.earliest_seq(self.session_id),
                fold_seq=None if row is None else row.fold_seq,
                request_id=message.request_id,
            )
        )
        at = first - 1
        while at < last:
            page = self._floor.records.page(self.session_id, at, min(PAGE, last - at))
            at = page[-1].seq
            await self._door.events([record.event for record in page])
        self._door.reply(
            says.SyncCompleted(
                session_id=self.session_id, to_seq=last, request_id=message.request_id
            )
        )

    # The rest

    def _status(self, message: asks.GetSessionStatus) -> says.SessionStatus:
        return status_message(self._floor.registry, self.session_id, message.request_id)

    async def _reset(self, message: asks.ResetKernel) -> None:
        while self.stopping:
            await self.stopping[-1].wait()
        failure = None
        try:
            await self._floor.registry.reopen(self.session_id, None)
        except (StoreError, KernelError, RegistryClosed) as exc:
            failure = str(exc)
        self._acknowledge(message, failure)

    def _acknowledge(
        self, message: asks.Unsubscribe | asks.ResetKernel, failure: str | None = None
    ) -> None:
        self._door.reply(
            says.OperatorAck(
                session_id=self.session_id,
                action=message.type,
                success=failure is None,
                message=failure,
                request_id=message.request_id,
            )
        )


NO_MODEL: Final = (
    "no model is configured: the input is stored but nothing will answer it until the service "
    "is started with a model (--model-url and --model)"
)


class _Internal(RequestError):
    code = "internal"


def _first(group: BaseExceptionGroup[RequestError]) -> RequestError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, RequestError)
    return found


def _context(message: ClientMessage) -> Context:
    return Context(
        message.request_id,
        getattr(message, "session_id", None),
        getattr(message, "client_request_id", None),
    )
