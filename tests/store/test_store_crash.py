"""A crash beside any commit leaves the state before it or after it, and the account is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from crash_scenario import CRASHED, DUE_MS, KEYS, NOW_MS, live, sent
from store_lab import raw

from klbr_trio.domain.work import DeadlineWake
from klbr_trio.store import CommitPoint, Results, Store, check, check_file

pytestmark = pytest.mark.xdist_group("store crash")

TABLES = ("service", "session", "event", "work_item", "attempt", "deadline", "frontier")
Snapshot = dict[str, list[tuple[Any, ...]]]
EMPTY = "before anything was committed"


def snapshot(path: Path) -> Snapshot:
    with raw(path) as conn:
        return {
            table: conn.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
            for table in TABLES
        }


def reference(path: Path) -> tuple[list[str], list[Snapshot]]:
    """The places beside commits, and what the store holds at each if a crash comes there."""
    places: list[str] = []
    held: list[Snapshot] = []

    def note(place: str) -> None:
        places.append(place)
        held.append(snapshot(path))

    trio.run(live, path, note)
    return places, held


@pytest.fixture(scope="module")
def lives(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[str], list[Snapshot]]:
    folder = tmp_path_factory.mktemp("lives")
    places, held = reference(folder / "reference.sqlite")
    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("crash_scenario.py"), folder],
        capture_output=True,
        check=True,
    )
    ends = json.loads(run.stdout)
    assert ends == {str(at): CRASHED if at < len(places) else 0 for at in range(len(places) + 1)}
    return folder, places, held


PLACES = 46
"""The commits of the scenario, twice."""


def test_the_life_passes_every_commit_point(
    lives: tuple[Path, list[str], list[Snapshot]],
) -> None:
    _, places, _ = lives
    assert len(places) == PLACES
    labels = {place.partition(":")[2] for place in places}
    assert labels == {point.label for point in CommitPoint}
    assert places[::2] == [place.replace("after", "before") for place in places[1::2]]


@pytest.mark.parametrize("at", range(PLACES))
def test_a_crash_there_is_survived(lives: tuple[Path, list[str], list[Snapshot]], at: int) -> None:
    folder, places, held = lives
    path = folder / f"{at}.sqlite"
    assert snapshot(path) == held[at], places[at]
    assert check_file(path) == [], places[at]
    trio.run(recover, path)


async def recover(path: Path) -> None:
    """What the next service does, and what the clients that come back do."""
    async with Store.open(path, now_ms=lambda: NOW_MS) as store:
        before = {e.payload["client_request_id"]: e.seq for e in await inputs(store)}
        for left in store.left_open():
            assert await store.interrupt(left.session_id, left.attempt_id, why="crash")
        await store.mark_recovered()
        assert await check(store) == []
        for key in KEYS:
            if await store.session_state("talker") == ("stopped", None):
                await store.reset("talker")
            admission = await store.admit(sent(key))
            assert admission.duplicate == (key in before)
            assert admission.seq == before.get(key, admission.seq)
        keys = [event.payload["client_request_id"] for event in await inputs(store)]
        assert sorted(keys) == sorted(KEYS)
        await deadline_fires_once(store)
        await everything_runs(store)
        assert await check(store) == []


async def inputs(store: Store) -> list[Any]:
    events = await store.history("talker", 0, 1000)
    return [event for event in events if event.kind == "input.admitted"]


async def deadline_fires_once(store: Store) -> None:
    await store.wake_due(NOW_MS)
    kinds = [event.kind for event in await store.history("sleeper", 0, 100)]
    assert kinds.count("session.woken") == kinds.count("session.waiting") <= 1
    wakes = [
        item
        for item in await store.all_pending_work_items()
        if item.cause == DeadlineWake(DUE_MS) and item.session_id == "sleeper"
    ]
    assert len(wakes) == kinds.count("session.woken")


async def everything_runs(store: Store) -> None:
    """Every session that has a reason to run can, until none has."""
    attempt = 100
    while runnable := store.runnable("", 10):
        attempt += 1
        turn = await store.claim_turn(
            runnable[0], attempt_id=f"op-{attempt}", release="r", model="m"
        )
        assert turn is not None
        await store.complete(turn, outcome="done", wait=None, results=Results(), usage=None)
    assert await store.all_pending_work_items() == []
