"""Interrupts: what an attempt leaves when something else ends it."""

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

from klbr_trio.domain import work
from klbr_trio.store import CrashRule, Store, WaitFor
from klbr_trio.store.interrupts import BECAUSE

if TYPE_CHECKING:
    from pathlib import Path

GAVE_UP = work.Failed("interrupted_too_often")


@pytest.mark.parametrize("why", ["shutdown", "aborted", "crash"])
async def test_items_are_pending_again_and_open_calls_have_results(
    store_path: Path, why: str
) -> None:
    commits: list[str] = []
    async with Store.open(store_path, on_commit=commits.append) as store:
        turn = await begin(store)
        await ask(store, turn, "a", "b")
        await say(store, turn, "hello", "a")
        commits.clear()
        assert await store.interrupt(SESSION, turn.attempt_id, why=why)
        assert commits == ["before:interrupt", "after:interrupt"]
        first, second, end = await store.history(SESSION, 7, 10)
        assert first.payload["error"] == (
            f'{BECAUSE[why]}; the code may have run, in part or whole; known: it sent "hello"'
        )
        assert second.payload["error"] == f"not run: {BECAUSE[why]}"
        assert (first.payload["ok"], first.payload["duration_ms"]) == (False, None)
        assert (end.kind, end.payload) == (
            "turn.interrupted",
            {"attempt_id": turn.attempt_id, "why": why, "failed": []},
        )
        assert await status(store, "work-input-1") == work.Pending()
        assert await store.session_state(SESSION) == ("ready", None)
        assert store.is_runnable(SESSION)
        await sound(store)


async def test_a_call_that_sent_nothing_is_known_to_have_sent_nothing(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a")
        await crash(store, turn)
        error = (await payload(store, "cell.finished"))["error"]
        assert error.endswith("known: it sent nothing")


async def test_an_attempt_is_interrupted_once(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        assert not await store.interrupt("unknown", turn.attempt_id, why="crash")
        assert not await store.interrupt(SESSION, "op-other", why="crash")
        assert await store.interrupt(SESSION, turn.attempt_id, why="crash")
        head = store.head(SESSION)
        assert not await store.interrupt(SESSION, turn.attempt_id, why="crash")
        assert store.head(SESSION) == head


async def test_an_interrupted_session_waits_as_it_did(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await complete(store, await begin(store), "waiting", WaitFor(90, "later"))
        await crash(store, await begin(store))
        assert await store.session_state(SESSION) == ("waiting", 90)
        await sound(store)


async def test_the_third_crash_ends_an_item_and_the_agent_is_told_once(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        for n in (1, 2):
            await crash(store, await claim(store))
            assert await status(store, "work-input-1") == work.Pending(), n
        last = await claim(store)
        await crash(store, last)
        assert (await payload(store, "turn.interrupted"))["failed"] == ["work-input-1"]
        assert await status(store, "work-input-1") == GAVE_UP
        assert await store.pending(SESSION, 10) == []
        assert await causes(store) == [work.Recovery(last.attempt_id)]
        await sound(store)
        telling = await claim(store)
        assert telling.causes == (work.Recovery(last.attempt_id),)
        await complete(store, telling)
        assert not store.is_runnable(SESSION)
        await sound(store)


async def test_the_telling_of_a_crash_is_not_tried_again(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        for _ in range(3):
            await crash(store, await claim(store))
        telling = await claim(store)
        await crash(store, telling)
        assert await status(store, telling.items[0].id) == GAVE_UP
        assert (await payload(store, "turn.interrupted"))["failed"] == [telling.items[0].id]
        assert await causes(store) == []
        await sound(store)
        after = await begin(store)
        assert after.causes[0] == work.Recovery(telling.attempt_id)


async def test_other_interrupts_do_not_count(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        for why in ("shutdown", "aborted") * 3:
            turn = await claim(store)
            await store.interrupt(SESSION, turn.attempt_id, why=why)
        await crash(store, await claim(store))
        await crash(store, await claim(store))
        assert await status(store, "work-input-1") == work.Pending()
        await sound(store)


async def test_crashes_are_counted_per_item(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store, "one")
        await crash(store, await claim(store))
        await admit(store, "two")
        await crash(store, await claim(store))
        last = await claim(store)
        await crash(store, last)
        assert await status(store, "work-input-1") == GAVE_UP
        assert await status(store, "work-input-2") == work.Pending()
        assert set(await causes(store)) == {work.InputReady(4), work.Recovery(last.attempt_id)}
        both = await claim(store)
        assert list(both.causes).count(work.Recovery(last.attempt_id)) == 1
        await sound(store)


async def test_several_items_that_end_together_make_one_telling(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store, "one")
        await admit(store, "two")
        for _ in range(3):
            await crash(store, await claim(store))
        assert len(await causes(store)) == 1
        await sound(store)


async def test_the_rule_may_be_another(store_path: Path) -> None:
    quiet = CrashRule(max_crashes=1, observe=False)
    async with Store.open(store_path) as store:
        turn = await begin(store)
        assert await store.interrupt(SESSION, turn.attempt_id, why="crash", rule=quiet)
        assert await status(store, "work-input-1") == GAVE_UP
        assert await causes(store) == []
        await sound(store)


async def test_an_id_that_somebody_took_does_not_hinder_the_telling(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        turn = await claim(store, attempt="op-1")
        await store.insert_work_item(chore("work-recovery-op-1"))
        rule = CrashRule(max_crashes=1)
        await store.interrupt(SESSION, turn.attempt_id, why="crash", rule=rule)
        ids = [item.id for item in await store.pending_work_items(SESSION)]
        assert ids == ["work-recovery-op-1", "work-recovery-op-1~2"]
        await sound(store)


async def test_what_an_earlier_service_left_open_is_found_and_settled(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await begin(store, session="other")
        await store.ensure_session("idle")
        assert store.left_open() == []
        row = store.row(SESSION)
        assert row is not None
        assert not store.is_left_open(row)
    async with Store.open(store_path) as store:
        assert store.boot == 2
        left = store.left_open()
        assert [(one.session_id, one.boot) for one in left] == [("other", 1), (SESSION, 1)]
        for session in (SESSION, "idle"):
            row = store.row(session)
            assert row is not None
            assert store.is_left_open(row) == (session == SESSION)
        for one in left:
            await store.interrupt(one.session_id, one.attempt_id, why="crash")
        await store.mark_recovered()
        assert store.left_open() == []
        assert (await claim(store)).causes[0] == work.Recovery(turn.attempt_id)
        assert "turn.interrupted" in await kinds(store)
        await sound(store)
