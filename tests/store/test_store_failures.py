"""Failed turns: their items, the one repair, and the wakes that an outage does not use up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from store_lab import (
    SESSION,
    TOO_SLOW,
    UNREACHABLE,
    StandingClock,
    admit,
    ask,
    begin,
    causes,
    chore,
    claim,
    complete,
    crash,
    fail,
    finish,
    kinds,
    payload,
    result,
    say,
    sound,
    status,
)

from klbr_trio.domain import work
from klbr_trio.domain.text import MESSAGE_BYTES, json_bytes
from klbr_trio.store import Failure, Results, Store, WaitFor
from klbr_trio.store.failures import delay_ms

if TYPE_CHECKING:
    from pathlib import Path


MINUTE = 60_000
DAY = 24 * 60 * MINUTE


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.mark.parametrize("failure", [UNREACHABLE, TOO_SLOW])
async def test_a_failed_turn_fails_its_items_and_makes_one_repair(
    store_path: Path, failure: Failure
) -> None:
    commits: list[str] = []
    async with Store.open(store_path, on_commit=commits.append) as store:
        await admit(store, "one")
        await admit(store, "two")
        turn = await claim(store)
        commits.clear()
        await fail(store, turn, failure)
        assert commits == ["before:close", "after:close"]
        assert await payload(store, "turn.failed") == {
            "type": "turn_failed",
            "attempt_id": turn.attempt_id,
            "code": failure.code,
            "message": failure.message,
            "retryable": failure.retryable,
        }
        for item in ("work-input-1", "work-input-2"):
            assert await status(store, item) == work.Failed(failure.code)
        assert await store.pending(SESSION, 10) == []
        assert await causes(store) == [work.Repair(turn.attempt_id)]
        assert await store.session_state(SESSION) == ("ready", None)
        assert store.is_runnable(SESSION)
        await sound(store)


async def test_a_failed_repair_makes_none(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await fail(store, await begin(store))
        repair = await claim(store)
        assert isinstance(repair.causes[0], work.Repair)
        await fail(store, repair)
        assert await causes(store) == []
        assert not store.is_runnable(SESSION)
        await sound(store)


async def test_a_repair_that_ran_with_an_input_makes_one(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await fail(store, await begin(store))
        await admit(store)
        both = await claim(store)
        assert len(both.items) == 2
        await fail(store, both)
        assert await causes(store) == [work.Repair(both.attempt_id)]
        await fail(store, await claim(store))
        assert await causes(store) == []
        await sound(store)


async def test_failed_maintenance_is_repaired_too(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)
        await store.insert_work_item(chore())
        turn = await claim(store)
        await fail(store, turn)
        assert await status(store, "chore-1") == work.Failed("provider_unavailable")
        assert await causes(store) == [work.Repair(turn.attempt_id)]
        await sound(store)


async def test_an_id_that_somebody_took_does_not_hinder_the_repair(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        turn = await claim(store, attempt="op-1")
        await store.insert_work_item(chore("work-repair-op-1"))
        await store.insert_work_item(chore("work-repair-op-1~2"))
        await fail(store, turn)
        ids = [item.id for item in await store.pending_work_items(SESSION)]
        assert ids == ["work-repair-op-1", "work-repair-op-1~2", "work-repair-op-1~3"]
        await sound(store)


async def test_a_failed_turn_leaves_no_call_without_a_result(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a", "b", "c")
        await say(store, turn, "hello", "b")
        await store.fail(turn, TOO_SLOW, results=Results((result(turn, "a"),)))
        done = [e.payload for e in await store.history(SESSION, 0, 99) if e.kind == "cell.finished"]
        assert [one["call_id"] for one in done] == ["a", "b", "c"]
        assert done[1]["error"] == (
            "the turn failed: bound_time; the code may have run, in part or whole; "
            'known: it sent "hello"'
        )
        assert done[2]["error"] == "not run: the turn failed: bound_time"
        await sound(store)


async def test_a_failed_turn_says_that_its_kernel_is_gone(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a")
        results = Results((result(turn, "a", error="killed"),), kernel_gone="died")
        await store.fail(turn, TOO_SLOW, results=results)
        assert (await kinds(store))[-3:] == ["cell.finished", "kernel.reset", "turn.failed"]
        await sound(store)


async def test_a_long_message_is_cut(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await fail(store, await begin(store), Failure("internal", "é" * 9000, retryable=False))
        assert json_bytes((await payload(store, "turn.failed"))["message"]) <= MESSAGE_BYTES


async def test_the_deadline_survives_a_failure(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await complete(store, await begin(store), "waiting", WaitFor(90, "later"))
        await fail(store, await begin(store))
        assert await store.session_state(SESSION) == ("waiting", 90)
        await fail(store, await claim(store))
        assert await store.session_state(SESSION) == ("waiting", 90)
        await sound(store)


# A wake is not used up by an outage


async def woken(store: Store, clock: StandingClock) -> int:
    """A session whose deadline has just fired; returns its time."""
    wake_at_ms = clock.ms + MINUTE
    await complete(store, await begin(store), "waiting", WaitFor(wake_at_ms, "look again"))
    clock.ms = wake_at_ms
    assert await store.wake_due(clock.ms) == [SESSION]
    return wake_at_ms


async def fail_twice(store: Store, failure: Failure = UNREACHABLE) -> None:
    """The turn and its repair."""
    await fail(store, await claim(store), failure)
    await fail(store, await claim(store), failure)


async def next_wake(store: Store, clock: StandingClock) -> None:
    due = store.next_deadline()
    assert due is not None
    clock.ms = due
    assert await store.wake_due(clock.ms) == [SESSION]


async def test_a_wake_is_tried_again_later_and_later_for_a_week(
    store_path: Path, clock: StandingClock
) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        of_ms = await woken(store, clock)
        delays: list[int] = []
        while True:
            await fail_twice(store)
            waiting = await payload(store, "session.waiting")
            if store.next_deadline() is None:
                break
            delays.append(waiting["wake_at_ms"] - clock.ms)
            assert waiting["retry"] == {"of_ms": of_ms, "n": len(delays)}
            assert waiting["reason"] == (
                f"try {len(delays)} again of the wake that failed: connection refused"
            )
            assert (await kinds(store))[-2:] == ["session.waiting", "turn.failed"]
            if len(delays) == 3:
                await sound(store)
            await next_wake(store, clock)
        assert delays[:5] == [1 * MINUTE, 5 * MINUTE, 15 * MINUTE, 60 * MINUTE, 60 * MINUTE]
        assert set(delays[4:]) == {60 * MINUTE}
        assert sum(delays) <= 7 * DAY < sum(delays) + 60 * MINUTE
        assert await causes(store) == []
        assert await store.session_state(SESSION) == ("ready", None)
        await sound(store)


def test_the_delays() -> None:
    assert [delay_ms(n) // MINUTE for n in range(1, 7)] == [1, 5, 15, 60, 60, 60]


async def test_the_first_failure_of_a_wake_arms_nothing(
    store_path: Path, clock: StandingClock
) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        await woken(store, clock)
        await fail(store, await claim(store))
        assert store.next_deadline() is None


async def test_a_failure_for_good_arms_nothing(store_path: Path, clock: StandingClock) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        await woken(store, clock)
        await fail_twice(store, TOO_SLOW)
        assert store.next_deadline() is None
        assert await store.session_state(SESSION) == ("ready", None)


async def test_an_input_that_fails_is_not_tried_again(
    store_path: Path, clock: StandingClock
) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        await admit(store)
        await fail_twice(store)
        assert store.next_deadline() is None


async def test_an_armed_deadline_stays(store_path: Path, clock: StandingClock) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        await woken(store, clock)
        await store.arm(SESSION, receipt=None, wake_at_ms=clock.ms + DAY, reason="my own")
        waiting = await payload(store, "session.waiting")
        await fail_twice(store)
        assert await payload(store, "session.waiting") == waiting
        assert store.next_deadline() == clock.ms + DAY
        await sound(store)


async def test_an_awaited_receipt_is_kept_beside_the_retry(
    store_path: Path, clock: StandingClock
) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        await woken(store, clock)
        await store.arm(SESSION, receipt="r-1", wake_at_ms=None, reason="a parcel")
        await fail_twice(store)
        waiting = await payload(store, "session.waiting")
        assert (waiting["receipt"], waiting["wake_at_ms"]) == ("r-1", clock.ms + MINUTE)
        await sound(store)


async def test_a_completed_attempt_ends_the_series(store_path: Path, clock: StandingClock) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        await woken(store, clock)
        await fail_twice(store)
        await next_wake(store, clock)
        await fail_twice(store)
        assert (await payload(store, "session.waiting"))["retry"]["n"] == 2
        armed = store.next_deadline()
        await complete(store, await begin(store))
        assert store.next_deadline() == armed
        await sound(store)
        await next_wake(store, clock)
        await fail_twice(store)
        assert (await payload(store, "session.waiting"))["retry"] == {"of_ms": armed, "n": 1}
        await sound(store)


async def test_a_series_ends_for_a_wake_that_is_pending(
    store_path: Path, clock: StandingClock
) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        await woken(store, clock)
        await fail_twice(store)
        due = store.next_deadline()
        turn = await begin(store)
        await next_wake(store, clock)
        await complete(store, turn)
        await fail_twice(store)
        assert (await payload(store, "session.waiting"))["retry"] == {"of_ms": due, "n": 1}


async def test_a_series_ends_for_a_wake_whose_repair_is_pending(
    store_path: Path, clock: StandingClock
) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        await woken(store, clock)
        await fail_twice(store)
        due = store.next_deadline()
        await next_wake(store, clock)
        failed = await claim(store)
        await fail(store, failed)
        await store.insert_work_item(chore())
        claimed = await store.claim_work_item("chore-1", "op-chore", clock.ms)
        assert claimed.turn is not None
        await complete(store, claimed.turn)
        await fail(store, await claim(store))
        assert (await payload(store, "session.waiting"))["retry"] == {"of_ms": due, "n": 1}


async def test_a_stop_ends_the_series(store_path: Path, clock: StandingClock) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        await woken(store, clock)
        await fail_twice(store)
        await store.stop(SESSION)
        assert store.next_deadline() is None
        await sound(store)


async def test_a_repair_of_another_session_s_wake_arms_nothing_here(
    store_path: Path, clock: StandingClock
) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        await woken(store, clock)
        turn = await claim(store)
        await fail(store, turn)
        await store.ensure_session("other")
        borrowed = attrs.evolve(chore("w-1", session="other"), cause=work.Repair(turn.attempt_id))
        await store.insert_work_item(borrowed)
        await fail(store, await claim(store, session="other"))
        assert await store.session_state("other") == ("ready", None)
        await sound(store)


async def test_an_interrupted_wake_keeps_its_place_in_the_series(
    store_path: Path, clock: StandingClock
) -> None:
    async with Store.open(store_path, now_ms=clock.now_ms) as store:
        of_ms = await woken(store, clock)
        await fail_twice(store)
        await next_wake(store, clock)
        await crash(store, await claim(store))
        await fail_twice(store)
        retry: dict[str, Any] = (await payload(store, "session.waiting"))["retry"]
        assert retry == {"of_ms": of_ms, "n": 2}
        await finish_nothing(store)


async def finish_nothing(store: Store) -> None:
    turn = await begin(store)
    await finish(store, turn)
    await complete(store, turn)
    await sound(store)
