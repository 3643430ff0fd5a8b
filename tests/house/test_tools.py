"""The rules that tools check, run as tests, so that one command runs everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py"))


def run(*command: str) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / command[0]), *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"[-8000:]


def test_ruff_finds_nothing() -> None:
    run("ruff", "check", "--output-format", "concise", ".")


def test_the_format_is_ruffs() -> None:
    run("ruff", "format", "--check", ".")


@pytest.mark.slow
def test_mypy_finds_nothing() -> None:
    run("mypy")


def test_modules_import_only_from_layers_below() -> None:
    run("lint-imports")


def test_async_code_keeps_trios_rules() -> None:
    run(
        "flake8-async",
        "--enable=ASYNC",
        # 122 is for older trios, 127 flags `import httpx`, 910 and 911 want a checkpoint on every
        # path, 114 and 128 do not see that a startable hands its task_status on.
        "--disable=ASYNC114,ASYNC122,ASYNC127,ASYNC128,ASYNC910,ASYNC911",
        *[path for path in SOURCES if "/kernel/inside/" not in path],
    )
