"""Admissions a second through the store, beside bare SQLite and the naive design in the same run.

`python tests/benchmarks/bench_store.py` prints the table. Bare: the same statements on a
bare connection, one commit each, synchronous=FULL. Naive: a lock, and one whole
transaction in a worker thread for each caller. Figures are medians of interleaved rounds;
the machine's moods make them good to a third, ratios inside a run to a tenth.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypedDict

import trio

from klbr_trio.store import Input, Store
from klbr_trio.store.admission import admit
from klbr_trio.store.opening import open_writing
from klbr_trio.store.points import CommitPoint
from klbr_trio.store.tx import Tx

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncGenerator

SECONDS: Final = 0.6
ROUNDS: Final = 5
CALLERS: Final = (1, 8, 64, 256)
SESSIONS: Final = 64
SLICE_S: Final = 200e-6
DUE: Final = 10_000

NAIVE_RATIO: Final = 5.0
BUSY_RATIO: Final = 0.4
HOLD_MS: Final = 5.0

_TEXT: Final = "a message of ordinary length, as people send them " * 4
Admit: TypeAlias = Callable[[Input], Awaitable[object]]


class Figure(TypedDict):
    """One line of the table."""

    name: str
    value: float
    unit: str
    ceiling: float | None
    target: float | None


def inputs() -> Callable[[], Input]:
    """A source of inputs that are all new, for sessions in turn."""
    numbers = count()

    def following() -> Input:
        n = next(numbers)
        return Input(f"session-{n % SESSIONS}", "bench", _TEXT, f"request-{n}")

    return following


def admit_bare(conn: sqlite3.Connection, sent: Input) -> None:
    conn.execute("BEGIN IMMEDIATE")
    admit(Tx(conn, 1, 1, CommitPoint.ADMIT), sent)
    conn.execute("COMMIT")


def bare_rate(folder: Path) -> float:
    conn, _ = open_writing(folder / "bare.sqlite", 1, busy_s=5)
    with closing(conn):
        following, done = inputs(), 0
        started = time.perf_counter()
        while time.perf_counter() - started < SECONDS:
            admit_bare(conn, following())
            done += 1
        return done / (time.perf_counter() - started)


@asynccontextmanager
async def naive_store(folder: Path) -> AsyncGenerator[Admit]:
    conn, _ = open_writing(folder / "naive.sqlite", 1, busy_s=5)
    lock = trio.Lock()

    async def admit_naively(sent: Input) -> None:
        async with lock:
            await trio.to_thread.run_sync(admit_bare, conn, sent)

    with closing(conn):
        yield admit_naively


@asynccontextmanager
async def our_store(folder: Path) -> AsyncGenerator[Admit]:
    async with Store.open(folder / "store.sqlite") as store:
        yield store.admit


async def keep_busy() -> None:
    """A loop that always has something to do, in slices."""
    while True:
        until = time.perf_counter() + SLICE_S
        while time.perf_counter() < until:
            pass
        await trio.lowlevel.checkpoint()


async def rate(admit_one: Admit, callers: int, *, busy: bool) -> tuple[float, float]:
    """Admissions a second, and their 99th percentile in ms, with so many callers."""
    following, took = inputs(), []
    ends_at = time.perf_counter() + SECONDS

    async def call() -> None:
        while (began := time.perf_counter()) < ends_at:
            await admit_one(following())
            took.append(time.perf_counter() - began)

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        if busy:
            nursery.start_soon(keep_busy)
        async with trio.open_nursery() as calls:
            for _ in range(callers):
                calls.start_soon(call)
        elapsed = time.perf_counter() - started
        nursery.cancel_scope.cancel()
    return len(took) / elapsed, sorted(took)[len(took) * 99 // 100] * 1000


def store_rate(
    opened: Callable[[Path], object], folder: Path, callers: int, *, busy: bool = False
) -> tuple[float, float]:
    async def main() -> tuple[float, float]:
        async with opened(folder) as admit_one:  # type: ignore[attr-defined]
            return await rate(admit_one, callers, busy=busy)

    return trio.run(main)


def wakes(folder: Path) -> tuple[float, float]:
    """Total and longest hold of the loop, in ms, while `DUE` deadlines fire."""
    hold = 0.0

    async def watch_loop() -> None:
        nonlocal hold
        before = time.perf_counter()
        while True:
            await trio.lowlevel.checkpoint()
            now = time.perf_counter()
            hold, before = max(hold, now - before), now

    async def main() -> float:
        async with Store.open(folder / "wakes.sqlite", now_ms=lambda: 1_000_000) as store:
            await arm_many(store)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch_loop)
                await trio.lowlevel.checkpoint()
                started = time.perf_counter()
                woken = await store.wake_due(1_000_000)
                elapsed = time.perf_counter() - started
                nursery.cancel_scope.cancel()
            assert len(woken) == len(set(woken)) == DUE
            return elapsed

    return trio.run(main) * 1000, hold * 1000


async def arm_many(store: Store) -> None:
    async def arm_some(first: int) -> None:
        for n in range(first, DUE, 250):
            await store.ensure_session(f"sleeper-{n}")
            await store.arm(f"sleeper-{n}", receipt=None, wake_at_ms=n, reason="sleep")

    async with trio.open_nursery() as nursery:
        for first in range(250):
            nursery.start_soon(arm_some, first)


def in_new_folder(measure: Callable[[Path], object]) -> object:
    folder = Path(tempfile.mkdtemp(prefix="bench-store-"))
    try:
        return measure(folder)
    finally:
        shutil.rmtree(folder)


def medians(measures: dict[str, Callable[[Path], object]]) -> dict[str, list[object]]:
    """What each measured in every round; in turn, so that the machine's moods hit all."""
    found: dict[str, list[object]] = {name: [] for name in measures}
    for _ in range(ROUNDS):
        for name, measure in measures.items():
            found[name].append(in_new_folder(measure))
    return found


def run() -> list[Figure]:
    """Measures everything; half a minute."""
    measures: dict[str, Callable[[Path], object]] = {"bare": bare_rate, "wakes": wakes}
    for callers in CALLERS:
        measures[f"naive {callers}"] = partial(store_rate, naive_store, callers=callers)
        measures[f"store {callers}"] = partial(store_rate, our_store, callers=callers)
    measures["busy 64"] = partial(store_rate, our_store, callers=64, busy=True)
    found = medians(measures)
    bare = statistics.median(found["bare"])  # type: ignore[type-var]
    figures = [_figure("admissions, bare SQLite", bare, "1/s")]
    for callers in CALLERS:
        for kind in ("naive", "store"):
            value, p99 = _pairs(found[f"{kind} {callers}"])
            figures.append(
                _figure(f"admissions, {kind}, {callers} callers", value, "1/s", ceiling=bare)
            )
            figures.append(_figure(f"… p99, {kind}, {callers} callers", p99, "ms"))
    busy, busy_p99 = _pairs(found["busy 64"])
    total, hold = _pairs(found["wakes"])
    return [
        *figures,
        _figure("admissions, store, 64 callers, busy loop", busy, "1/s", ceiling=bare),
        _figure("… p99, store, 64 callers, busy loop", busy_p99, "ms", target=50.0),
        _figure(
            "store / naive, 64 callers",
            _ratio(found["store 64"], found["naive 64"]),
            "ratio",
            target=NAIVE_RATIO,
        ),
        _figure(
            "store busy / idle loop, 64 callers",
            _ratio(found["busy 64"], found["store 64"]),
            "ratio",
            target=BUSY_RATIO,
        ),
        _figure(f"{DUE} due wakes, total", total, "ms"),
        _figure(f"{DUE} due wakes, longest hold of the loop", hold, "ms", target=HOLD_MS),
    ]


def _pairs(found: list[object]) -> tuple[float, float]:
    first, second = zip(*found, strict=True)  # type: ignore[arg-type]
    return statistics.median(first), statistics.median(second)


def _ratio(ours: list[object], theirs: list[object]) -> float:
    return statistics.median(
        one[0] / other[0]  # type: ignore[index]
        for one, other in zip(ours, theirs, strict=True)
    )


def _figure(
    name: str,
    value: float,
    unit: str,
    *,
    ceiling: float | None = None,
    target: float | None = None,
) -> Figure:
    return Figure(name=name, value=round(value, 2), unit=unit, ceiling=ceiling, target=target)


if __name__ == "__main__":
    for figure in run():
        ceiling = "" if figure["ceiling"] is None else f"{figure['value'] / figure['ceiling']:6.2f}x bare"
        target = "" if figure["target"] is None else f"target {figure['target']:g}"
        sys.stdout.write(
            f"{figure['name']:44} {figure['value']:10.2f} {figure['unit']:6} {ceiling:12} {target}\n"
        )
