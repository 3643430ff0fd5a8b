"""The hooks of a release: what they change, and what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kernel_lab import make_spec, open_lab

if TYPE_CHECKING:
    from pathlib import Path

SYNC = """
from klbr import Refused

def before_cell(code):
    if "forbidden" in code:
        raise Refused("that is forbidden here")
    return code.replace("1 + 1", "1 + 2")

def before_send(text):
    if "secret" in text:
        raise Refused("that stays here")
    return text.upper() if text.startswith("loud") else None
"""
ASYNC = "import asyncio\n" + SYNC.replace("def before", "async def before").replace(
    "    if", "    await asyncio.sleep(0)\n    if", 2
)


@pytest.mark.parametrize("policy", [SYNC, ASYNC])
async def test_hooks_change_and_refuse(tmp_path: Path, policy: str) -> None:
    async with open_lab(make_spec(tmp_path, {"policy.py": policy})) as lab:
        assert await lab.value("1 + 1") == "3"
        assert await lab.error("ran = True  # forbidden") == "that is forbidden here"
        assert "NameError" in await lab.error("ran")
        await lab.value("await local.send('loud')\nawait local.send('quiet')")
        assert (await lab.error("await local.send('a secret')")).endswith("that stays here")
    assert lab.said == ["LOUD", "quiet"]


async def test_a_hook_that_fails_is_an_error_and_the_cell_is_not_run(tmp_path: Path) -> None:
    policy = "def before_cell(code):\n    return 1 / 0 if code == 'x = 1' else 5\n"
    async with open_lab(make_spec(tmp_path, {"policy.py": policy})) as lab:
        error = await lab.error("x = 1")
        assert "policy.py" in error
        assert error.endswith("ZeroDivisionError: division by zero")
        assert "a policy hook returns str or None, not int" in await lab.error("2")


async def test_a_hook_that_hangs_is_interrupted(tmp_path: Path) -> None:
    policy = "def before_cell(code):\n    while code == 'hang': pass\n"
    async with open_lab(make_spec(tmp_path, {"policy.py": policy})) as lab:
        assert "limit of 0.1 s" in await lab.error("hang", timeout_s=0.1)
        assert await lab.value("1 + 1") == "2"
