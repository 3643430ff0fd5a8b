"""Names of tools that were called and do not exist, as providers accept them in a history."""

from __future__ import annotations

import re
from typing import Final

_REFUSED: Final = re.compile(r"[^A-Za-z0-9_-]+")
_MAX: Final = 64


def sendable_name(name: str) -> str:
    """`name` in the characters and length that providers allow, never empty."""
    return _REFUSED.sub("_", name)[:_MAX] or "unnamed"
