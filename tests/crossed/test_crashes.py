"""Crashes crossed: at each commit point, before and after, in each kind of turn; then the account.

Whatever the moment, after the restart every acknowledged input was answered once, every
effect happened once, every deadline fired once, and the store is sound.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from crossed.careful_model import EFFECTS, CarefulModel
from crossed.service_under_test import KILLED
from fakes.provider import open_provider
from trio_websocket import (
    ConnectionClosed,
    HandshakeError,
    WebSocketConnection,
    open_websocket_url,
)

from klbr_trio.store import Store, check_file
from klbr_trio.store.check import describe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SERVICE = Path(__file__).with_name("service_under_test.py")
TURN_POINTS = ("admit", "claim", "reply", "say", "result", "close")
POINTS = {
    **dict.fromkeys(EFFECTS, TURN_POINTS),
    "sleep": (*TURN_POINTS, "wake"),
    "done": ("admit", "claim", "reply", "say", "close"),
}
CASES = [
    (kind, f"{side}:{point}")
    for kind, points in POINTS.items()
    for point in points
    for side in ("before", "after")
]
GONE = (ConnectionClosed, HandshakeError, OSError, trio.BrokenResourceError)


@asynccontextmanager
async def running(
    state: Path, url: str, point: str | None = None
) -> AsyncGenerator[tuple[subprocess.Popen[str], str | None]]:
    """The service as a process, and its address; None if it ended before it served."""
    command = [sys.executable, str(SERVICE), str(state), url, *([point] if point else [])]
    with subprocess.Popen(  # noqa: ASYNC220 - it takes a millisecond, and the loop has nothing else to do
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = await trio.to_thread.run_sync(process.stdout.readline)
            yield process, f"ws://127.0.0.1:{port.strip()}/" if port.strip() else None
        finally:
            process.kill()


async def ask(socket: WebSocketConnection, **fields: object) -> None:
    await socket.send_message(json.dumps(fields))


async def answer(socket: WebSocketConnection, kind: str) -> dict[str, Any]:
    while True:
        frame: dict[str, Any] = json.loads(await socket.get_message())
        if frame["type"] == kind:
            return frame


async def submit(url: str, task: str) -> dict[str, Any] | None:
    """Send the input and return its ack; None if the service ended first."""
    found = None
    try:
        async with open_websocket_url(url) as socket:
            await ask(
                socket, type="send_input", session_id="s", source="op", text=task,
                client_request_id="only-once",
            )  # fmt: skip
            found = await answer(socket, "ack")
    except* GONE:
        pass
    return found


async def wait_for_the_end(process: subprocess.Popen[str]) -> int:
    return await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)


async def until_idle(url: str, effects: set[str]) -> None:
    """Return when the session has said everything and nothing is pending or running."""
    async with open_websocket_url(url) as socket:
        await ask(socket, type="subscribe", session_id="s", after_seq=0, limit=1000)
        said: set[str] = set()
        while True:
            frame = json.loads(await socket.get_message())
            if frame["type"] == "event" and frame["record"]["kind"] == "local.sent":
                said.add(frame["record"]["payload"]["text"])
            if frame["type"] in ("event", "sync_completed") and said >= effects:
                await ask(socket, type="session_status", session_id="s")
            if frame["type"] == "session_status" and is_idle(frame):
                return


def is_idle(status: dict[str, Any]) -> bool:
    return status["state"] == "ready" and not status["pending"] and "wake_at_ms" not in status


async def account(state: Path, task: str, effects: set[str]) -> None:
    """Once each: the input, its effects, its deadlines; and a sound store."""
    path = state / "klbr.sqlite"
    assert (found := check_file(path)) == [], describe(found)
    async with Store.open(path) as store:
        events = await store.history("s", 0, 10_000)
    inputs = [event.payload["text"] for event in events if event.kind == "input.admitted"]
    said = Counter(event.payload["text"] for event in events if event.kind == "local.sent")
    fired = Counter(
        event.payload["wake_at_ms"] for event in events if event.kind == "session.woken"
    )
    assert inputs == [task]
    assert said == Counter(effects)
    assert all(count == 1 for count in fired.values())


@pytest.mark.parametrize(("kind", "point"), CASES, ids=[f"{k}-{p}" for k, p in CASES])
async def test_a_crash_costs_at_most_the_step_in_flight(
    kind: str, point: str, tmp_path: Path
) -> None:
    task = f"TASK {kind} x"
    effects = {effect.format("x") for effect in EFFECTS[kind]}
    with trio.fail_after(60):
        async with open_provider([CarefulModel()]) as provider:
            async with running(tmp_path, provider.url, point) as (process, url):
                assert url is not None
                first = await submit(url, task)
                assert await wait_for_the_end(process) == KILLED, "the point was never reached"
            async with running(tmp_path, provider.url) as (process, url):
                assert url is not None
                again = await submit(url, task)
                assert again is not None
                if first is not None:
                    assert again["duplicate"]
                    assert again["seq"] == first["seq"]
                await until_idle(url, effects)
                process.send_signal(signal.SIGKILL)
                await wait_for_the_end(process)
    await account(tmp_path, task, effects)


@pytest.mark.parametrize("point", ["before:interrupt", "after:interrupt", "before:recovered"])
async def test_a_crash_in_recovery_is_recovered_from(point: str, tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with open_provider([CarefulModel()]) as provider:
            async with running(tmp_path, provider.url, "after:say") as (process, url):
                assert url is not None
                assert await submit(url, "TASK say x") is not None
                assert await wait_for_the_end(process) == KILLED
            async with running(tmp_path, provider.url, point) as (process, _):
                assert await wait_for_the_end(process) == KILLED
            async with running(tmp_path, provider.url) as (process, url):
                assert url is not None
                await until_idle(url, {"x"})
    await account(tmp_path, "TASK say x", {"x"})


@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_crash_beside_stop_leaves_it_done_or_not_done(side: str, tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with open_provider([CarefulModel()]) as provider:
            async with running(tmp_path, provider.url, f"{side}:stop") as (process, url):
                assert url is not None
                assert await submit(url, "TASK sleep x") is not None
                await stop(url)
                assert await wait_for_the_end(process) == KILLED
            async with running(tmp_path, provider.url) as (process, url):
                assert url is not None
                if side == "before":
                    await until_idle(url, {"x", "x-woke"})
                else:
                    async with open_websocket_url(url) as socket:
                        await ask(socket, type="session_status", session_id="s")
                        assert (await answer(socket, "session_status"))["state"] == "stopped"
    assert (found := check_file(tmp_path / "klbr.sqlite")) == [], describe(found)


async def stop(url: str) -> None:
    try:
        async with open_websocket_url(url) as socket:
            await ask(socket, type="stop", session_id="s")
            await answer(socket, "operator_ack")
    except* GONE:
        pass


async def test_three_crashes_end_an_item_and_the_agent_is_told(tmp_path: Path) -> None:
    """The input that kills the service is given up; the fourth life says so and lives."""
    with trio.fail_after(60):
        async with open_provider([CarefulModel()]) as provider:
            for life in range(3):
                async with running(tmp_path, provider.url, "before:reply") as (process, url):
                    if life == 0:
                        assert url is not None
                        await submit(url, "TASK say x")
                    assert await wait_for_the_end(process) == KILLED
            async with running(tmp_path, provider.url) as (process, url):
                assert url is not None
                await until_idle(url, {"x"})
    async with Store.open(tmp_path / "klbr.sqlite") as store:
        events = await store.history("s", 0, 10_000)
    failed = [e.payload["failed"] for e in events if e.kind == "turn.interrupted"]
    assert failed == [[], [], ["work-input-1"]]
    causes = [c["type"] for e in events if e.kind == "turn.started" for c in e.payload["causes"]]
    assert causes[-1] == "recovery"
    assert (found := check_file(tmp_path / "klbr.sqlite")) == [], describe(found)
