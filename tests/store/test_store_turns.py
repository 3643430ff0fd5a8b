"""Turns: what is claimed, what only the claim's holder may write, and how a turn ends well."""

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
from klbr_trio.domain.events import CellRequested, LocalSent, ReplyReceived
from klbr_trio.domain.text import TEXT_BYTES
from klbr_trio.errors import BadRequest, ClaimLost, IllegalTransition, TooLarge
from klbr_trio.store import Claim, Results, Store, Turn, WaitFor

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_claim_takes_every_runnable_item_and_says_so(store_path: Path) -> None:
    async with Store.open(store_path, now_ms=lambda: 50) as store:
        await admit(store, "one")
        await admit(store, "two")
        turn = await claim(store, attempt="op-1")
        assert turn.causes == (work.InputReady(1), work.InputReady(2))
        assert (turn.started_seq, turn.hook_epoch) == (3, 1)
        assert await payload(store, "turn.started") == {
            "attempt_id": "op-1",
            "causes": [{"type": "input_ready", "seq": 1}, {"type": "input_ready", "seq": 2}],
            "work_items": ["work-input-1", "work-input-2"],
            "release": "sha256:r",
            "model": "m",
        }
        assert await status(store, "work-input-2") == work.Claimed("op-1", 50)
        assert await store.session_state(SESSION) == ("executing", None)
        assert await store.pending(SESSION, 10) == [1, 2]
        assert await causes(store) == []
        shown = store.status(SESSION)
        assert shown is not None
        assert (shown.pending, shown.release, shown.row.attempt_id) == (2, "sha256:r", "op-1")
        await sound(store)


async def test_nothing_is_claimed_twice_or_of_a_session_that_has_nothing(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        for session in ("unknown", SESSION):
            again = await store.claim_turn(session, attempt_id="op-x", release=None, model=None)
            assert again is None
            await store.ensure_session(SESSION)
        await begin(store)
        await admit(store)
        assert await store.claim_turn(SESSION, attempt_id="x", release=None, model=None) is None
        await store.stop(SESSION)
        assert await store.claim_turn(SESSION, attempt_id="x", release=None, model=None) is None


async def test_an_attempt_id_is_used_once_in_a_store(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        await complete(store, await claim(store, attempt="op-1"))
        await admit(store)
        with pytest.raises(IllegalTransition, match="op-1 was used before"):
            await claim(store, attempt="op-1")
        assert store.is_runnable(SESSION)
        await sound(store)


async def test_maintenance_runs_alone_and_in_its_place(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        await store.insert_work_item(chore("chore-1"))
        await store.insert_work_item(chore("chore-2"))
        await admit(store)
        seen = []
        while store.is_runnable(SESSION):
            turn = await claim(store)
            seen.append([item.id for item in turn.items])
            await complete(store, turn)
        assert seen == [["work-input-1", "work-input-4"], ["chore-1"], ["chore-2"]]
        await sound(store)


async def test_a_turn_takes_at_most_a_hundred_inputs(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        for _ in range(103):
            await admit(store)
        turn = await claim(store)
        assert [cause for cause in turn.causes] == [work.InputReady(n) for n in range(1, 101)]  # noqa: C416
        await complete(store, turn)
        assert len((await claim(store)).items) == 3


@pytest.mark.parametrize("character", ["a", "é"])
async def test_a_turn_takes_at_most_so_many_bytes_of_input(
    store_path: Path, character: str
) -> None:
    third = character * (TEXT_BYTES // 3 // len(character.encode()))
    async with Store.open(store_path) as store:
        for _ in range(4):
            await admit(store, third)
        taken = []
        while store.is_runnable(SESSION):
            turn = await claim(store)
            taken.append(len(turn.items))
            await complete(store, turn)
        assert taken == [2, 2]


async def test_the_largest_input_runs_alone(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        await admit(store, "a" * TEXT_BYTES)
        first = await claim(store)
        await complete(store, first)
        second = await claim(store)
        assert (len(first.items), len(second.items)) == (1, 1)


async def test_one_item_is_claimed_by_name(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        await store.insert_work_item(chore())
        got = await store.claim_work_item("chore-1", "op-1", 3000)
        assert got.is_claimed
        assert await status(store, "chore-1") == work.Claimed("op-1", 3000)
        started = await payload(store, "turn.started")
        assert (started["release"], started["model"]) == (None, None)
        assert started["causes"] == [
            {"type": "maintenance_ready", "item_id": "chore-1", "purpose": "tidy up"}
        ]
        assert await store.session_state(SESSION) == ("executing", None)
        assert await status(store, "work-input-1") == work.Pending()
        await sound(store)


async def test_what_can_not_be_claimed_by_name(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        await store.insert_work_item(chore())
        assert await store.claim_work_item("unknown", "op-1", 1) == Claim(None)
        turn = await claim(store)
        claimed = await store.claim_work_item("work-input-1", "op-2", 1)
        held = await store.claim_work_item("chore-1", "op-2", 1)
        await complete(store, turn)
        ended = await store.claim_work_item("work-input-1", "op-2", 1)
        await store.insert_work_item(chore("chore-2"))
        await store.stop(SESSION)
        await store.insert_work_item(chore("chore-3"))
        stopped = await store.claim_work_item("chore-3", "op-2", 1)
        assert not any(one.is_claimed for one in (claimed, held, ended, stopped))


async def test_a_reply_is_its_events_in_order(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        calls = [
            CellRequested(turn.attempt_id, 1, "a", "1"),
            CellRequested(turn.attempt_id, 1, "b", None, "{bad"),
        ]
        await store.reply(
            turn,
            ReplyReceived(turn.attempt_id, 1, "m", "stop", None, {"k": 1}),
            scratchpad="hmm",
            calls=calls,
            refused=[result(turn, "b", error="not JSON")],
        )
        assert await kinds(store, after=2) == [
            "reply.received", "scratchpad", "cell.requested", "cell.requested", "cell.finished",
        ]  # fmt: skip
        row = store.row(SESSION)
        assert row is not None
        assert row.open_calls == {"a": 1}
        await sound(store)


async def test_a_reply_without_thought_has_no_scratchpad(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        received = ReplyReceived(turn.attempt_id, 1, None, None, None, None)
        await store.reply(turn, received, scratchpad="", calls=[], refused=[])
        assert await kinds(store, after=2) == ["reply.received"]


async def test_what_is_said_lies_between_request_and_result(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a", "b")
        assert await say(store, turn, "hello", "a") == 7
        await finish(store, turn, "a")
        with pytest.raises(ClaimLost, match="call a has ended"):
            await say(store, turn, "late", "a")
        await say(store, turn, "second", "b")
        await finish(store, turn, "b")
        await say(store, turn, "plain text", None)
        assert (await payload(store, "local.sent"))["call_id"] is None
        await sound(store)


async def test_an_old_kernel_says_nothing_any_more(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a")
        await store.reset(SESSION)
        with pytest.raises(ClaimLost, match="the kernel was reset"):
            await say(store, turn, "from the grave", "a", epoch=1)
        await say(store, turn, "plain", None, epoch=1)
        await say(store, turn, "new", "a", epoch=2)
        await sound(store)


async def test_speech_is_never_cut_but_refused(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a")
        with pytest.raises(TooLarge):
            await say(store, turn, "a" * (TEXT_BYTES + 1), "a")
        with pytest.raises(BadRequest):
            await say(store, turn, "\ud800", "a")
        await say(store, turn, "a" * TEXT_BYTES, "a")
        assert len((await payload(store, "local.sent"))["text"]) == TEXT_BYTES


async def test_a_call_has_one_result(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a")
        await finish(store, turn, "a")
        for call in ("a", "never asked"):
            with pytest.raises(ClaimLost, match="is not open"):
                await finish(store, turn, call)
        await sound(store)


async def test_two_open_calls_have_two_names(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        with pytest.raises(IllegalTransition, match="call a is open already"):
            await ask(store, turn, "a", "a")
        assert await kinds(store, after=2) == []
        await sound(store)


@pytest.mark.parametrize(
    ("outcome", "wait", "state"),
    [
        ("replied", None, ("ready", None)),
        ("done", None, ("ready", None)),
        ("waiting", WaitFor(90, "later"), ("waiting", 90)),
    ],
)
async def test_a_turn_ends_in_one_commit(
    store_path: Path, outcome: str, wait: WaitFor | None, state: tuple[str, int | None]
) -> None:
    commits: list[str] = []
    async with Store.open(store_path, on_commit=commits.append) as store:
        turn = await begin(store)
        await ask(store, turn, "a", "b")
        commits.clear()
        results = Results(
            (result(turn, "a"), result(turn, "b", error="not run: the turn had ended"))
        )
        await store.complete(
            turn, outcome=outcome, wait=wait, results=results, usage={"total_tokens": 3}
        )
        assert commits == ["before:close", "after:close"]
        waiting = ["session.waiting"] if wait else []
        assert await kinds(store, after=6) == [
            "cell.finished", "cell.finished", *waiting, "turn.completed",
        ]  # fmt: skip
        assert (await payload(store, "turn.completed")) == {
            "attempt_id": turn.attempt_id,
            "outcome": outcome,
            "usage": {"total_tokens": 3},
        }
        assert await status(store, "work-input-1") == work.Completed(outcome)
        assert await store.session_state(SESSION) == state
        assert await store.pending(SESSION, 10) == []
        await sound(store)


async def test_a_turn_does_not_end_with_open_calls(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a", "b")
        with pytest.raises(IllegalTransition, match="calls without a result: b"):
            await store.complete(
                turn, outcome="done", wait=None, results=Results((result(turn, "a"),)), usage=None
            )
        assert await kinds(store, after=6) == []
        await sound(store)


@pytest.mark.parametrize(("outcome", "wait"), [("waiting", None), ("done", WaitFor(1, None))])
async def test_an_outcome_goes_with_its_wait(
    store_path: Path, outcome: str, wait: WaitFor | None
) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        with pytest.raises(ValueError, match="does not go with"):
            await complete(store, turn, outcome, wait)


async def test_only_the_open_attempt_writes(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        old = await begin(store)
        await ask(store, old, "a")
        await store.interrupt(SESSION, old.attempt_id, why="aborted")
        new = await claim(store)
        head = store.head(SESSION)
        stranger = Turn("unknown", "op-9", (), (), 1, 1)
        for turn in (old, stranger):
            with pytest.raises(ClaimLost):
                await ask(store, turn, "b")
            with pytest.raises(ClaimLost):
                await say(store, turn, "late", "a")
            with pytest.raises(ClaimLost):
                await finish(store, turn, "a")
            with pytest.raises(ClaimLost):
                await complete(store, turn)
            with pytest.raises(ClaimLost):
                await fail(store, turn)
            with pytest.raises(ClaimLost):
                await store.broken_off(turn, because="x")
        assert store.head(SESSION) == head
        await complete(store, new)
        await sound(store)


async def test_results_of_what_broke_off_are_made_and_not_written(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a", "b")
        await say(store, turn, "hello", "a")
        first, second = await store.broken_off(turn, because="the kernel died")
        assert first.error == (
            'the kernel died; the code may have run, in part or whole; known: it sent "hello"'
        )
        assert (second.call_id, second.error) == ("b", "not run: the kernel died")
        assert await kinds(store, after=7) == []
        await store.result(turn, Results((first, second)))
        await complete(store, turn)
        await sound(store)


async def test_a_cell_that_sent_much_is_quoted_in_part(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a")
        for n in range(7):
            await say(store, turn, f"{n}" * 300, "a")
        [told] = await store.broken_off(turn, because="it ended")
        assert told.error is not None
        assert told.error.endswith('44…" and 2 more')
        assert told.error.count("…") == 5


async def test_a_dead_kernel_is_announced_with_its_last_result(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a", "b")
        await finish(store, turn, "a", gone="died")
        assert await kinds(store, after=6) == ["cell.finished", "kernel.reset"]
        assert await payload(store, "kernel.reset") == {"why": "died", "hook_epoch": 2}
        await say(store, turn, "from the new one", "b", epoch=2)
        await finish(store, turn, "b")
        await complete(store, turn)
        await sound(store)


async def test_an_earlier_deadline_survives_a_turn_that_does_not_mention_it(
    store_path: Path,
) -> None:
    async with Store.open(store_path) as store:
        await complete(store, await begin(store), "waiting", WaitFor(90, "one"))
        turn = await begin(store)
        assert await store.session_state(SESSION) == ("executing", 90)
        await complete(store, turn)
        assert await store.session_state(SESSION) == ("waiting", 90)
        await complete(store, await begin(store), "waiting", WaitFor(120, "two"))
        assert await store.session_state(SESSION) == ("waiting", 120)
        await complete(store, await begin(store), "done")
        assert await store.session_state(SESSION) == ("ready", None)
        assert store.next_deadline() is None
        await sound(store)


async def test_the_first_turn_after_a_restart_announces_a_lost_kernel(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a")
        await finish(store, turn, "a")
        await complete(store, turn)
        await complete(store, await begin(store))
        assert "kernel.reset" not in await kinds(store)
    async with Store.open(store_path) as store:
        head = store.head(SESSION)
        turn = await begin(store)
        assert await kinds(store, after=head) == ["input.admitted", "turn.started", "kernel.reset"]
        assert await payload(store, "kernel.reset") == {"why": "restart", "hook_epoch": 2}
        assert turn.hook_epoch == 2
        await complete(store, turn)
        await complete(store, await begin(store))
        assert (await kinds(store)).count("kernel.reset") == 1
        await sound(store)
    async with Store.open(store_path) as store:
        await complete(store, await begin(store))
        assert (await kinds(store)).count("kernel.reset") == 1


async def test_a_session_whose_kernel_never_ran_has_nothing_to_announce(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        received = ReplyReceived(turn.attempt_id, 1, "m", "stop", None, None)
        unrunnable = CellRequested(turn.attempt_id, 1, "a", None, "{bad")
        await store.reply(
            turn,
            received,
            scratchpad=None,
            calls=[unrunnable],
            refused=[result(turn, "a", error="x")],
        )
        await complete(store, turn)
    async with Store.open(store_path) as store:
        await begin(store)
        assert "kernel.reset" not in await kinds(store)
        await sound(store)


@pytest.mark.parametrize("gone", ["died", "operator"])
async def test_calls_left_open_by_a_reset_run_in_a_kernel_that_can_be_lost(
    store_path: Path, gone: str
) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a", "b")
        if gone == "operator":
            await store.reset(SESSION)
            await finish(store, turn, "a")
        else:
            await finish(store, turn, "a", gone=gone)
        await finish(store, turn, "b")
        await complete(store, turn)
        await sound(store)
    async with Store.open(store_path) as store:
        await begin(store)
        assert (await payload(store, "kernel.reset"))["why"] == "restart"
        await sound(store)


async def test_a_kernel_gone_between_turns_is_announced_once(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await ask(store, turn, "a")
        await finish(store, turn, "a")
        await complete(store, turn)
        assert await store.kernel_gone(SESSION, why="idle") == 2
        await sound(store)
    async with Store.open(store_path) as store:
        await begin(store)
        assert (await kinds(store)).count("kernel.reset") == 1


async def test_a_crash_is_named_among_the_causes_of_the_next_turn(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await crash(store, turn)
        again = await claim(store)
        assert again.causes == (work.Recovery(turn.attempt_id), work.InputReady(1))
        await complete(store, again)
        assert (await begin(store)).causes == (work.InputReady(6),)
        await sound(store)


async def test_a_provider_that_sends_too_much_along_is_refused(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        big = ReplyReceived(turn.attempt_id, 1, "m", None, None, {"blob": "a" * 2**20})
        with pytest.raises(TooLarge, match=r"reply\.received has over"):
            await store.reply(turn, big, scratchpad=None, calls=[], refused=[])
        assert await kinds(store, after=2) == []
        said = LocalSent("still here", turn.attempt_id, 1, None)
        await store.say(turn, said, hook_epoch=1)
        await sound(store)
