"""What every test may use: a place for a store, hypothesis without deadlines, `fakes` on the path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pathlib import Path

# Examples are timed by nobody: a shared machine makes slow ones, and they mean nothing.
settings.register_profile(
    "dev",
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("dev")


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Where a test's store goes; its folder is the test's own."""
    return tmp_path / "klbr.sqlite"
