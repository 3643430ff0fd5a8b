"""Windows, catch-ups and history: which events a client is sent, and what it is told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service_house import Caller, Service, open_service

from klbr_trio import Frontier

if TYPE_CHECKING:
    from pathlib import Path


async def fold(service: Service, session_id: str, *, epoch: int, through: int) -> None:
    await service.store.install_frontier(
        session_id, Frontier(epoch, through, f"what came before {through}", "a test")
    )


async def follows(service: Service, caller: Caller, session_id: str) -> None:
    """Whether the caller is sent the session's next event, and nothing before it."""
    head = service.store.head(session_id)
    await service.notes(session_id, 1)
    message = await caller.hear()
    assert (message["type"], message["record"]["seq"]) == ("event", head + 1)


async def test_a_window_is_the_newest_and_says_what_else_there_is(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.notes("s", 30)
        window = await caller.replay("subscribe", "s", after_seq=0, limit=10)
        assert window.started == {
            "type": "sync_started",
            "session_id": "s",
            "from_seq": 21,
            "to_seq": 30,
            "earliest_seq": 1,
        }
        assert window.completed == {"type": "sync_completed", "session_id": "s", "to_seq": 30}
        await follows(service, caller, "s")


async def test_the_whole_session_comes_if_the_limit_allows(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.notes("s", 12)
        for limit in (12, 13, None):
            window = await caller.replay("subscribe", "s", limit=limit)
            assert window.seqs == (1, 12)


async def test_bounds_of_a_window(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.notes("s", 1005)
        assert (await caller.replay("subscribe", "s")).seqs == (506, 1005)
        assert (await caller.replay("subscribe", "s", limit=5000)).seqs == (6, 1005)
        none = await caller.replay("subscribe", "s", limit=0)
        assert none.seqs == (1006, 1005)
        assert none.started["earliest_seq"] == 1
        await follows(service, caller, "s")
        page = await caller.replay("history", "s", before_seq=2000, limit=9999)
        assert page.seqs == (7, 1006)


async def test_a_window_opens_above_the_fold(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.notes("s", 30)
        await fold(service, "s", epoch=1, through=25)
        window = await caller.replay("subscribe", "s", limit=100)
        assert window.seqs == (26, 31), "the fold's own record is in it"
        assert (window.started["fold_seq"], window.started["earliest_seq"]) == (25, 1)
        assert window.records[-1]["kind"] == "frontier.installed"
        small = await caller.replay("subscribe", "s", limit=2)
        assert small.seqs == (30, 31), "the limit bounds it as well"
        await fold(service, "s", epoch=2, through=31)
        assert (await caller.hear())["record"]["seq"] == 32
        assert (await caller.replay("subscribe", "s")).seqs == (32, 32)


async def test_history_pages_behind_the_window_oldest_first(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.notes("s", 30)
        await fold(service, "s", epoch=1, through=25)
        page = await caller.replay("history", "s", before_seq=26, limit=5)
        assert page.seqs == (21, 25)
        assert (page.started["earliest_seq"], page.started["fold_seq"]) == (1, 25)
        assert (await caller.replay("history", "s", before_seq=3, limit=5)).seqs == (1, 2)
        assert (await caller.replay("history", "s", before_seq=1, limit=5)).seqs == (1, 0)
        assert (await caller.replay("history", "s", before_seq=32, limit=1)).seqs == (31, 31)
        assert (await caller.replay("history", "s", before_seq=10**6, limit=2)).seqs == (30, 31)
        await service.notes("s", 1)
        assert await caller.ask("ping") == {"type": "pong"}, "history starts no subscription"


async def test_a_catch_up_is_every_event_after_the_cursor(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.notes("s", 30)
        await fold(service, "s", epoch=1, through=25)
        missed = await caller.replay("subscribe", "s", after_seq=26, limit=1)
        assert missed.seqs == (27, 31)
        below = await caller.replay("subscribe", "s", after_seq=1, limit=0)
        assert below.seqs == (2, 31), "neither limit nor fold caps it"
        assert below.started["fold_seq"] == 25
        for cursor in (31, 32, 10**9):
            at_head = await caller.replay("subscribe", "s", after_seq=cursor)
            assert at_head.seqs == (32, 31)
            assert at_head.started["earliest_seq"] == 1
        await follows(service, caller, "s")


async def test_a_catch_up_of_many_pages_is_whole(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.notes("s", 1300, text="x" * 1500)
        assert (await caller.replay("subscribe", "s", after_seq=1)).seqs == (2, 1300)
        await follows(service, caller, "s")


async def test_an_unknown_session_is_empty_makes_no_row_and_becomes_live(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        for fields in ({}, {"after_seq": 7}, {"limit": 0}):
            window = await caller.replay("subscribe", "new", **fields)
            assert window.started == {
                "type": "sync_started",
                "session_id": "new",
                "from_seq": 1,
                "to_seq": 0,
            }
        page = await caller.replay("history", "new", before_seq=10, limit=5)
        assert page.seqs == (1, 0)
        assert "earliest_seq" not in page.started
        assert service.store.row("new") is None
        ack = await caller.input("new", "the first")
        assert (ack["type"], ack["seq"]) == ("ack", 1)
        await caller.hear_type("event")


async def test_an_empty_session_is_as_an_unknown_one(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.store.ensure_session("s")
        window = await caller.replay("subscribe", "s")
        assert window.seqs == (1, 0)
        assert "earliest_seq" not in window.started
        assert service.store.head("s") == 0
        await follows(service, caller, "s")


async def test_a_second_subscribe_replaces_the_first(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.notes("s", 5)
        for _ in range(3):
            assert (await caller.replay("subscribe", "s", limit=2)).seqs == (4, 5)
        await follows(service, caller, "s")
        assert await caller.ask("ping") == {"type": "pong"}, "each event comes once"


async def test_after_unsubscribe_nothing_comes(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await caller.replay("subscribe", "s")
        await follows(service, caller, "s")
        assert await caller.ask("unsubscribe", session_id="s") == {
            "type": "operator_ack",
            "session_id": "s",
            "action": "unsubscribe",
            "success": True,
        }
        await service.notes("s", 3)
        assert await caller.ask("ping") == {"type": "pong"}
        assert (await caller.replay("subscribe", "s", after_seq=1)).seqs == (2, 4)


async def test_the_largest_records_fit_their_frames(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service, service.caller() as caller:
        await service.store.ensure_session("s")
        await service.store.append("s", "a.note", {"data": "x" * (1024 * 1024 - 9000)})
        await service.store.append("s", "a.note", {"data": "\x01" * 170_000})
        replay = await caller.replay("subscribe", "s")
        assert [len(record["payload"]["data"]) for record in replay.records] == [
            1024 * 1024 - 9000,
            170_000,
        ]
