"""What a kernel costs: its start, a cell's round trip, its end.

Each figure stands beside a ceiling measured in the same run: the least that the machine needs for
that kind of thing.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trio

sys.path.append(str(Path(__file__).parents[1] / "kernel"))

from kernel_lab import CONFIG, daemons, make_spec, open_lab, run_kernel_in, until

STARTS = 15
TRIPS = 2000
STOPS = 8
CHILDREN = 20


def run() -> list[dict[str, Any]]:
    """Measures everything, in about ten seconds."""
    with tempfile.TemporaryDirectory(prefix="klbr-bench-") as folder:
        root = Path(folder)
        bare_start = bare_interpreter_ms()
        bare_trips = ping_pong_us()
        starts = trio.run(start_ms, root)
        trips = trio.run(round_trips_us, root)
        stops = trio.run(stops_ms, root)
    return [
        figure(
            "kernel start to ready, p50",
            statistics.median(starts),
            "ms",
            ceiling=("a bare `python -I -c pass`", bare_start),
            target="<= 150 ms",
        ),
        figure(
            "round trip of the cell 1+1, p50",
            statistics.median(trips),
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
        figure(
            f"stop of a busy kernel with {CHILDREN} setsid children, p50",
            statistics.median(stops),
            "ms",
            target="<= 50 ms",
        ),
        figure(
            f"stop of a busy kernel with {CHILDREN} setsid children, max",
            max(stops),
            "ms",
        ),
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


async def start_ms(root: Path) -> list[float]:
    spec = make_spec(root)
    took = []
    for _ in range(STARTS):
        async with trio.open_nursery() as nursery:
            began = time.perf_counter()
            await nursery.start(run_kernel_in, CONFIG, spec)
            took.append((time.perf_counter() - began) * 1000)
            nursery.cancel_scope.cancel()
    return took


async def round_trips_us(root: Path) -> list[float]:
    took = []
    async with open_lab(make_spec(root)) as lab:
        for _ in range(TRIPS):
            began = time.perf_counter()
            await lab.run("1+1")
            took.append((time.perf_counter() - began) * 1e6)
    return took


async def stops_ms(root: Path) -> list[float]:
    took = []
    for _ in range(STOPS):
        async with open_lab(make_spec(root)) as lab:
            await lab.value(daemons(CHILDREN))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lab.run, "print('!')\nwhile True: pass")
                await until(lambda: bool(lab.live))
                took.append((await lab.kernel.kill("stopped")).ms)
    return took


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line))
