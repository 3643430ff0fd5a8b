"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from e2e_house import CEILING_S, DEMO, environment, open_house

from klbr_trio.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_house import House


README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.fixture
def at_home(tmp_path: Path) -> Generator[House]:
    """A service where the README says that the state lives."""
    state = tmp_path / ".local" / "state"
    state.mkdir(parents=True)
    with open_house(state) as house:
        house.state = state / "klbr_trio"
        house.start(*DEMO)
        yield house


@pytest.mark.usefixtures("at_home")
def test_the_client_in_the_readme_hears_the_agent(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(import json.*?)```", README, flags=re.DOTALL)
    assert len([line for line in program.splitlines() if line]) <= 20
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=CEILING_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "the agent has said nothing"


def test_every_command_in_the_readme_is_one() -> None:
    named = set(re.findall(r"^klbr (\w+)", README, flags=re.MULTILINE))

    assert named <= set(app.commands)
