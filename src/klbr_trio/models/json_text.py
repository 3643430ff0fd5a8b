"""JSON as models and providers write it: one reading, that fails with one error."""

from __future__ import annotations

import json
from typing import Final

_LENIENT: Final = json.JSONDecoder(strict=False)
_SPACE: Final = " \t\r\n"


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("one object has the same key twice")
    return found


_UNIQUE: Final = json.JSONDecoder(strict=False, object_pairs_hook=_unique)


def read_json(text: str) -> object:
    """The value of `text`; control characters inside strings are taken as they are.

    Raises:
        ValueError: It is not JSON, or nested too deeply to be read.
    """
    try:
        if text.startswith("{"):  # the usual case, without a search for space around it
            value, end = _LENIENT.raw_decode(text)
            if end == len(text):
                return value
        return _LENIENT.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json_values(text: str) -> list[object]:
    """The values that follow each other in `text` with nothing but space between them.

    Raises:
        ValueError: What is left somewhere is not JSON, or an object has a key twice.
    """
    values: list[object] = []
    at, end = 0, len(text)
    while True:
        while at < end and text[at] in _SPACE:
            at += 1
        if at == end:
            return values
        try:
            value, at = _UNIQUE.raw_decode(text, at)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        values.append(value)
