"""Stop is one commit; only the operator's reset leads back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from store_lab import (
    SESSION,
    admit,
    ask,
    begin,
    causes,
    chore,
    claim,
    complete,
    crash,
    kinds,
    payload,
    say,
    sound,
    status,
)

from klbr_trio.domain import session as sessions, work
from klbr_trio.errors import ClaimLost, IllegalTransition, UnknownSession
from klbr_trio.store import Store, WaitFor

if TYPE_CHECKING:
    from pathlib import Path

STOPPED = work.Cancelled("stopped")


async def test_stop_ends_everything_in_one_commit(store_path: Path) -> None:
    commits: list[str] = []
    async with Store.open(store_path, on_commit=commits.append) as store:
        await complete(store, await begin(store), "waiting", WaitFor(90, "later"))
        turn = await begin(store)
        await ask(store, turn, "a", "b")
        await say(store, turn, "hello", "a")
        await admit(store, "for later")
        await store.insert_work_item(chore())
        head = store.head(SESSION)
        commits.clear()
        assert await store.stop(SESSION)
        assert commits == ["before:stop", "after:stop"]
        assert await kinds(store, after=head) == [
            "cell.finished", "cell.finished", "turn.interrupted", "session.stopped",
        ]  # fmt: skip
        assert await payload(store, "turn.interrupted") == {
            "attempt_id": turn.attempt_id,
            "why": "stopped",
            "failed": [],
        }
        assert (await payload(store, "session.stopped")) == {}
        assert await status(store, turn.items[0].id) == STOPPED
        assert await status(store, "chore-1") == STOPPED
        assert [type(cause) for cause in await causes(store)] == [work.InputReady]
        assert await store.session_state(SESSION) == ("stopped", None)
        assert store.next_deadline() is None
        assert not store.is_runnable(SESSION)
        with pytest.raises(ClaimLost):
            await complete(store, turn)
        await sound(store)


async def test_stop_of_a_stopped_session_is_no_event(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)
        assert await store.stop(SESSION)
        assert not await store.stop(SESSION)
        assert await kinds(store) == ["session.stopped"]


async def test_stop_cancels_however_many_items_there_are(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)
        for n in range(3):
            await store.insert_work_item(chore(f"chore-{n}"))
        await store.stop(SESSION)
        assert await causes(store) == []
        await sound(store)


async def test_nothing_automatic_leaves_stopped(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await admit(store)
        await store.stop(SESSION)
        assert not await store.interrupt(SESSION, turn.attempt_id, why="crash")
        assert await store.wake_due(2**53) == []
        with pytest.raises(IllegalTransition, match="stopped has no move 'wait'"):
            await store.arm(SESSION, receipt=None, wake_at_ms=1, reason=None)
        await store.insert_work_item(chore())
        assert store.runnable("", 10) == []
    async with Store.open(store_path) as store:
        assert await store.session_state(SESSION) == ("stopped", None)
        await sound(store)


async def test_reset_reopens_a_stopped_session_and_its_inputs_run(store_path: Path) -> None:
    commits: list[str] = []
    async with Store.open(store_path, on_commit=commits.append) as store:
        await admit(store)
        await store.stop(SESSION)
        commits.clear()
        assert await store.reset(SESSION)
        assert commits == ["before:reopen", "after:reopen"]
        assert await payload(store, "session.reopened") == {"hook_epoch": 2}
        assert await store.session_state(SESSION) == ("ready", None)
        assert (await claim(store)).causes == (work.InputReady(1),)
        await sound(store)


async def test_reset_of_any_other_session_is_a_fresh_kernel(store_path: Path) -> None:
    commits: list[str] = []
    async with Store.open(store_path, on_commit=commits.append) as store:
        await complete(store, await begin(store), "waiting", WaitFor(90, None))
        commits.clear()
        assert not await store.reset(SESSION)
        assert commits == ["before:reset", "after:reset"]
        assert await payload(store, "kernel.reset") == {"why": "operator", "hook_epoch": 2}
        assert await store.session_state(SESSION) == ("waiting", 90)
        turn = await begin(store)
        assert not await store.reset(SESSION)
        row = store.row(SESSION)
        assert row is not None
        assert row.state == sessions.Executing(turn.attempt_id, 3)
        await complete(store, turn)
        await sound(store)


async def test_every_reset_and_reopening_is_one_more_epoch(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)
        await store.reset(SESSION)
        await store.stop(SESSION)
        await store.reset(SESSION)
        await store.kernel_gone(SESSION, why="idle")
        events = await store.history(SESSION, 0, 10)
        assert [e.payload.get("hook_epoch") for e in events] == [2, None, 3, 4]
        await sound(store)


async def test_what_nobody_made_can_be_neither_stopped_nor_reset(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        with pytest.raises(UnknownSession, match="no session 'nobody'"):
            await store.stop("nobody")
        with pytest.raises(UnknownSession):
            await store.reset("nobody")
        with pytest.raises(UnknownSession):
            await store.kernel_gone("nobody", why="idle")


async def test_a_stopped_crash_is_named_after_the_reopening(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await crash(store, turn)
        await store.stop(SESSION)
        await store.reset(SESSION)
        again = await claim(store)
        assert again.causes == (work.Recovery(turn.attempt_id), work.InputReady(1))
        await sound(store)
