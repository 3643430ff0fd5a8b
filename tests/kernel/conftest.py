from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kernel_lab import Lab, make_spec, open_lab

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[Lab]:
    async with open_lab(make_spec(tmp_path)) as opened:
        yield opened
