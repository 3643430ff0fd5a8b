"""The operator's interrupt ends a cell and nothing else; a stop says what it has ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from fakes.provider import call_reply
from session_lab import DONE, SID, STUCK, open_lab

from klbr_trio.errors import UnknownSession

if TYPE_CHECKING:
    from pathlib import Path


async def test_an_interrupt_ends_the_cell_and_keeps_kernel_and_turn(tmp_path: Path) -> None:
    script = [call_reply(f"keep = 1\n{STUCK}"), call_reply(f"print('kept', keep)\n{DONE}")]
    async with open_lab(tmp_path, script) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.cell_begun()
        entry = await lab.entry()
        kernel = entry.kernels.kernel
        assert await lab.registry.interrupt(SID)
        await lab.idle()
        first, second = lab.of("cell.finished")
        assert "the cell was interrupted: the operator interrupted it" in first["error"]
        assert second["output"] == "kept 1\n"
        assert lab.kinds()[-1] == "turn.completed"
        assert entry.kernels.kernel is kernel


async def test_a_cell_that_can_not_be_interrupted_is_killed_with_its_kernel(
    tmp_path: Path,
) -> None:
    deaf = "print('begun')\nsum(range(10**13))"
    async with open_lab(tmp_path, [call_reply(deaf), call_reply(DONE)]) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.cell_begun()
        assert await lab.registry.interrupt(SID)
        await lab.idle()
        assert "the operator interrupted it, and did not end" in lab.of("cell.finished")[0]["error"]
        assert lab.kinds()[-1] == "turn.completed"


async def test_without_a_cell_there_is_nothing_to_interrupt(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(DONE)]) as lab:
        with pytest.raises(UnknownSession):
            await lab.registry.interrupt("nobody")
        await lab.turn()
        assert not await lab.registry.interrupt(SID)


async def test_a_stop_says_how_many_processes_it_has_ended_and_how_soon(tmp_path: Path) -> None:
    cell = f"import subprocess\np = subprocess.Popen(['sleep', '1000'])\n{STUCK}"
    async with open_lab(tmp_path, [call_reply(cell)]) as lab:
        await lab.admit()
        assert await lab.trigger()
        await lab.cell_begun()
        receipt = await lab.registry.stop(SID)
        assert receipt is not None
        assert re.fullmatch(r"2 processes ended in \d+ ms; survivors: none", receipt)
        assert await lab.registry.stop(SID) is None
