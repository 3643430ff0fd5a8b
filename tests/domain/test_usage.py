from __future__ import annotations

import math

from klbr_trio.domain.usage import add, amounts


def test_what_adds_up_is_numbers_above_nothing() -> None:
    usage = {"a": 1, "b": 0.5, "c": 0, "d": -1, "e": True, "f": "7", "g": math.inf, "h": math.nan}
    assert amounts(usage) == {"a": 1, "b": 0.5}
    assert amounts(None) == amounts([1]) == {}


def test_it_is_added_by_name() -> None:
    spent: dict[str, float] = {"a": 1}
    add(spent, {"a": 2, "b": 3})
    add(spent, None)
    assert spent == {"a": 3, "b": 3}
