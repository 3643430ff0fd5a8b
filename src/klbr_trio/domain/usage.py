"""What replies cost: numbers by name, that add up."""

from __future__ import annotations

import math
from collections.abc import Mapping


def amounts(usage: object) -> dict[str, float]:
    """What of a reply's usage can be added up: its numbers above 0."""
    if not isinstance(usage, Mapping):
        return {}
    return {
        name: amount
        for name, amount in usage.items()
        if isinstance(amount, int | float) and not isinstance(amount, bool)
        if 0 < amount < math.inf
    }


def add(spent: dict[str, float], usage: object) -> None:
    """`spent` counts this usage, too."""
    for name, amount in amounts(usage).items():
        spent[name] = spent.get(name, 0) + amount
