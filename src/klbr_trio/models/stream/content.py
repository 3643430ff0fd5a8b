"""A delta's words: visible text and reasoning, in all the places they come in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from klbr_trio.models.stream.chunk import Fields

REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "thinking", "reasoning_text")
_PLAIN: Final = frozenset({"content", "role"})
_THINKING_PARTS: Final = frozenset({"thinking", "reasoning", "thought", "reasoning_content"})
_TEXT_PARTS: Final = frozenset({"text", "output_text", "refusal", "summary_text"})
_TEXT_KEYS: Final = ("text", "refusal", "content")
_THINKING_KEYS: Final = ("thinking", "reasoning", "summary", "text", "content", "reasoning_content")


@attrs.frozen
class Words:
    """What one delta or message says."""

    text: str
    reasoning: str
    field: str | None
    """The reasoning's field, if it came in one of its own."""


def read_words(holder: Fields) -> Words:
    """The words of a delta or message; a refusal is visible text, it is what the model said."""
    content = holder.get("content")
    if isinstance(content, str) and holder.keys() <= _PLAIN:  # nearly always
        return Words(content, "", None)
    text, reasoning = _content(content)
    refusal = holder.get("refusal")
    if isinstance(refusal, str):
        text += refusal
    field = None
    for name in REASONING_FIELDS:
        # the same reasoning may come under two names: the first one counts
        value = holder.get(name)
        found = _text_of(value, _THINKING_KEYS) if value else ""
        if found:
            return Words(text, reasoning or found, name)
    details = holder.get("reasoning_details")
    if not reasoning and isinstance(details, list):
        reasoning = "".join(_text_of(detail, _THINKING_KEYS) for detail in details)
    return Words(text, reasoning, field)


def _content(content: object) -> tuple[str, str]:
    if isinstance(content, str):
        return content, ""
    parts = content if isinstance(content, list) else [content]
    text, reasoning = [], []
    for part in parts:
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, dict):
            kind = part.get("type", "text")
            if kind in _TEXT_PARTS:
                text.append(_text_of(part, _TEXT_KEYS))
            elif kind in _THINKING_PARTS:
                reasoning.append(_text_of(part, _THINKING_KEYS))
    return "".join(text), "".join(reasoning)


def _text_of(value: object, keys: tuple[str, ...], depth: int = 4) -> str:
    """The text in a value that may be a string, a list of parts, or a part."""
    if isinstance(value, str):
        return value
    if depth and isinstance(value, list):
        return "".join(_text_of(each, keys, depth - 1) for each in value)
    if depth and isinstance(value, dict):
        for key in keys:
            found = _text_of(value.get(key), keys, depth - 1)
            if found:
                return found
    return ""
