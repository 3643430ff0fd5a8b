"""An input is stored once, whatever its sender repeats and whatever became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from store_lab import (
    SESSION,
    TOO_SLOW,
    admit,
    begin,
    claim,
    complete,
    crash,
    fail,
    kinds,
    payload,
    sound,
    status,
)

from klbr_trio.domain import work
from klbr_trio.domain.text import TEXT_BYTES
from klbr_trio.errors import (
    AdmissionRejected,
    BadRequest,
    InvalidSessionId,
    RequestError,
    SourceKeyConflict,
    TooLarge,
)
from klbr_trio.store import Admission, Input, Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


async def test_an_input_is_an_event_and_a_work_item(store_path: Path) -> None:
    async with Store.open(store_path, now_ms=lambda: 77) as store:
        assert await admit(store, "a\x00b", key="k-1") == Admission(1, duplicate=False)
        [event] = await store.history(SESSION, 0, 10)
        assert event.payload == {
            "source": "cli",
            "text": "a\x00b",
            "client_request_id": "k-1",
            "work_item_id": "work-input-1",
        }
        assert (event.seq, event.kind, event.created_ms) == (1, "input.admitted", 77)
        assert await store.get_work_item("work-input-1") == work.WorkItem(
            "work-input-1",
            "answer an input",
            work.InputReady(1),
            work.ConsequenceMetadata(),
            work.Provenance.operator("cli", 77),
            77,
            SESSION,
            work.Pending(),
        )
        assert await store.pending(SESSION, 10) == [1]
        await sound(store)


async def test_item_numbers_are_unique_in_the_store(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store, session="a")
        await admit(store, session="b")
        assert (await payload(store, "input.admitted", session="b"))[
            "work_item_id"
        ] == "work-input-2"


async def test_the_same_again_is_a_duplicate_and_another_text_a_conflict(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store, "hi", key="k")
        assert await admit(store, "hi", key="k") == Admission(1, duplicate=True)
        with pytest.raises(
            SourceKeyConflict, match="source key reused with different content: 'k' is input 1"
        ):
            await admit(store, "other", key="k")
        assert await kinds(store) == ["input.admitted"]
        await sound(store)


async def test_the_key_is_session_source_and_id_together(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        for session, source, key in [
            ("a", "x", "1"),
            ("b", "x", "1"),
            ("a", "y", "1"),
            ("a", "x", ""),
        ]:
            sent = Input(session, source, "hi", key)
            assert not (await store.admit(sent)).duplicate
            assert (await store.admit(sent)).duplicate


async def test_without_an_id_each_input_is_new(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        assert [(await admit(store)).seq for _ in range(3)] == [1, 2, 3]
        assert await store.pending(SESSION, 2) == [1, 2]


async def completed(store: Store) -> None:
    await complete(store, await claim(store))


async def failed(store: Store) -> None:
    await fail(store, await claim(store), TOO_SLOW)


async def given_up(store: Store) -> None:
    for _ in range(3):
        await crash(store, await claim(store))


async def claimed(store: Store) -> None:
    await claim(store)


async def stopped(store: Store) -> None:
    await store.stop(SESSION)


async def stopped_while_held(store: Store) -> None:
    await claim(store)
    await store.stop(SESSION)


async def refused(store: Store) -> None:
    with pytest.raises(AdmissionRejected):
        await store.admit(Input(SESSION, "cli", "new", None), refuse="draining")


@pytest.mark.parametrize(
    ("happened", "pending"),
    [
        (completed, False),
        (failed, False),
        (given_up, False),
        (claimed, True),
        (stopped, True),
        (stopped_while_held, False),
        (refused, True),
    ],
)
async def test_whatever_became_of_it_the_same_again_is_a_duplicate(
    store_path: Path, happened: Callable[[Store], Awaitable[None]], *, pending: bool
) -> None:
    expected = Admission(1, duplicate=True, pending=pending)
    async with Store.open(store_path) as store:
        await admit(store, "hi", key="k")
        await happened(store)
        again = Input(SESSION, "cli", "hi", "k")
        assert await store.admit(again, refuse="draining") == expected
        with pytest.raises(SourceKeyConflict):
            await admit(store, "other", key="k")
    async with Store.open(store_path) as store:
        assert await admit(store, "hi", key="k") == expected
        await sound(store)


async def test_a_stopped_session_takes_nothing_new(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store, key="k")
        await store.stop(SESSION)
        with pytest.raises(AdmissionRejected, match="cannot admit input: session 's-1' is stopped"):
            await admit(store, key="k2")
        assert await store.pending(SESSION, 10) == [1]
        await store.reset(SESSION)
        assert (await admit(store, key="k2")).seq == 4
        await sound(store)


async def test_a_service_that_refuses_stores_nothing_and_makes_no_session(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        with pytest.raises(AdmissionRejected, match="cannot admit input: draining"):
            await store.admit(Input("new", "cli", "hi", "k"), refuse="draining")
        assert await store.session_state("new") is None


async def test_an_input_during_an_attempt_waits_for_the_next(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        turn = await begin(store)
        await admit(store)
        assert await store.pending(SESSION, 10) == [1, 3]
        await complete(store, turn)
        assert await store.pending(SESSION, 10) == [3]
        assert isinstance(await status(store, "work-input-1"), work.Completed)
        await sound(store)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (Input("../x", "cli", "hi", None), InvalidSessionId),
        (Input("s", "", "hi", None), BadRequest),
        (Input("s", "cli", "", None), BadRequest),
        (Input("s", "cli", "\ud800", None), BadRequest),
        (Input("s", "cli", "hi", "\n"), BadRequest),
        (Input("s", "cli", "a" * (TEXT_BYTES + 1), None), TooLarge),
    ],
)
async def test_what_can_not_be_stored_as_it_was_sent_is_refused(
    store_path: Path, sent: Input, error: type[RequestError]
) -> None:
    async with Store.open(store_path) as store:
        with pytest.raises(error):
            await store.admit(sent)
        [answer] = await store.admit_all([sent])
        assert isinstance(answer, error)
        assert store.statuses("", 10) == []


async def test_several_inputs_in_one_step_are_stored_in_their_order(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await admit(store, "first", key="k")
        sent = [
            Input(SESSION, "cli", "a", None),
            Input(SESSION, "cli", "first", "k"),
            Input(SESSION, "cli", "other", "k"),
            Input(SESSION, "cli", "b", "b"),
            Input(SESSION, "cli", "b", "b"),
        ]
        one, again, conflict, two, two_again = await store.admit_all(sent)
        assert (one, again) == (Admission(2, duplicate=False), Admission(1, duplicate=True))
        assert isinstance(conflict, SourceKeyConflict)
        assert (two, two_again) == (Admission(3, duplicate=False), Admission(3, duplicate=True))
        texts = [event.payload["text"] for event in await store.history(SESSION, 0, 10)]
        assert texts == ["first", "a", "b"]
        await sound(store)


async def test_many_callers_with_one_key_make_one_input(store_path: Path) -> None:
    answers: list[Admission] = []

    async with Store.open(store_path) as store:

        async def send(n: int) -> None:
            answers.append(await admit(store, "hi", key=f"k-{n % 5}"))

        async with trio.open_nursery() as nursery:
            for n in range(100):
                nursery.start_soon(send, n)
        assert sorted(answer.seq for answer in answers if not answer.duplicate) == [1, 2, 3, 4, 5]
        assert len(answers) == 100
        await sound(store)
