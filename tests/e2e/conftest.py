from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from e2e_house import DEMO, House, open_house

if TYPE_CHECKING:
    from collections.abc import Generator

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture
def house(tmp_path: Path) -> Generator[House]:
    """A state folder without a service."""
    with open_house(tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Generator[House]:
    """A service with the scripted provider, shared by a module's tests."""
    with open_house(tmp_path_factory.mktemp("demo")) as one:
        one.start(*DEMO)
        yield one
