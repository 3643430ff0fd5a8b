"""Random valid histories: lists of moves, made by the store's own operations."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
from hypothesis import strategies as st

from klbr_trio.domain.events import CellFinished, CellRequested, LocalSent, ReplyReceived
from klbr_trio.domain.frontier import Frontier
from klbr_trio.domain.ids import OperationId
from klbr_trio.domain.work import (
    ConsequenceMetadata,
    MaintenanceReady,
    Provenance,
    WorkItem,
)
from klbr_trio.store import Failure, Input, Results, Store, Turn, WaitFor

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

SID: Final = "s"
NOW_MS: Final = 1_800_000_000_000


@attrs.define(eq=False)
class History:
    """A session whose history is being made, one move at a time."""

    store: Store
    turn: Turn | None = None
    step: int = 0
    replied: bool = False
    calls: list[str] = attrs.field(factory=list)
    count: int = 0
    stopped: bool = False
    size: int = 10

    def fresh(self) -> int:
        self.count += 1
        return self.count

    async def move(self, name: str, number: int) -> None:
        """The move is made; where the state does not allow it, what would come next anyway."""
        if self.stopped and name != "reset":
            name = "reset" if number % 3 == 0 else "note"
        if name in _IN_TURN and self.turn is None:
            name = "admit" if self.store.is_runnable(SID) is False else "claim"
        elif self.turn is not None:
            if self.calls and name in ("reply", "complete", "claim"):
                name = "result"
            elif (not self.calls and name in ("result", "say")) or (
                name == "complete" and not self.replied
            ):
                name = "reply"
        if self.turn is not None and name in _IN_TURN:
            await _IN_TURN[name](self, self.turn, number)
        elif name in _ANY_TIME:
            await _ANY_TIME[name](self, number)

    # In a turn

    async def reply(self, turn: Turn, number: int) -> None:
        if self.calls:
            return
        self.step += 1
        ids = [f"c{self.fresh()}" for _ in range(number % 4)]
        # The provider's own ids may be the same in each reply.
        opaque: dict[str, Any] = {
            "reply": {},
            "calls": [f"call_{n}" for n in range(len(ids))],
            "hint": None,
        }
        refused = [call_id for n, call_id in enumerate(ids) if (number >> n) % 3 == 2]
        calls = [
            CellRequested(
                turn.attempt_id,
                self.step,
                call_id,
                code=None if call_id in refused else "x" * (number % self.size),
                raw="not json" if call_id in refused else None,
            )
            for call_id in ids
        ]
        await self.store.reply(
            turn,
            ReplyReceived(turn.attempt_id, self.step, "m", "stop", None, opaque),
            scratchpad="t" * (number % self.size) or None,
            calls=calls,
            refused=[self._result(turn, call_id, ok=False) for call_id in refused],
        )
        self.calls = [call_id for call_id in ids if call_id not in refused]
        self.replied = True

    def _result(self, turn: Turn, call_id: str, *, ok: bool, output: str = "") -> CellFinished:
        return CellFinished(
            turn.attempt_id, self.step, call_id, ok=ok, output=output,
            value=None, error=None if ok else "it failed", truncated=False, duration_ms=1,
        )  # fmt: skip

    async def result(self, turn: Turn, number: int) -> None:
        if not self.calls:
            return
        done = self._result(turn, self.calls.pop(0), ok=bool(number % 2), output="o" * self.size)
        await self.store.result(turn, Results((done,), None if number % 5 else "died"))

    async def say(self, turn: Turn, number: int) -> None:
        if self.calls:
            row = self.store.row(SID)
            assert row is not None
            said = LocalSent(f"said {number}", turn.attempt_id, self.step, self.calls[0])
            await self.store.say(turn, said, hook_epoch=row.hook_epoch)

    async def complete(self, turn: Turn, number: int) -> None:
        if self.calls or not self.replied:
            return
        wait = WaitFor(NOW_MS + number * 1000, "a reason") if number % 3 == 0 else None
        outcome = "waiting" if wait else ("done", "replied")[number % 2]
        await self.store.complete(turn, outcome=outcome, wait=wait, results=Results(), usage=None)
        self._ended()

    async def fail(self, turn: Turn, number: int) -> None:
        failure = Failure("provider_unavailable", f"down {number}", retryable=bool(number % 2))
        await self.store.fail(turn, failure, results=Results())
        self._ended()

    async def interrupt(self, turn: Turn, number: int) -> None:
        why = ("shutdown", "aborted", "crash")[number % 3]
        assert await self.store.interrupt(SID, turn.attempt_id, why=why)
        self._ended()

    def _ended(self) -> None:
        self.turn, self.step, self.replied, self.calls = None, 0, False, []

    # At any time

    async def admit(self, number: int) -> None:
        if not self.stopped:
            text = f"<<input {self.fresh()}>>" + "i" * (number % self.size)
            await self.store.admit(Input(SID, "operator", text, None))

    async def maintain(self, _: int) -> None:
        name = f"upkeep-{self.fresh()}"
        item = WorkItem.new(
            name, "tidy", MaintenanceReady(name, "tidy"), ConsequenceMetadata(),
            Provenance.agent("a", 1), 1,
        )  # fmt: skip
        await self.store.insert_work_item(item.with_session(SID))

    async def arm(self, number: int) -> None:
        if self.turn is None and not self.stopped:
            await self.store.arm(
                SID, receipt=None, wake_at_ms=NOW_MS + number * 1000, reason=f"wait {number}"
            )

    async def wake(self, number: int) -> None:
        await self.store.wake_due(NOW_MS + number * 2000)

    async def claim(self, _: int) -> None:
        if self.turn is None:
            self.turn = await self.store.claim_turn(
                SID, attempt_id=OperationId.fresh(), release="r", model="m"
            )

    async def stop(self, number: int) -> None:
        if number % 4 == 0:
            await self.store.stop(SID)
            self.stopped = True
            self._ended()

    async def reset(self, _: int) -> None:
        await self.store.reset(SID)
        self.stopped = False

    async def note(self, number: int) -> None:
        await self.store.append(SID, "scratchpad", {"text": f"noted {number}"})
        await self.store.append(SID, "custom.kind", {"n": number})

    async def fold(self, number: int) -> None:
        row = self.store.row(SID)
        assert row is not None
        floor = row.fold_seq or 0
        to = min(row.head_seq, floor + number)
        frontier = Frontier(row.fold_epoch + 1, to, f"summary {number}", "a-test")
        await self.store.install_frontier(SID, frontier)


_IN_TURN: Final[dict[str, Callable[[History, Turn, int], Awaitable[None]]]] = {
    "reply": History.reply,
    "result": History.result,
    "say": History.say,
    "complete": History.complete,
    "fail": History.fail,
    "interrupt": History.interrupt,
}
_ANY_TIME: Final[dict[str, Callable[[History, int], Awaitable[None]]]] = {
    "admit": History.admit,
    "maintain": History.maintain,
    "arm": History.arm,
    "wake": History.wake,
    "claim": History.claim,
    "stop": History.stop,
    "reset": History.reset,
    "note": History.note,
    "fold": History.fold,
}

_OFTEN: Final = ["admit", *["reply", "result"] * 4, "complete", "complete"]
moves = st.lists(
    st.tuples(st.sampled_from([*_IN_TURN, *_ANY_TIME, *_OFTEN]), st.integers(0, 60)),
    min_size=20,
    max_size=60,
)


@asynccontextmanager
async def open_history(folder: Path, size: int = 10) -> AsyncGenerator[History]:
    """A session without a history; texts grow up to `size`."""
    async with Store.open(folder / "klbr.sqlite", now_ms=lambda: NOW_MS) as store:
        await store.ensure_session(SID)
        yield History(store, size=size)
