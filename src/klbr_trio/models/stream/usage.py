"""What an answer cost, in one shape whoever counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klbr_trio.models.stream.chunk import Fields, fields

if TYPE_CHECKING:
    from collections.abc import Mapping

_MILLION: Final = 1_000_000
_DIGITS: Final = 10


def read_usage(
    usage: Fields | None, *, price_input: float | None = None, price_output: float | None = None
) -> Mapping[str, float] | None:
    """The tokens, and their price where the model has one; None if the provider counted nothing."""
    if usage is None:
        return None
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    completion = _count(usage, "completion_tokens", "output_tokens")
    total = _count(usage, "total_tokens") or prompt + completion
    if not total:
        return None
    read: dict[str, float] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": total,
    }
    cached = _count(fields(usage.get("prompt_tokens_details")), "cached_tokens")
    cached = cached or _count(usage, "prompt_cache_hit_tokens", "cached_tokens")
    reasoned = _count(fields(usage.get("completion_tokens_details")), "reasoning_tokens")
    if cached:
        read["cached_tokens"] = cached
    if reasoned:
        read["reasoning_tokens"] = reasoned
    if price_input is not None or price_output is not None:
        cost = prompt * (price_input or 0) + completion * (price_output or 0)
        read["cost"] = round(cost / _MILLION, _DIGITS)
    return read


def _count(usage: Fields, *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e15:
            return int(value)
    return 0
