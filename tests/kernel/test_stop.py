"""Killing a kernel: everything it started is gone, soon, whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from kernel_lab import (
    CEILING_S,
    REPO,
    daemons,
    lab_fixture,  # noqa: F401  # pytest finds it here
    make_spec,
    mark_of,
    open_lab,
    until,
)

from klbr_trio.kernel.marks import marked, sweep

if TYPE_CHECKING:
    from kernel_lab import Lab

    from klbr_trio.kernel import Killed

BUSY = {
    "a busy loop": "while True: pass",
    "a sleep": "import time; time.sleep(1e6)",
    "an await": "import asyncio; await asyncio.sleep(1e6)",
    "C code that holds the interpreter": "sum(range(10**13))",
    "a stopped process": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "signals ignored": "import signal, time\nfor n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(1e6)",
    "a subprocess": "import subprocess; subprocess.run(['sleep', '1000'])",
    "a flood": "while True: print('x' * 10000)",
    "a busy thread": "import threading\ndef f():\n    while True: pass\nt = threading.Thread(target=f); t.start(); t.join()",
    "a chain of children": "import os, time\nfor _ in range(40):\n    if os.fork(): break\ntime.sleep(1000)",
    "children that fork": (
        "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        while True:\n"
        "            if os.fork() == 0: time.sleep(0.02); os._exit(0)\n            os.wait()\ntime.sleep(1000)"
    ),
    "a process that flees by forking": (
        "import os, time\nif os.fork() == 0:\n    while True:\n        if os.fork(): os._exit(0)\n        os.setsid()\ntime.sleep(1000)"
    ),
}


@pytest.mark.parametrize("name", BUSY)
async def test_a_kill_ends_a_kernel_that_is_busy_with(lab: Lab, name: str) -> None:
    mark = lab.mark()
    killed = await kill_while_running(lab, BUSY[name])
    assert killed.survivors == ()
    assert marked(mark) == []
    assert lab.kernel.why == "stopped"


async def kill_while_running(lab: Lab, code: str) -> Killed:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lab.run, "import os; os.write(1, b'!')\n" + code)
        await until(lambda: bool(lab.live))
        with trio.fail_after(CEILING_S):
            killed = await lab.kernel.kill("stopped")
    return killed


async def test_daemons_in_sessions_of_their_own_end_too(lab: Lab) -> None:
    mark = lab.mark()
    await lab.value(daemons(10, busy=True))
    await lab.value(daemons(10, bare=True))
    assert len(marked(mark)) == lab.idle_processes + 20
    killed = await kill_while_running(lab, "while True: pass")
    assert marked(mark) == []
    assert killed.processes >= 21
    assert killed.survivors == ()


async def test_a_stopped_warden_is_passed_by(lab: Lab) -> None:
    mark = lab.mark()
    await lab.value(daemons(3))
    os.kill(lab.warden, signal.SIGSTOP)
    killed = await kill_while_running(lab, "while True: pass")
    assert killed.survivors == ()
    assert marked(mark) == []


async def test_everyone_who_kills_waits_for_the_end(lab: Lab) -> None:
    mark = lab.mark()
    ended = []

    async def kill(why: str) -> None:
        await lab.kernel.kill(why)
        ended.append(marked(mark))

    await lab.value(daemons(3))
    async with trio.open_nursery() as nursery:
        for why in ("one", "two", "three"):
            nursery.start_soon(kill, why)
    assert ended == [[], [], []]
    assert lab.kernel.why in ("one", "two", "three")
    assert "dead: " in repr(lab.kernel)


async def test_a_kill_goes_on_when_its_caller_is_cancelled(lab: Lab) -> None:
    mark = lab.mark()
    with trio.CancelScope() as scope:
        scope.cancel()
        await lab.kernel.kill("stopped")
    assert scope.cancelled_caught
    with trio.fail_after(CEILING_S):
        assert await lab.kernel.wait_dead() == "stopped"
    assert marked(mark) == []


@pytest.mark.slow
async def test_an_idle_kernel_outlives_the_threads_of_the_host(lab: Lab) -> None:
    """A kernel that is forked in a worker thread dies with that thread, after ten idle seconds."""
    await lab.value("keep = 1")
    await trio.sleep(12)
    assert await lab.value("keep") == "1"


HOST = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import trio
from kernel_lab import daemons, make_spec, open_lab

async def main():
    async with open_lab(make_spec(Path({folder!r}))) as lab:
        await lab.value(daemons(5, busy=True))
        await lab.value(daemons(5, bare=True))
        print(lab.kernel.pid, flush=True)
        await lab.run("while True: pass")

trio.run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_outlives_a_host_that_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = HOST.format(tests=str(REPO / "tests" / "kernel"), folder=str(tmp_path))
    host = subprocess.Popen(  # noqa: ASYNC220  # the host itself dies with the thread that forks
        [sys.executable, "-c", script], stdout=subprocess.PIPE
    )
    assert host.stdout is not None
    with trio.fail_after(CEILING_S):
        line = await trio.to_thread.run_sync(host.stdout.readline)
        mark = mark_of(int(line))
        assert len(marked(mark)) == 12
        host.send_signal(number)
        began = trio.current_time()
        host.wait()
        await until(lambda: not any(is_alive(pid) for pid in marked(mark)))
    # Measured at 10 to 30 ms; ten times the promised 100 ms on a machine that runs other tests.
    assert trio.current_time() - began < 1.0
    await sweep(mark, deadline=trio.current_time() + 1)
    host.stdout.close()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_many_kernels_end_together(tmp_path: Path) -> None:
    marks = []
    async with trio.open_nursery() as nursery:
        labs = []
        for n in range(6):
            folder = tmp_path / str(n)
            folder.mkdir()
            labs.append(folder)
        opened = trio.Event()
        count = 0

        async def use(folder: Path) -> None:
            nonlocal count
            async with open_lab(make_spec(folder)) as lab:
                marks.append(lab.mark())
                count += 1
                if count == len(labs):
                    opened.set()
                await trio.sleep_forever()

        for folder in labs:
            nursery.start_soon(use, folder)
        with trio.fail_after(CEILING_S):
            await opened.wait()
        nursery.cancel_scope.cancel()
    assert [marked(mark) for mark in marks] == [[]] * 6
