"""When something is wrong inside: the client gets a code and an id, the log gets the rest."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from typing import TYPE_CHECKING

import pytest
import trio
import trio_websocket
from service_house import CEILING, ROOT, nobody_writes, open_service

from klbr_trio import SessionRegistry, Store, WorkerConfig, serve_listener
from klbr_trio.errors import StoreBroken
from klbr_trio.wire.server import LiveDiscard

if TYPE_CHECKING:
    from pathlib import Path


def rename(path: Path, table: str, to: str) -> None:
    """A table of the store goes by another name, behind the service's back."""
    with contextlib.closing(sqlite3.connect(path / "klbr.sqlite", isolation_level=None)) as other:
        other.execute("PRAGMA legacy_alter_table = ON")
        other.execute(f"ALTER TABLE {table} RENAME TO {to}")


@pytest.mark.parametrize(
    ("table", "kind", "fields"),
    [
        ("attempt", "session_status", {"session_id": "s"}),
        ("attempt", "list_sessions", {}),
        ("event", "subscribe", {"session_id": "s"}),
        ("event", "history", {"session_id": "s", "before_seq": 9, "limit": 9}),
        ("work_item", "send_input", {"session_id": "s", "source": "t", "text": "more"}),
        ("work_item", "stop", {"session_id": "s"}),
        ("event", "reset_kernel", {"session_id": "s"}),
    ],
)
async def test_a_fault_shows_an_id_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: str, kind: str, fields: dict[str, str]
) -> None:
    async with open_service(tmp_path, is_sound=False) as service:
        async with service.caller() as caller, service.caller() as other:
            await caller.input("s")
            await caller.hear()
            rename(tmp_path, table, "lost")
            answer = await caller.ask(kind, request_id="r", **fields)
            if answer["type"] == "sync_started":
                answer = await caller.hear()
            assert (answer["type"], answer["code"], answer["request_id"]) == (
                "error",
                "internal",
                "r",
            )
            found = re.fullmatch(
                r"internal error ([0-9a-f]{8}); the service's log has it", answer["message"]
            )
            assert found is not None, "no word of what it was"
            [entry] = [r for r in caplog.records if found[1] in r.getMessage()]
            assert entry.exc_info is not None
            assert f"no such table: {table}" in str(entry.exc_text or entry.exc_info)
            rename(tmp_path, "lost", table)
            for client in (caller, other):
                assert await client.ask("ping") == {"type": "pong"}
            status = await caller.ask("session_status", session_id="s")
            assert status["type"] == "session_status"


async def test_a_subscription_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_service(tmp_path, is_sound=False) as service, service.caller() as caller:
        await service.notes("s", 3)
        for number in range(99):
            await caller.replay("subscribe", f"t{number}")
        rename(tmp_path, "event", "lost")
        for _ in range(3):
            assert (await caller.ask("subscribe", session_id="s"))["code"] == "internal"
        rename(tmp_path, "lost", "event")
        service.registry.live.publish(LiveDiscard(session_id="s", attempt_id="a", step=1))
        await service.notes("s", 1)
        assert await caller.ask("ping") == {"type": "pong"}, "nothing is followed"
        assert (await caller.replay("subscribe", "s")).seqs == (1, 4), "its place is free"
        await service.notes("s", 1)
        assert (await caller.hear())["record"]["seq"] == 5


async def test_busy_is_said_of_each_input_that_was_not_stored(tmp_path: Path) -> None:
    async with open_service(tmp_path, busy_s=0.05) as service, service.caller() as caller:
        await caller.replay("subscribe", "s")
        with nobody_writes(tmp_path):
            for number in range(50):
                await caller.say(
                    "send_input",
                    session_id="s",
                    source="t",
                    text=str(number),
                    client_request_id=str(number),
                )
            for number in range(50):
                answer = await caller.hear()
                assert (answer["code"], answer["client_request_id"]) == ("busy", str(number))
            reset = await caller.ask("stop", session_id="s")
            assert reset["code"] == "unknown_session"
        assert service.store.head("s") == 0
        again = await caller.input("s", "0", client_request_id="0")
        assert (again["seq"], again["duplicate"]) == (1, False)


async def test_a_reset_that_can_not_be_stored_changes_nothing(tmp_path: Path) -> None:
    async with open_service(tmp_path, busy_s=0.05) as service, service.caller() as caller:
        await service.store.ensure_session("s")
        with nobody_writes(tmp_path):
            answer = await caller.ask("reset_kernel", session_id="s", request_id="r")
            assert (answer["type"], answer["action"]) == ("operator_ack", "reset_kernel")
            assert (answer["success"], answer["request_id"]) == (False, "r")
            assert answer["message"]
        assert service.store.head("s") == 0
        assert (await caller.ask("reset_kernel", session_id="s"))["success"] is True


async def test_a_corrupt_page_ends_the_service(tmp_path: Path) -> None:
    """Nobody may go on with such a file; who starts the service again has to restore it."""
    path = tmp_path / "klbr.sqlite"
    async with open_service(tmp_path) as service:
        await service.notes("s", 300, text="x" * 3000)
    with contextlib.closing(sqlite3.connect(path)) as tidy:
        tidy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(root,)] = tidy.execute("SELECT rootpage FROM sqlite_master WHERE name = 'event'")
        [(size,)] = tidy.execute("PRAGMA page_size")
    with pytest.raises(StoreBroken):
        await serve_and_corrupt(path, (root - 1) * size, size)


async def serve_and_corrupt(path: Path, at: int, size: int) -> None:
    """A service over a store of which a page is overwritten while it serves."""
    async with (
        Store.open(path) as store,
        SessionRegistry.open(store, WorkerConfig.source_tree(ROOT)) as registry,
        trio.open_nursery() as nursery,
    ):
        address: tuple[str, int] = await nursery.start(serve, registry)
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), b"\xff" * size, at)
        with contextlib.suppress(trio_websocket.ConnectionClosed):
            async with trio_websocket.open_websocket_url(f"ws://127.0.0.1:{address[1]}/") as client:
                await client.send_message('{"type":"subscribe","session_id":"s"}')
                with trio.fail_after(CEILING):
                    while True:
                        await client.get_message()
        with trio.fail_after(CEILING):
            await registry.closed.wait()


async def serve(registry: SessionRegistry, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
    await serve_listener(registry=registry, task_status=task_status)
