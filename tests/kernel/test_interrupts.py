"""Stopping one cell while its kernel goes on, and what happens when it does not stop."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import trio
from kernel_lab import (
    CEILING_S,
    daemons,
    lab_fixture,  # noqa: F401  # pytest finds it here
    until,
)

from klbr_trio.kernel.marks import marked

if TYPE_CHECKING:
    from kernel_lab import Lab

    from klbr_trio.kernel import CellResult


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(1e6)",
        "import asyncio; await asyncio.sleep(1e6)",
        "import asyncio\nwhile True: await asyncio.sleep(0)",
        "await f()",
        "import subprocess; subprocess.run(['sleep', '1000'])",
        "import os\nwhile True: os.system('sleep 1000')",
        "import threading; threading.Event().wait()",
        "import asyncio; asyncio.run(asyncio.sleep(1e6))",
        "[n for n in iter(int, 1)]",
    ],
)
async def test_a_cell_over_its_time_is_interrupted_and_its_kernel_kept(lab: Lab, code: str) -> None:
    await lab.value("keep = 1\nasync def f():\n    while True: pass")
    error = await lab.error(code, timeout_s=0.15)
    assert error.startswith(
        "the cell was interrupted: it ran longer than its limit of 0.15 s. "
        "The kernel goes on, and its variables are kept."
    )
    assert await lab.value("keep") == "1"


@pytest.mark.parametrize(
    "code",
    [
        "sum(range(10**13))",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except BaseException: pass",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import asyncio\nwhile True:\n    try:\n        await asyncio.sleep(1e6)\n    except BaseException: pass",
    ],
)
async def test_a_cell_that_does_not_stop_is_killed_with_its_kernel(lab: Lab, code: str) -> None:
    mark = lab.mark()
    result = await lab.run(code, timeout_s=0.1)
    assert result.died == result.error == lab.kernel.why
    assert result.died is not None
    assert "it ran longer than its limit of 0.1 s" in result.died
    assert "gone with all variables" in result.died
    assert marked(mark) == []


async def test_an_interrupt_without_a_cell_does_nothing(lab: Lab) -> None:
    lab.kernel.interrupt()
    assert await lab.value("1 + 1") == "2"
    lab.kernel.interrupt()
    assert await lab.value("sum(range(10**6))") == str(sum(range(10**6)))


async def test_an_interrupt_before_the_first_line_counts(lab: Lab) -> None:
    errors: list[str] = []

    async def run() -> None:
        errors.append(await lab.error("import time; time.sleep(1e6)"))

    for _ in range(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            while not lab.kernel.busy:  # the very next moment is wanted
                await trio.lowlevel.checkpoint()
            lab.kernel.interrupt()
    assert ["the cell was interrupted" in error for error in errors] == [True] * 20


async def test_an_interrupted_cell_can_clean_up(lab: Lab) -> None:
    code = "import time\ncleaned = False\ntry:\n    time.sleep(1e6)\nfinally:\n    cleaned = True"
    await lab.error(code, timeout_s=0.1)
    assert await lab.value("cleaned") == "True"


async def test_a_cell_that_handles_the_interrupt_succeeds(lab: Lab) -> None:
    result = await lab.run(
        "import time\ntry:\n    time.sleep(1e6)\nexcept KeyboardInterrupt:\n    pass\n'went on'",
        timeout_s=0.1,
    )
    assert result.ok
    assert result.value == "'went on'"


async def test_a_task_of_an_earlier_cell_that_holds_the_loop_is_interrupted(lab: Lab) -> None:
    await lab.value(
        "import asyncio\nasync def hog():\n    await asyncio.sleep(0.01)\n    while True: pass\n"
        "task = asyncio.create_task(hog())\nawait asyncio.sleep(0)"
    )
    assert "limit of 0.2 s" in await lab.error("await asyncio.sleep(1e6)", timeout_s=0.2)
    assert await lab.value("1 + 1") == "2"


async def test_a_task_that_holds_the_loop_between_cells_is_interrupted(lab: Lab) -> None:
    """The next cell can't begin; it counts as interrupted, and the kernel goes on."""
    await lab.value(
        "import asyncio\nasync def hog():\n    await asyncio.sleep(0.02)\n    print('hog')\n"
        "    while True: pass\n"
        "task = asyncio.create_task(hog())\nkeep = 5\nawait asyncio.sleep(0)"
    )
    await until(lambda: "hog" in lab.kernel.background)
    assert "limit of 0.2 s" in await lab.error("keep", timeout_s=0.2)
    assert await lab.value("keep") == "5"


async def test_interrupts_at_any_moment_end_one_cell_and_no_other(lab: Lab) -> None:
    """Each cell ends exactly once, whenever one or two interrupts come."""
    randomness = random.Random(7)
    cells = (
        "for _ in range(20000): pass\n'done'",
        "import asyncio\nfor _ in range(20): await asyncio.sleep(0)\n'done'",
        "await local.send('x')\n'done'",
        "print('x' * 1000)\n'done'",
    )
    interrupted = 0
    await lab.value("keep = 5")
    for n in range(150):
        results: list[CellResult] = []

        async def run(code: str, *, results: list[CellResult] = results) -> None:
            results.append(await lab.run(code))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, cells[n % len(cells)])
            for _ in range(2):
                await trio.sleep(randomness.random() * 0.0015)
                lab.kernel.interrupt()
        assert len(results) == 1
        if results[0].ok:
            assert results[0].value == "'done'"
        else:
            interrupted += 1
            assert "the cell was interrupted" in (results[0].error or "")
        assert await lab.value("keep") == "5"
    assert interrupted > 10


async def test_a_busy_kernel_with_daemons_is_kept_after_a_soft_stop(lab: Lab) -> None:
    await lab.value(daemons(5))
    assert "interrupted" in await lab.error("while True: pass", timeout_s=0.1)
    assert await lab.value("1 + 1") == "2"


async def test_stop_during_a_flood_is_quick(lab: Lab) -> None:
    started = trio.Event()
    results: list[CellResult] = []

    async def run() -> None:
        results.append(
            await lab.kernel.run(
                "c",
                "while True: print('z' * 10000)",
                on_call=lab.on_call,
                on_output=lambda _text: started.set(),
            )
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(CEILING_S):
            await started.wait()
        lab.kernel.interrupt()
    assert results[0].error is not None
    assert "KeyboardInterrupt" in results[0].error
