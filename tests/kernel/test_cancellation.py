"""Whoever is cancelled, at whatever moment: nothing of the kernel is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from kernel_lab import (
    CEILING_S,
    CONFIG,
    daemons,
    lab_fixture,  # noqa: F401  # pytest finds it here
    make_spec,
    open_descriptors,
    open_lab,
    own_children,
    processes_of,
    run_kernel_in,
    until,
)

from klbr_trio.kernel.marks import marked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kernel_lab import Lab

    from klbr_trio.kernel import Kernel


@pytest.mark.parametrize("moment_ms", [0, 1, 3, 6, 10, 15, 25, 40, 60, 80, 100, 130])
async def test_a_start_cancelled_at_any_moment_leaves_nothing(
    tmp_path: Path, moment_ms: int
) -> None:
    spec = make_spec(tmp_path)
    before = own_children()
    with trio.fail_after(CEILING_S):
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = trio.current_time() + moment_ms / 1000
            nursery.start_soon(nursery.start, run_kernel_in, CONFIG, spec)
    assert processes_of(spec.workspace) == []
    assert own_children() == before


CELL = "import asyncio\nfor n in range(1000):\n    await local.send(str(n))\n    print(n)\n"


@pytest.mark.parametrize("moment_ms", [0, 0.2, 0.5, 1, 2, 3, 5, 8, 13])
async def test_a_cell_cancelled_at_any_moment_takes_its_kernel_with_it(
    lab: Lab, moment_ms: float
) -> None:
    mark = lab.mark()
    with trio.move_on_after(moment_ms / 1000) as scope:
        await lab.run(CELL + "await asyncio.sleep(1000)")
    assert scope.cancelled_caught
    assert lab.kernel.why == "the cell was cancelled"
    assert not lab.kernel.busy
    assert marked(mark) == []
    assert (await lab.run("1 + 1")).died == "the cell was cancelled"


async def test_a_cell_cancelled_during_its_grace_takes_its_kernel_with_it(lab: Lab) -> None:
    mark = lab.mark()
    with trio.move_on_after(0.3) as scope:
        await lab.run("sum(range(10**13))", timeout_s=0.1)
    assert scope.cancelled_caught
    assert marked(mark) == []


async def test_a_call_cancelled_with_its_cell_is_not_answered(lab: Lab) -> None:
    asked = trio.Event()

    async def never(_target: str, _args: Mapping[str, object]) -> object:
        asked.set()
        return await trio.sleep_forever()

    mark = lab.mark()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await lab.kernel.run("c", CELL, on_call=never, on_output=lab.live.append)

            nursery.start_soon(run)
            with trio.fail_after(CEILING_S):
                await asked.wait()
            scope.cancel()
    assert scope.cancelled_caught
    assert lab.live == []
    assert marked(mark) == []


async def test_a_cancelled_supervisor_ends_a_running_cell_with_the_reason(tmp_path: Path) -> None:
    errors: list[str | None] = []
    async with open_lab(make_spec(tmp_path)) as lab, trio.open_nursery() as cells:
        async with trio.open_nursery() as kernels:
            lab.kernel = await kernels.start(run_kernel_in, CONFIG, make_spec(tmp_path))
            await lab.value(daemons(3))
            mark = lab.mark()

            async def run() -> None:
                errors.append((await lab.run("while True: pass")).error)

            cells.start_soon(run)
            await until(lambda: lab.kernel.busy)
            kernels.cancel_scope.cancel()
        assert marked(mark) == []
    assert errors == ["the kernel was shut down"]


async def test_a_death_during_a_call_gives_the_call_up(lab: Lab) -> None:
    async def die(_target: str, _args: Mapping[str, object]) -> object:
        lab.kernel.doom("stopped")
        return await trio.sleep_forever()

    with trio.fail_after(CEILING_S):
        result = await lab.kernel.run("c", CELL, on_call=die, on_output=lab.live.append)
    assert result.error == result.died == "stopped"


async def test_only_one_cell_at_a_time(lab: Lab) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lab.run, "import time; time.sleep(1000)")
        await until(lambda: lab.kernel.busy)
        with pytest.raises(trio.BusyResourceError):
            await lab.run("1 + 1")
        lab.kernel.interrupt()
    assert await lab.value("1 + 1") == "2"


async def test_nothing_stays_open_after_a_kernel(tmp_path: Path) -> None:
    async def once() -> Kernel:
        async with open_lab(make_spec(tmp_path)) as lab:
            await lab.value("1 + 1")
        return lab.kernel

    await once()
    before = open_descriptors()
    for _ in range(3):
        await once()
    assert open_descriptors() == before
