"""Text that looks like a call.

Text is never run, it may be a quotation; but it is not lost either: the model is told once that no
call arrived.
"""

from __future__ import annotations

import re
from typing import Final

from klbr_trio.models.json_text import read_json

_TOKENS: Final = re.compile(
    r"<\|?/?(?:tool_calls?|function_calls?|invoke|tool▁call|tool_use|python_tag|execute)\b"
    r"|<\|(?:tool|channel|python|call|plugin|action|start|constrain|message|im_start|eom)"
    r"|<｜tool|<function=|<parameter=|<invoke |\[TOOL_CALLS?\]|\[/?TOOL_REQUEST\]|\bto=functions\."
    r"|<tools>|<tool>|<py(?:thon)?>|</?minimax:tool_call|✿FUNCTION✿",
    re.IGNORECASE,
)
_FENCE: Final = re.compile(
    r"^[ \t]*(?:```|~~~)[ \t]*(?:python3?|py|tool_code|tool_call|ipython)\b",
    re.MULTILINE | re.IGNORECASE,
)
_LOOKED_AT: Final = 32 * 1024  # the beginning of a text shows what it is
_NAME_KEYS: Final = ("name", "tool", "function", "tool_name", "action", "recipient_name")
_ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input", "action_input", "tool_input")
_CALL_OBJECT: Final = re.compile(r'\{\s*"(?:name|tool|function|tool_name|code)"\s*:')


def leaked_tokens(text: str) -> bool:
    """Whether a model's own call tokens stand in the text: the server's parser missed them."""
    return bool(_TOKENS.search(text, 0, _LOOKED_AT))


def looks_like_call(text: str) -> bool:
    """Whether a reader would say that a call was meant."""
    if leaked_tokens(text) or _FENCE.search(text, 0, _LOOKED_AT):
        return True
    found = _CALL_OBJECT.search(text, 0, _LOOKED_AT)
    return found is not None and _is_call(text[found.start() :])


def _is_call(text: str) -> bool:
    try:
        value = read_json(text[: text.rindex("}") + 1])
    except ValueError:
        return False
    if not isinstance(value, dict):
        return False
    if set(value) == {"code"}:
        return True
    names = any(name in value for name in _NAME_KEYS)
    return names and any(name in value for name in _ARGUMENT_KEYS)


def no_call_hint(text: str, reasoning: str, *, cut_short: bool, tool_name: str) -> str | None:
    """What to tell a model whose answer had no call; None if nothing needs to be said."""
    how = f'To run code, call the tool `{tool_name}` with {{"code": "…"}}.'
    if cut_short:
        return f"Your answer was cut off by the token limit, and no tool call arrived. {how} Write less at once."
    if looks_like_call(text):
        return f"No tool call arrived: what looks like one was written as text, and text is never run. {how}"
    if leaked_tokens(reasoning):
        return f"No tool call arrived: one was written inside the reasoning, and that is never run. {how}"
    if not text.strip():
        return f"Nothing visible and no tool call arrived, only reasoning. {how}"
    return None
