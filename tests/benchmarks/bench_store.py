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
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
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
Pair: TypeAlias = tuple[float, float]
Measure: TypeAlias = Callable[[Path], Pair]


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


def bare_rate(folder: Path) -> Pair:
    conn, _ = open_writing(folder / "bare.sqlite", 1, busy_s=5)
    with closing(conn):
        following, done = inputs(), 0
        started = time.perf_counter()
        while time.perf_counter() - started < SECONDS:
            admit_bare(conn, following())
            done += 1
        return done / (time.perf_counter() - started), 0.0


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


async def rate(admit_one: Admit, callers: int, *, busy: bool) -> Pair:
    """Admissions a second, and their 99th percentile in ms, with so many callers."""
    following = inputs()
    took: list[float] = []
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
    opened: Callable[[Path], AbstractAsyncContextManager[Admit]],
    folder: Path,
    callers: int,
    *,
    busy: bool = False,
) -> Pair:
    async def main() -> Pair:
        async with opened(folder) as admit_one:
            return await rate(admit_one, callers, busy=busy)

    return trio.run(main)


def wakes(folder: Path) -> Pair:
    """Total and longest hold of the loop, in ms, while `DUE` deadlines fire.

    A hold is counted in the thread's own time: other processes on the machine are not
    the store's doing.
    """
    hold = 0.0

    async def watch_loop() -> None:
        nonlocal hold
        before = time.thread_time()
        while True:
            await trio.lowlevel.checkpoint()
            now = time.thread_time()
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


def in_new_folder(measure: Measure) -> Pair:
    folder = Path(tempfile.mkdtemp(prefix="bench-store-"))
    try:
        return measure(folder)
    finally:
        shutil.rmtree(folder)


def in_turn(measures: dict[str, Measure]) -> dict[str, list[Pair]]:
    """What each measured in every round; in turn, so that the machine's moods hit all."""
    found: dict[str, list[Pair]] = {name: [] for name in measures}
    for _ in range(ROUNDS):
        for name, measure in measures.items():
            found[name].append(in_new_folder(measure))
    return found


def run() -> list[Figure]:
    """Measures everything; half a minute."""
    measures: dict[str, Measure] = {"bare": bare_rate, "wakes": wakes}
    for callers in CALLERS:
        measures[f"naive {callers}"] = partial(store_rate, naive_store, callers=callers)
        measures[f"store {callers}"] = partial(store_rate, our_store, callers=callers)
    measures["busy 64"] = partial(store_rate, our_store, callers=64, busy=True)
    found = in_turn(measures)
    bare, _ = _median(found["bare"])
    figures = [_figure("admissions, bare SQLite", bare, "1/s")]
    for callers in CALLERS:
        for kind in ("naive", "store"):
            value, p99 = _median(found[f"{kind} {callers}"])
            name = f"{kind}, {callers} callers"
            figures.append(_figure(f"admissions, {name}", value, "1/s", ceiling=bare))
            figures.append(_figure(f"p99, {name}", p99, "ms"))
    busy, busy_p99 = _median(found["busy 64"])
    total, hold = _median(found["wakes"])
    name = "store, 64 callers, busy loop"
    over_naive = _ratio(found["store 64"], found["naive 64"])
    over_idle = _ratio(found["busy 64"], found["store 64"])
    return [
        *figures,
        _figure(f"admissions, {name}", busy, "1/s", ceiling=bare),
        _figure(f"p99, {name}", busy_p99, "ms", target=50.0),
        _figure("store / naive, 64 callers", over_naive, "ratio", target=NAIVE_RATIO),
        _figure("store busy / idle loop, 64 callers", over_idle, "ratio", target=BUSY_RATIO),
        _figure(f"{DUE} due wakes, total", total, "ms"),
        _figure(f"{DUE} due wakes, longest hold of the loop", hold, "ms", target=HOLD_MS),
    ]


def _median(found: list[Pair]) -> Pair:
    return statistics.median(pair[0] for pair in found), statistics.median(
        pair[1] for pair in found
    )


def _ratio(ours: list[Pair], theirs: list[Pair]) -> float:
    return statistics.median(one[0] / other[0] for one, other in zip(ours, theirs, strict=True))


def _figure(
    name: str,
    value: float,
    unit: str,
    *,
    ceiling: float | None = None,
    target: float | None = None,
) -> Figure:
    return Figure(name=name, value=round(value, 2), unit=unit, ceiling=ceiling, target=target)


def _line(figure: Figure) -> str:
    ceiling, target = figure["ceiling"], figure["target"]
    beside = "" if ceiling is None else f"{figure['value'] / ceiling:6.2f}x bare"
    wanted = "" if target is None else f"target {target:g}"
    return f"{figure['name']:44} {figure['value']:10.2f} {figure['unit']:6} {beside:12} {wanted}\n"


if __name__ == "__main__":
    sys.stdout.writelines(map(_line, run()))
