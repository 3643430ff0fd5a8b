"""A clock that stands still."""

from __future__ import annotations

import pytest
from store_lab import StandingClock


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()
