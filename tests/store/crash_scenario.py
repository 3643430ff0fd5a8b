"""A life of three sessions that passes every commit point, one commit at a time.

Run as a program it lives that life once for each place beside a commit, each in a
process of its own that ends there as a crash ends one: `crash_scenario.py FOLDER`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from klbr_trio.domain.events import CellFinished, CellRequested, LocalSent, ReplyReceived
from klbr_trio.domain.frontier import Frontier
from klbr_trio.domain.work import (
    ConsequenceMetadata,
    MaintenanceReady,
    Provenance,
    WorkItem,
)
from klbr_trio.store import Failure, Input, Results, Store, WaitFor

if TYPE_CHECKING:
    from collections.abc import Callable

    from klbr_trio.store import Turn

NOW_MS: Final = 1_000_000
DUE_MS: Final = 500_000
CRASHED: Final = 42
KEYS: Final = ("k-1", "k-2", "k-3")


def sent(key: str) -> Input:
    return Input("talker", "cli", f"text of {key}", key)


async def live(path: Path, on_commit: Callable[[str], None]) -> None:
    """The whole life; every step is one commit, in this order."""
    async with Store.open(path, now_ms=lambda: NOW_MS, on_commit=on_commit) as store:
        await store.ensure_session("sleeper")
        await store.admit(sent("k-1"))
        await store.append("talker", "my.kind", {"a": 1})
        await turn_with_cells(store, "op-1")
        await store.arm("sleeper", receipt=None, wake_at_ms=DUE_MS, reason="later")
        await store.wake_due(NOW_MS)
        await store.insert_work_item(chore())
        await broken_turns(store)
        await store.install_frontier("talker", Frontier(1, 4, "so far", "folder"))
        await store.reset("talker")
        await store.admit(sent("k-3"))
        await claim(store, "op-4")
        await store.stop("talker")
        await store.reset("talker")
        await store.mark_recovered()


async def turn_with_cells(store: Store, attempt: str) -> None:
    turn = await claim(store, attempt)
    received = ReplyReceived(attempt, 1, "m", "tool_calls", None, None)
    calls = [CellRequested(attempt, 1, name, "1") for name in ("a", "b")]
    await store.reply(turn, received, scratchpad="hmm", calls=calls, refused=[])
    await store.say(turn, LocalSent("hello", attempt, 1, "a"), hook_epoch=1)
    await store.result(turn, Results((result(attempt, "a"),)))
    await store.complete(
        turn,
        outcome="waiting",
        wait=WaitFor(2 * NOW_MS, "rest"),
        results=Results((result(attempt, "b"),)),
        usage=None,
    )


async def broken_turns(store: Store) -> None:
    await store.admit(sent("k-2"))
    turn = await claim(store, "op-2")
    await store.interrupt("talker", turn.attempt_id, why="shutdown")
    again = await claim(store, "op-3")
    await store.fail(again, Failure("internal", "oh", retryable=False), results=Results())


async def claim(store: Store, attempt: str) -> Turn:
    turn = await store.claim_turn("talker", attempt_id=attempt, release="r", model="m")
    assert turn is not None
    return turn


def result(attempt: str, call: str) -> CellFinished:
    return CellFinished(
        attempt, 1, call, ok=True, output="", value="1", error=None, truncated=False, duration_ms=1
    )


def chore() -> WorkItem:
    made = Provenance.agent("a-test", NOW_MS)
    return WorkItem.new(
        "chore-1", "tidy", MaintenanceReady("chore-1", "tidy"), ConsequenceMetadata(), made, NOW_MS
    ).with_session("sleeper")


def crash_beside(path: Path, at: int) -> None:
    """Live up to the `at`th place beside a commit, and end there without a farewell."""
    places = 0

    def maybe_crash(_: str) -> None:
        nonlocal places
        if places == at:
            os._exit(CRASHED)
        places += 1

    trio.run(live, path, maybe_crash)
    os._exit(0)


def main(folder: Path) -> None:
    ends = {}
    at = 0
    while True:
        child = os.fork()
        if child == 0:
            crash_beside(folder / f"{at}.sqlite", at)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ends[at] = status
        if status != CRASHED:
            break
        at += 1
    json.dump(ends, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
