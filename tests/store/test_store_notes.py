"""What others add to a session: rows, notes, work items, folds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from store_lab import SESSION, admit, begin, chore, complete, kinds, raw, sound, status

from klbr_trio.domain import work
from klbr_trio.domain.events import KINDS
from klbr_trio.domain.frontier import Frontier
from klbr_trio.domain.text import PAYLOAD_BYTES, TEXT_BYTES, json_bytes
from klbr_trio.errors import InvalidSessionId, TooLarge, UnknownSession
from klbr_trio.store import Store

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_session_is_made_once_and_without_an_event(store_path: Path) -> None:
    commits: list[str] = []
    async with Store.open(store_path, on_commit=commits.append) as store:
        assert await store.session_state(SESSION) is None
        await store.ensure_session(SESSION)
        await store.ensure_session(SESSION)
        assert await store.session_state(SESSION) == ("ready", None)
        assert await store.history(SESSION, 0, 10) == []
        assert commits == ["before:open-session", "after:open-session"]
        assert (await admit(store)).seq == 1
        with pytest.raises(InvalidSessionId):
            await store.ensure_session("../x")
        await sound(store)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("my.kind", {"a": [1, None, "é\x00"], "b": {}}),
        ("my.kind", {}),
        ("scratchpad", {"text": ""}),
        ("note", {"attempt_id": "op-9", "step": "none", "call_id": ["c"]}),
        ("x" * 128, {"big": 2**53}),
    ],
)
async def test_a_note_is_an_event_like_any_other(
    store_path: Path, kind: str, payload: dict[str, Any]
) -> None:
    async with Store.open(store_path, now_ms=lambda: 9) as store:
        await store.ensure_session(SESSION)
        event = await store.append(SESSION, kind, payload)
        assert (event.seq, event.session_id, event.kind) == (1, SESSION, kind)
        assert (event.payload, event.created_ms) == (payload, 9)
        assert await store.history(SESSION, 0, 10) == [event]
        turn = await begin(store)
        await store.append(SESSION, kind, payload)
        await complete(store, turn)
        await sound(store)


async def test_a_note_is_what_it_was_when_it_was_given(store_path: Path) -> None:
    payload: dict[str, Any] = {"a": 1}
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)

        def change(_: str) -> None:
            payload["a"] = {"b": float("nan")}

        waiting = store.append(SESSION, "my.kind", payload)
        with store.watch(lambda rows: change(str(rows))):
            event = await waiting
        assert event.payload == {"a": 1}


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"scratchpad"}))
async def test_the_service_s_own_kinds_are_refused(store_path: Path, kind: str) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)
        with pytest.raises(ValueError, match="written by the service alone"):
            await store.append(SESSION, kind, {})


@pytest.mark.parametrize(
    ("kind", "payload", "error", "why"),
    [
        ("", {}, ValueError, "kind must not be empty"),
        ("a\nb", {}, ValueError, "kind must not hold control"),
        ("x" * 129, {}, ValueError, "kind has 129"),
        ("my.kind", [], ValueError, "must be an object"),
        ("my.kind", {"a": {1}}, ValueError, "can't be stored as JSON"),
        ("my.kind", {"a": float("inf")}, ValueError, "JSON"),
        ("my.kind", {"a": "\ud800"}, ValueError, "lone surrogate"),
        ("scratchpad", {"text": "\ud800"}, ValueError, "lone surrogate"),
        ("scratchpad", {"text": 1}, ValueError, "has `text`"),
        ("scratchpad", {"text": "a", "step": 1}, ValueError, "nothing else"),
        ("scratchpad", {"text": "a" * (TEXT_BYTES + 1)}, TooLarge, "the text has over"),
        ("my.kind", {"a": "a" * PAYLOAD_BYTES}, TooLarge, "the payload of my.kind has over"),
    ],
)
async def test_what_is_no_note(
    store_path: Path, kind: str, payload: Any, error: type[Exception], why: str
) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)
        with pytest.raises(error, match=why):
            await store.append(SESSION, kind, payload)
        assert await store.history(SESSION, 0, 10) == []


@pytest.mark.parametrize("levels", [65, 5_000])
async def test_a_note_that_no_reader_s_stack_could_take_is_refused(
    store_path: Path, levels: int
) -> None:
    payload: dict[str, Any] = {}
    for _ in range(levels):
        payload = {"a": payload}
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)
        with pytest.raises(TooLarge, match="nested"):
            await store.append(SESSION, "my.kind", payload)


async def test_a_note_to_nobody_is_refused(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        with pytest.raises(UnknownSession):
            await store.append("nobody", "my.kind", {})


async def test_an_inserted_item_is_read_as_it_was_given(store_path: Path) -> None:
    causes: list[work.RunCause] = [
        work.MaintenanceReady("m", "tidy"),
        work.DeadlineWake(-7),
        work.Repair("op-gone"),
        work.Recovery("op-gone"),
    ]
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)
        items = [attrs.evolve(chore(f"i-{n}"), cause=cause) for n, cause in enumerate(causes)]
        for item in items:
            assert await store.insert_work_item(item)
            assert not await store.insert_work_item(item)
            assert await store.get_work_item(item.id) == item
            assert store.work_item(item.id) == item
        assert await store.pending_work_items(SESSION) == items
        assert await store.get_work_item("unknown") is None
        await sound(store)


async def test_an_id_is_used_once_even_when_its_item_has_ended(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)
        await store.insert_work_item(chore())
        await store.stop(SESSION)
        assert not await store.insert_work_item(chore())
        assert await status(store, "chore-1") == work.Cancelled("stopped")


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (chore(session=None), "belongs to no session"),
        (attrs.evolve(chore(), status=work.Failed("x")), "must be pending"),
        (chore("work-input-7"), "made by admission alone"),
        (attrs.evolve(chore(), cause=work.InputReady(1)), "made by admission alone"),
        (chore(""), "1 to 1000 characters"),
        (chore("x" * 1001), "1 to 1000 characters"),
        (attrs.evolve(chore(), cause=work.Repair("x" * 1001)), "1 to 1000 characters"),
        (attrs.evolve(chore(), cause=work.DeadlineWake(2**60)), "wake_at_ms must lie within"),
        (attrs.evolve(chore(), cause=work.Repair("\ud800")), "lone surrogate"),
        (chore("a\ud800"), "lone surrogate"),
        (attrs.evolve(chore(), purpose="\ud800"), "lone surrogate"),
    ],
)
async def test_what_is_no_work_item_to_insert(
    store_path: Path, item: work.WorkItem, why: str
) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session(SESSION)
        with pytest.raises(ValueError, match=why):
            await store.insert_work_item(item)
        assert await store.all_pending_work_items() == []


async def test_an_item_for_nobody_is_refused(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        with pytest.raises(UnknownSession):
            await store.insert_work_item(chore(session="nobody"))


async def test_folds_follow_each_other_and_hide_nothing(store_path: Path) -> None:
    async with Store.open(store_path, now_ms=lambda: 9) as store:
        for _ in range(3):
            await admit(store)
        assert store.frontier(SESSION) is None
        one = Frontier(1, 2, "so far", "folder", 5, ("a", "b"), "it went well", "op-1")
        event = await store.install_frontier(SESSION, one)
        assert (event.seq, event.payload) == (
            4,
            {"epoch": 1, "drained_through_seq": 2, "summary": "so far", "derived_by": "folder"},
        )
        assert store.frontier(SESSION) == one
        await store.install_frontier(SESSION, Frontier(2, 4, "more", "folder"))
        assert store.frontier(SESSION) == Frontier(2, 4, "more", "folder", 9)
        row = store.row(SESSION)
        assert row is not None
        assert (row.fold_epoch, row.fold_seq) == (2, 4)
        assert len(await kinds(store)) == 5
        await sound(store)


@pytest.mark.parametrize(
    ("frontier", "why"),
    [
        (Frontier(1, 1, "", "x"), "epoch must be 2"),
        (Frontier(3, 1, "", "x"), "epoch must be 2"),
        (Frontier(2, 0, "", "x"), "must lie between 1 and 3"),
        (Frontier(2, 4, "", "x"), "must lie between 1 and 3"),
        (Frontier(2, -1, "", "x"), "must lie between 1 and 3"),
    ],
)
async def test_what_is_no_next_fold(store_path: Path, frontier: Frontier, why: str) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        await admit(store)
        await store.install_frontier(SESSION, Frontier(1, 1, "", "x"))
        with pytest.raises(ValueError, match=why):
            await store.install_frontier(SESSION, frontier)
        assert store.head(SESSION) == 3
        await store.install_frontier(SESSION, Frontier(2, 3, "", "x"))
        await sound(store)


async def test_a_long_summary_is_cut_alike_in_log_and_table(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store)
        event = await store.install_frontier(SESSION, Frontier(1, 1, "é" * TEXT_BYTES, "x"))
        found = store.frontier(SESSION)
        assert found is not None
        assert found.summary == event.payload["summary"]
        assert json_bytes(found.summary) <= TEXT_BYTES
        await sound(store)
    with raw(store_path) as conn:
        assert conn.execute("SELECT count(*) FROM frontier").fetchone() == (1,)


async def test_a_fold_of_nobody_is_refused(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        with pytest.raises(UnknownSession):
            await store.install_frontier("nobody", Frontier(1, 0, "", "x"))
