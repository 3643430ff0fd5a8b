"""Short words for what the store's tests do again and again."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs

from klbr_trio.domain import work
from klbr_trio.domain.events import CellFinished, CellRequested, LocalSent, ReplyReceived
from klbr_trio.domain.ids import OperationId
from klbr_trio.store import Failure, Input, Results, Store, check

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from klbr_trio.store import Admission, Turn, WaitFor

SESSION: Final = "s-1"
UNREACHABLE: Final = Failure("provider_unavailable", "connection refused", retryable=True)
TOO_SLOW: Final = Failure("bound_time", "too slow", retryable=False)


@attrs.define(eq=False)
class StandingClock:
    """A wall clock that moves only when it is told to."""

    ms: int = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


async def admit(
    store: Store, text: str = "hi", *, session: str = SESSION, key: str | None = None
) -> Admission:
    return await store.admit(Input(session, "cli", text, key))


async def claim(store: Store, *, session: str = SESSION, attempt: str | None = None) -> Turn:
    turn = await store.claim_turn(
        session, attempt_id=attempt or OperationId.fresh(), release="sha256:r", model="m"
    )
    assert turn is not None
    return turn


async def begin(store: Store, text: str = "hi", *, session: str = SESSION) -> Turn:
    """An input was admitted, and a turn runs for it."""
    await admit(store, text, session=session)
    return await claim(store, session=session)


async def ask(store: Store, turn: Turn, *calls: str, step: int = 1) -> None:
    """The model replied and asked for these calls."""
    await store.reply(
        turn,
        ReplyReceived(turn.attempt_id, step, "m", "tool_calls", {"total_tokens": 3}, None),
        scratchpad="thinking",
        calls=[CellRequested(turn.attempt_id, step, call, f"run({call!r})") for call in calls],
        refused=[],
    )


def result(turn: Turn, call: str, *, step: int = 1, error: str | None = None) -> CellFinished:
    return CellFinished(
        turn.attempt_id, step, call, ok=error is None, output="", value=None, error=error,
        truncated=False, duration_ms=1,
    )  # fmt: skip


async def say(store: Store, turn: Turn, text: str, call: str | None, *, epoch: int = 1) -> int:
    return await store.say(turn, LocalSent(text, turn.attempt_id, 1, call), hook_epoch=epoch)


async def finish(store: Store, turn: Turn, *calls: str, gone: str | None = None) -> None:
    """The calls have results."""
    await store.result(turn, Results(tuple(result(turn, call) for call in calls), gone))


async def complete(
    store: Store, turn: Turn, outcome: str = "replied", wait: WaitFor | None = None
) -> None:
    await store.complete(turn, outcome=outcome, wait=wait, results=Results(), usage=None)


async def fail(store: Store, turn: Turn, failure: Failure = UNREACHABLE) -> None:
    await store.fail(turn, failure, results=Results())


async def crash(store: Store, turn: Turn) -> None:
    """The attempt is interrupted as recovery does it."""
    assert await store.interrupt(turn.session_id, turn.attempt_id, why="crash")


def chore(id: str = "chore-1", *, session: str | None = SESSION) -> work.WorkItem:  # noqa: A002
    item = work.WorkItem.new(
        id,
        "tidy up",
        work.MaintenanceReady(id, "tidy up"),
        work.ConsequenceMetadata(work.Impact.NORMAL),
        work.Provenance.agent("a-test", 1),
        1,
    )
    return item if session is None else item.with_session(session)


async def kinds(store: Store, after: int = 0, *, session: str = SESSION) -> list[str]:
    return [event.kind for event in await store.history(session, after, 10_000)]


async def payload(
    store: Store, kind: str, *, session: str = SESSION, nth: int = -1
) -> dict[str, Any]:
    """The payload of the last event of a kind, or of the nth."""
    events = await store.history(session, 0, 10_000)
    return [event.payload for event in events if event.kind == kind][nth]


async def status(store: Store, item: str) -> work.WorkStatus:
    found = await store.get_work_item(item)
    assert found is not None
    return found.status


async def causes(store: Store, *, session: str = SESSION) -> list[work.RunCause]:
    """Why the session would run now."""
    return [item.cause for item in await store.pending_work_items(session)]


async def sound(store: Store) -> None:
    """Every invariant holds."""
    assert await check(store) == []


@contextmanager
def raw(path: Path) -> Generator[sqlite3.Connection]:
    """A bare connection, as somebody with another tool would have."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as conn:
        yield conn
