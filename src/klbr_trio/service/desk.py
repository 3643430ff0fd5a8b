"""A desk: one client's requests about one session, served in the order they come.

Only `stop` does not wait its turn. No session waits for another, and what a request
fails with is its answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

import attrs
import trio

from klbr_trio.errors import KernelError, RegistryClosed, RequestError, StoreUnavailable
from klbr_trio.service.door import Door
from klbr_trio.service.faults import refusal_of
from klbr_trio.service.floor import Floor
from klbr_trio.service.ranges import page_before, send_range, window
from klbr_trio.service.statuses import status_message
from klbr_trio.service.subscription import Subscription
from klbr_trio.store import Input
from klbr_trio.wire import client as asks, server as says
from klbr_trio.wire.client import ClientMessage, Context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from klbr_trio.service.ranges import Range

INPUTS_A_STEP: Final = 32
"""Inputs that a client has sent in a row are admitted together, up to this many."""

CHARS_A_STEP: Final = 128 * 1024
"""… and up to this much text, since a step may hold the loop for about a millisecond."""

STOP_COURTESY_S: Final = 0.5
"""What a stop gives the requests before it: inputs and statuses are done in less.

It waits for no replay, and nobody who presses Stop sees it.
"""

NO_MODEL: Final = (
    "no model is configured: the input is stored but nothing will answer it until the service "
    "is started with a model (--model-url and --model)"
)

OVERTAKEN: Final = "a stop that was sent after this reset came first; send it again to reopen"


@attrs.frozen(eq=False)
class _Barrier:
    """The place of a stop among the requests: what comes after it waits until it has ended."""

    reached: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class Desk:
    """One client's dealings with one session.

    Attributes:
        subscription: What it follows of it.
    """

    session_id: str
    subscription: Subscription
    _floor: Floor
    _door: Door
    _nursery: trio.Nursery
    _on_served: Callable[[ClientMessage], None]
    _on_idle: Callable[[Desk], None]
    _queue: deque[ClientMessage | _Barrier] = attrs.field(factory=deque, init=False)
    _is_working: bool = attrs.field(default=False, init=False)
    _is_sending_range: bool = attrs.field(default=False, init=False)

    @classmethod
    def of(
        cls,
        session_id: str,
        floor: Floor,
        door: Door,
        nursery: trio.Nursery,
        on_served: Callable[[ClientMessage], None],
        on_idle: Callable[[Desk], None],
    ) -> Self:
        """A desk at which nothing is asked and nothing followed."""
        subscription = Subscription.of(session_id, floor, door, nursery)
        return cls(session_id, subscription, floor, door, nursery, on_served, on_idle)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked and nothing is followed."""
        return not (self._is_working or self.subscription.is_open)

    def ask(self, message: ClientMessage) -> None:
        """Serve the message after those that were asked before."""
        self._queue.append(message)
        self._start()

    def stop(self, message: asks.Stop) -> None:
        """Stop the session at once; what is asked from now on waits for it."""
        barrier = _Barrier()
        self._queue.append(barrier)
        self._nursery.start_soon(self._stop, message, barrier, name=f"stop {self.session_id}")
        self._start()

    def _start(self) -> None:
        if not self._is_working:
            self._is_working = True
            self._nursery.start_soon(self._work, name=f"desk {self.session_id}")

    async def _work(self) -> None:
        while self._queue:
            first = self._queue.popleft()
            if isinstance(first, _Barrier):
                first.reached.set()
                await first.ended.wait()
            else:
                batch = self._batch(first)
                await self._answer(batch, self._serve(batch))
        self._is_working = False
        self._on_idle(self)

    def _batch(self, first: ClientMessage) -> list[ClientMessage]:
        """The request, with the inputs that stand behind it if it is one itself."""
        batch, size = [first], 0
        while isinstance(first, asks.SendInput) and self._queue and len(batch) < INPUTS_A_STEP:
            size += len(first.text)
            following = self._queue[0]
            if not isinstance(following, asks.SendInput) or size > CHARS_A_STEP:
                break
            self._queue.popleft()
            batch.append(following)
            first = following
        return batch

    async def _answer(self, batch: Sequence[ClientMessage], serving: Awaitable[None]) -> None:
        """Serve requests; whatever that fails with becomes their answer."""
        refusal = await refusal_of(serving)
        for message in batch:
            if refusal is not None:
                self._refuse(message, refusal)
            self._on_served(message)
        await self._door.flush()

    def _refuse(self, message: ClientMessage, refusal: RequestError) -> None:
        self._door.queue(says.Error.of(refusal.code, str(refusal), _context(message)))

    async def _serve(self, batch: Sequence[ClientMessage]) -> None:
        match batch[0]:
            case asks.SendInput():
                await self._admit([one for one in batch if isinstance(one, asks.SendInput)])
            case asks.Subscribe() as message:
                await self._subscribe(message)
            case asks.Unsubscribe() as message:
                await self.subscription.end()
                self._acknowledge(message)
            case asks.History() as message:
                found = page_before(message, self._floor.registry.store.row(self.session_id))
                with self.subscription.range_alone():
                    await self._send_range(message, found)
            case asks.GetSessionStatus() as message:
                self._door.queue(
                    status_message(self._floor.registry, self.session_id, message.request_id)
                )
            case asks.ResetKernel() as message:
                await self._reset(message)
            case asks.Interrupt() as message:
                await self._interrupt(message)
            case message:
                raise AssertionError(f"{message.type} is not served at a desk")

    async def _admit(self, messages: Sequence[asks.SendInput]) -> None:
        registry = self._floor.registry
        sent = [
            Input(self.session_id, one.source, one.text, one.client_request_id) for one in messages
        ]
        began, stored = trio.current_time(), 0
        with self.subscription.input_in_flight():
            answers = await registry.store.admit_all(sent, refuse=registry.refusal(self.session_id))
            for message, answer in zip(messages, answers, strict=True):
                if isinstance(answer, RequestError):
                    self._refuse(message, answer)
                    continue
                stored += 1
                self._door.queue(
                    says.Ack(
                        session_id=self.session_id,
                        seq=answer.seq,
                        client_request_id=message.client_request_id,
                        duplicate=answer.duplicate,
                        request_id=message.request_id,
                    )
                )
                if answer.pending and not self._floor.has_model:
                    self._door.queue(
                        says.Error.of("no_model_configured", NO_MODEL, _context(message))
                    )
        self._floor.count_inputs(stored, trio.current_time() - began)

    async def _subscribe(self, message: asks.Subscribe) -> None:
        await self.subscription.prepare()
        # Read once: a commit may become visible between two reads.
        found = window(message, self._floor.registry.store.row(self.session_id))
        with self.subscription.begun_after(found.last):
            await self._send_range(message, found)

    async def _send_range(self, message: asks.Subscribe | asks.History, found: Range) -> None:
        store, records = self._floor.registry.store, self._floor.records
        self._is_sending_range = True
        try:
            await send_range(message, found, store=store, records=records, door=self._door)
        finally:
            self._is_sending_range = False

    async def _reset(self, message: asks.ResetKernel) -> None:
        failure = None
        try:
            await self._floor.registry.reopen(self.session_id, None)
        except (StoreUnavailable, KernelError, RegistryClosed) as exc:
            failure = str(exc)
        self._acknowledge(message, failure)

    async def _interrupt(self, message: asks.Interrupt) -> None:
        failure = None
        if not await self._floor.registry.interrupt(self.session_id):
            failure = "no cell is running"
        self._acknowledge(message, failure)

    async def _stop(self, message: asks.Stop, barrier: _Barrier) -> None:
        if not self._is_sending_range:
            with trio.move_on_after(STOP_COURTESY_S):
                await barrier.reached.wait()
        self._overtake(barrier)
        try:
            await self._answer([message], self._stop_session(message))
        finally:
            barrier.ended.set()

    def _overtake(self, barrier: _Barrier) -> None:
        """A reset that has not begun before the stop does not undo it."""
        if barrier.reached.is_set():
            return
        ahead = tuple(self._queue)[: self._queue.index(barrier)]
        for message in ahead:
            if isinstance(message, asks.ResetKernel):
                self._queue.remove(message)
                self._acknowledge(message, OVERTAKEN)
                self._on_served(message)

    async def _stop_session(self, message: asks.Stop) -> None:
        failure = receipt = None
        try:
            receipt = await self._floor.registry.stop(self.session_id)
        except (StoreUnavailable, KernelError) as exc:
            failure = str(exc)
        self._acknowledge(message, failure, receipt)

    def _acknowledge(
        self,
        message: asks.Unsubscribe | asks.ResetKernel | asks.Stop | asks.Interrupt,
        failure: str | None = None,
        receipt: str | None = None,
    ) -> None:
        self._door.reply(
            says.OperatorAck(
                session_id=self.session_id,
                action=message.type,
                success=failure is None,
                message=receipt if failure is None else failure,
                request_id=message.request_id,
            )
        )


def _context(message: ClientMessage) -> Context:
    return Context(
        message.request_id,
        getattr(message, "session_id", None),
        getattr(message, "client_request_id", None),
    )
