"""When a session's kernel comes and goes, and what its agent is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from fakes.provider import call_reply
from session_lab import CEILING_S, CONFIG, DONE, SID, open_lab

from klbr_trio.errors import KernelStartFailed
from klbr_trio.kernel import Level
from klbr_trio.sessions.prompt.names import made_by
from klbr_trio.sessions.resting import is_memory_low

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(CEILING_S):
        while not condition():  # noqa: ASYNC110  # processes ring no bell
            await trio.sleep(0.005)


async def test_a_kernel_starts_ahead_of_its_first_cell(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(DONE)]) as lab:
        slot = (await lab.entry()).kernels
        slot.warm(lab.release)
        slot.warm(lab.release)
        await until(lambda: slot.kernel is not None)
        kernel = slot.kernel
        await lab.turn()
        assert slot.kernel is kernel
        assert "kernel.reset" not in lab.kinds()


@pytest.mark.parametrize("moment_ms", [0, 5, 20, 60, 120])
async def test_a_kernel_that_starts_ahead_ends_with_a_stop(tmp_path: Path, moment_ms: int) -> None:
    async with open_lab(tmp_path, []) as lab:
        entry = await lab.entry()
        entry.kernels.warm(lab.release)
        await trio.sleep(moment_ms / 1000)
        await lab.registry.stop(SID)
        assert lab.processes() == []
        assert entry.kernels.kernel is None


async def test_an_idle_kernel_is_let_go_and_its_agent_is_told_what_is_gone(tmp_path: Path) -> None:
    cells = [
        call_reply(f"import math\nrate = 3\ndef twice(n): return 2 * n\n{DONE}"),
        call_reply(DONE),
    ]
    config = attrs.evolve(CONFIG, idle_seconds=1.5)
    async with open_lab(tmp_path, cells, config=config) as lab:
        await lab.turn("one")
        slot = (await lab.entry()).kernels
        await until(lambda: slot.kernel is None)
        await until(lambda: not lab.processes())
        await lab.turn("two")
        assert lab.of("kernel.reset") == [{"why": "idle", "hook_epoch": 2}]
        told = str(lab.messages())
        assert "Gone are: math, rate, twice, runtime." in told


async def test_a_sandbox_that_is_not_to_be_had_fails_the_turn_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    config = attrs.evolve(CONFIG, least=Level.REDUCED)
    assert config.refusal is not None
    with pytest.raises(KernelStartFailed, match="bubblewrap"):
        config.check_sandbox()
    async with open_lab(tmp_path, [call_reply(DONE)], config=config) as lab:
        await lab.turn()
        assert "Install bubblewrap" in lab.of("cell.finished")[0]["error"]
        assert "turn.failed" in lab.kinds()


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["x = 1\ny: int = 2", "x += 1\nimport a.b, c as d\nfrom e import f"], "x y a d f"),
        (["for i in []: j = 1\nwith open('x') as f: pass\n(a, *b) = c"], "i j f a b"),
        (["def g(p):\n    q = 1\nclass K:\n    r = 1\nz = [s for s in t]"], "g K z"),
        (["if (n := 10): await m\n_ = 1\n__x = 2"], "n"),
        (["not python (", "\0", "ok = 1"], "ok"),
        (["(" * 100_000], ""),
    ],
)
def test_the_names_that_cells_make(cells: list[str], names: str) -> None:
    assert made_by(cells) == tuple(names.split())


def test_little_memory_is_seen(tmp_path: Path) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 40 kB\n")
    assert is_memory_low(info)
    info.write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 60 kB\n")
    assert not is_memory_low(info)
    assert not is_memory_low(tmp_path / "none")
