"""What a commit wrote, for those who count it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import attrs

from klbr_trio.domain.events import Body


@attrs.frozen
class Written:
    """One commit that changed something.

    Attributes:
        seconds: How long its COMMIT took, the wait for the disk included.
        bodies: The events that it appended.
    """

    seconds: float
    bodies: tuple[Body, ...]


Counter: TypeAlias = Callable[[Written], None]
