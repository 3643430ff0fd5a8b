"""What a kernel costs: its start, a cell's round trip, its end.

Each figure stands beside a ceiling measured in the same run: the least that the machine needs for
that kind of thing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

sys.path.append(str(Path(__file__).parents[1] / "kernel"))

from kernel_lab import (
    CONFIG,
    config_of,
    daemons,
    make_spec,
    mark_of,
    open_lab,
    run_kernel_in,
    until,
)

from klbr_trio.kernel import Level
from klbr_trio.kernel.marks import marked

if TYPE_CHECKING:
    from klbr_trio.kernel import Kernel, WorkerConfig

STARTS = 15
TRIPS = 2000
STOPS = 8
CHILDREN = 20


# The cells of a Stop that must be quick, each with what it leaves behind.
STUCK = {
    "while True: pass": "while True: pass",
    "time.sleep": "import time; time.sleep(1e9)",
    "await sleep": "import asyncio; await asyncio.sleep(1e9)",
    "C that holds the interpreter": "sum(range(10**13))",
    "signals ignored": "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(1e9)",
    "a subprocess": "import subprocess; subprocess.run(['sleep', '1000'])",
    f"{CHILDREN} setsid daemons": daemons(CHILDREN) + "print('!', flush=True)\nwhile True: pass",
    "a busy thread": "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f).start()\nf()",
    "200 MB resident": "x = b'x' * (200 << 20)\nprint('!', flush=True)\nwhile True: pass",
    "a fork bomb": "import os, time\ntry:\n    while os.fork() >= 0: pass\nexcept OSError: time.sleep(1000)",
    "a process that flees": "import os, time\nif os.fork() == 0:\n    while True:\n        if os.fork(): os._exit(0)\n        os.setsid()\ntime.sleep(1000)",
}  # fmt: skip
LEVELS = (Level.FULL, Level.REDUCED)


def run() -> list[dict[str, Any]]:
    """Measures everything, in about a minute."""
    with tempfile.TemporaryDirectory(prefix="klbr-bench-") as folder:
        root = Path(folder)
        figures = plain_and_walled(root)
        for level in LEVELS:
            with contextlib.suppress(pytest.skip.Exception):
                figures += stops(root, level)
        figures += crowd(root)
    return figures


def plain_and_walled(root: Path) -> list[dict[str, Any]]:
    """Start, round trip and memory: plain beside the machine's least, each level beside plain."""
    bare_trips = ping_pong_us()
    starts = statistics.median(trio.run(start_ms, root, CONFIG))
    trips, memory = trio.run(round_trips_us, root, CONFIG)
    trip = statistics.median(trips)
    figures = [
        figure(
            "kernel start to ready, p50",
            starts,
            "ms",
            ceiling=("a bare `python -I -c pass`", bare_interpreter_ms()),
            target="<= 150 ms",
        ),
        figure(
            "round trip of the cell 1+1, p50",
            trip,
            "us",
            ceiling=("32 bytes to a forked child and back", statistics.median(bare_trips)),
            target="<= 1000 us",
        ),
        figure(
            "round trip of the cell 1+1, p99",
            percentile(trips, 99),
            "us",
            ceiling=("32 bytes to a forked child and back", percentile(bare_trips, 99)),
        ),
        figure("memory of an idle kernel (PSS)", memory, "MB"),
    ]
    for level in LEVELS:
        with contextlib.suppress(pytest.skip.Exception):
            config, name = config_of(level), level.value
            walled = statistics.median(trio.run(start_ms, root, config))
            walled_trips, walled_memory = trio.run(round_trips_us, root, config)
            median = statistics.median(walled_trips)
            figures += [
                figure(f"start, {name}", walled, "ms", ceiling=("plain", starts), target="<= x 2"),
                figure(f"1+1, {name}", median, "us", ceiling=("plain", trip), target="<= x 3"),
                figure(
                    f"idle memory, {name}",
                    walled_memory,
                    "MB",
                    ceiling=("plain", memory),
                    target="<= x 1.5",
                ),
            ]
    return figures


def stops(root: Path, level: Level) -> list[dict[str, Any]]:
    """From the order to kill to no process left, for each cell, as the host sees it."""
    figures, everything = [], []
    for name, code in STUCK.items():
        took = trio.run(stops_ms, root, config_of(level), code)
        everything += took
        figures.append(figure(f"stop, {level.value}: {name}, p50", statistics.median(took), "ms"))
        figures.append(figure(f"stop, {level.value}: {name}, max", max(took), "ms"))
    figures.append(
        figure(
            f"stop, {level.value}: all, p95", percentile(everything, 95), "ms", target="<= 50 ms"
        )
    )
    return figures


def crowd(root: Path) -> list[dict[str, Any]]:
    """Many idle kernels at once, each stopped; the loop's own lag all the while."""
    many = int(os.environ.get("KLBR_BENCH_KERNELS", "40"))
    try:
        config = config_of(LEVELS[0])
    except pytest.skip.Exception:
        return []
    lag, took, left = trio.run(crowd_ms, root, config, many)
    return [
        figure(f"{many} idle kernels: one kill each, p50", statistics.median(took), "ms"),
        figure(f"{many} idle kernels: one kill each, p95", percentile(took, 95), "ms"),
        figure(f"{many} idle kernels: processes left", left, "", target="0"),
        figure(f"{many} idle kernels: the loop's lag meanwhile, p99", lag, "ms", target="<= 50 ms"),
    ]


def figure(
    name: str,
    value: float,
    unit: str,
    *,
    ceiling: tuple[str, float] | None = None,
    target: str | None = None,
) -> dict[str, Any]:
    best: dict[str, Any] | None = None
    if ceiling is not None:
        best = {"name": ceiling[0], "value": round(ceiling[1], 2), "unit": unit}
    return {
        "name": name,
        "value": round(value, 2),
        "unit": unit,
        "ceiling": best,
        "target": target,
    }


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def bare_interpreter_ms() -> float:
    took = []
    for _ in range(STARTS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def ping_pong_us() -> list[float]:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        while data := theirs.recv(64):
            theirs.sendall(data)
        os._exit(0)
    theirs.close()
    took = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        ours.sendall(b"x" * 32)
        ours.recv(64)
        took.append((time.perf_counter() - began) * 1e6)
    ours.close()
    os.waitpid(child, 0)
    return took


async def start_ms(root: Path, config: WorkerConfig) -> list[float]:
    spec = make_spec(root)
    took = []
    for _ in range(STARTS):
        async with trio.open_nursery() as nursery:
            began = time.perf_counter()
            await nursery.start(run_kernel_in, config, spec)
            took.append((time.perf_counter() - began) * 1000)
            nursery.cancel_scope.cancel()
    return took


async def round_trips_us(root: Path, config: WorkerConfig) -> tuple[list[float], float]:
    took = []
    async with open_lab(make_spec(root), config) as lab:
        memory = sum(pss_mb(pid) for pid in marked(lab.mark()))
        for _ in range(TRIPS):
            began = time.perf_counter()
            await lab.run("1+1")
            took.append((time.perf_counter() - began) * 1e6)
    return took, memory


def pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


async def stops_ms(root: Path, config: WorkerConfig, code: str) -> list[float]:
    took = []
    for _ in range(STOPS):
        async with open_lab(make_spec(root), config) as lab:
            async with trio.open_nursery() as nursery:
                begin = "" if "print(" in code else "print('!', flush=True)\n"
                nursery.start_soon(lab.run, begin + code)
                await until(lambda: bool(lab.live))
                await trio.sleep(0.05)
                took.append((await lab.kernel.kill("stopped")).ms)
    return took


async def crowd_ms(root: Path, config: WorkerConfig, many: int) -> tuple[float, list[float], int]:
    lags: list[float] = []
    took: list[float] = []
    kernels: list[Kernel] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await trio.sleep(0.01)
            lags.append((time.perf_counter() - before - 0.01) * 1000)

    async with trio.open_nursery() as nursery:
        places = trio.CapacityLimiter(4)

        async def start(number: int) -> None:
            folder = root / str(number)
            folder.mkdir()
            async with places:
                kernels.append(await nursery.start(run_kernel_in, config, make_spec(folder)))

        async with trio.open_nursery() as starting:
            for number in range(many):
                starting.start_soon(start, number)
        marks = [mark_of(kernel.pid) for kernel in kernels]
        nursery.start_soon(tick)
        for kernel in kernels:
            took.append((await kernel.kill("stopped")).ms)  # noqa: PERF401  # one after another
        nursery.cancel_scope.cancel()
    left = sum(len(marked(mark)) for mark in marks[:: max(1, many // 20)])
    return percentile(lags, 99), took, left


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line))
