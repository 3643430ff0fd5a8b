"""Every setting of a model is in its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from klbr_trio.cli.models import SETTINGS

PAGE = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_a_model_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE
