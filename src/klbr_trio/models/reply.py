"""What one model request came to: the reply, whole and judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import attrs

PYTHON: Final = "python"
"""The tool, whatever it is called towards a model."""

Lane: TypeAlias = Literal["scratchpad", "reasoning"]
"""What a streamed piece of text belongs to."""


@attrs.frozen
class ToolCall:
    """One call of a reply: either `code` is there and whole, or `error` says why nothing may run."""

    provider_id: str
    """Never empty and unique in its reply; made up where the provider gave none."""

    name: str
    """`python`, whatever the tool is called towards the model, or the unknown name that came."""

    code: str | None
    raw: str | None
    """What came as arguments, cut, where it could not run."""

    error: str | None
    """What the model is to be told as the call's result, where it could not run."""


@attrs.frozen
class Reply:
    """An answer that counts."""

    model: str
    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish: str | None
    usage: Mapping[str, float] | None
    """`prompt_tokens`, `completion_tokens`, `total_tokens`; where known `cached_tokens`,
    `reasoning_tokens` and, if the model has a price, `cost`."""

    opaque: Mapping[str, object]
    """JSON to be stored as it is and given back in `Assistant.opaque`."""

    hint: str | None
    """What the model should be told if it is asked again: that no call arrived."""
