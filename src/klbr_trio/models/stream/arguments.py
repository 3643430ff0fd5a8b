"""One call's arguments, judged when the answer is over: code to run, or what to tell the model.

Read without guessing: one JSON object with `code`, a string. Control characters inside strings are
taken as they are, placeholders beside the object (`{}`, null) are dropped, equal repeats merged, one
level of double encoding and one fence around the whole code undone: each of these can be read in
one way only. Anything else goes back to the model, in words it can act on. Nothing is repaired.
"""

from __future__ import annotations

import json
import re
from typing import Final

from klbr_trio.models.json_text import read_json_values
from klbr_trio.models.reply import PYTHON
from klbr_trio.models.surrogates import whole_text

_FENCE: Final = re.compile(r"(`{3,}|~{3,})[ \t]*[\w+.-]*")
_SHOWN: Final = 200
_INDEX_SUFFIX: Final = re.compile(r":\d+$")


class Unrunnable(ValueError):
    """The call can't run; the text is for the model."""


def tool_called(names: list[str], tool_name: str) -> str:
    """`python` if the names that came mean the tool, else the name as it came.

    Leaked channel markers behind the name and a namespace in front are cut off. A name that came in
    pieces is taken if the pieces make the tool's name.
    """
    known = {tool_name, PYTHON}
    cleaned = [_clean(name) for name in names]
    for name in (*cleaned, _clean("".join(names))):
        if name in known:
            return PYTHON
    return cleaned[-1] if cleaned else ""


def _clean(name: str) -> str:
    name = name.partition("<|")[0].strip().removeprefix("functions.")
    return _INDEX_SUFFIX.sub("", name)


def code_of(arguments: str, tool_name: str) -> str:
    """The code that these arguments ask to run.

    Raises:
        Unrunnable: They don't ask for any, or can't be read in exactly one way.
    """
    found = _the_object(arguments, tool_name)
    shape = _shape(tool_name)
    if "code" not in found:
        names = ", ".join(sorted(map(str, found))) or "nothing"
        raise Unrunnable(
            f"the argument `code` is missing (there was: {names}); nothing was run. {shape}"
        )
    code = found["code"]
    if not isinstance(code, str):
        raise Unrunnable(f"the argument `code` must be a string; nothing was run. {shape}")
    return whole_text(_unfenced(code))


def _unfenced(code: str) -> str:
    """`code` without one fence around all of it; a fence is never Python, so nothing is lost."""
    first, *lines = code.strip().split("\n")
    fence = _FENCE.fullmatch(first.strip())
    if fence and lines and lines[-1].strip() == fence[1]:
        return "\n".join(lines[:-1])
    return code


def _the_object(arguments: str, tool_name: str) -> dict[str, object]:
    objects = _read(arguments, tool_name)
    if not objects:
        objects = [{}]
    if any(not isinstance(value, dict) for value in objects):
        raise Unrunnable(
            "the arguments are JSON, but not a JSON object; nothing was run. " + _shape(tool_name)
        )
    first = objects[0]
    if any(value != first for value in objects[1:]):
        raise Unrunnable(
            f"the arguments are {len(objects)} JSON objects under one call; nothing was run. "
            "Make one call for each, one at a time."
        )
    assert isinstance(first, dict)
    return first


def _read(arguments: str, tool_name: str) -> list[object]:
    """The values in the arguments, without placeholders."""
    try:
        values = [_once_decoded(value) for value in read_json_values(arguments)]
    except ValueError as error:
        what = "end too early, they were cut off" if is_cut(arguments) else f"do not parse: {error}"
        raise Unrunnable(
            f"the arguments are not valid JSON, they {what}; nothing was run. "
            f"They began: {shown(arguments)}. {_shape(tool_name)}"
        ) from error
    return [value for value in values if value not in ({}, None, "")]


def _once_decoded(value: object) -> object:
    if not isinstance(value, str) or not value.strip():
        return value
    inner = read_json_values(value)
    if len(inner) == 1 and isinstance(inner[0], dict):
        return inner[0]
    return value


def is_cut(arguments: str) -> bool:
    """Whether JSON began and was not finished."""
    try:
        json.loads(arguments, strict=False)
    except json.JSONDecodeError as error:
        return error.pos >= len(arguments.rstrip()) or error.msg.startswith("Unterminated")
    except (ValueError, RecursionError):
        return False
    return False


def shown(text: str) -> str:
    """The beginning of a text, for a sentence."""
    head = whole_text(text[:_SHOWN])
    return repr(head) + ("…" if len(text) > _SHOWN else "")


def _shape(tool_name: str) -> str:
    return f'Call `{tool_name}` with one JSON object: {{"code": "…"}}.'
