"""The bounds of texts, measured in the form in which they are stored: JSON in UTF-8."""

from __future__ import annotations

import json
import re
from typing import Final

from klbr_trio.errors import BadRequest, TooLarge

TEXT_BYTES: Final = 256 * 1024
"""What one text may take, in bytes of JSON between its quotes."""

PAYLOAD_BYTES: Final = 1024 * 1024 - 8 * 1024
"""What one event's payload may take: a server frame of 1 MiB less the record around it."""

NAME_CHARS: Final = 128
NOTE_CHARS: Final = 1000
MESSAGE_BYTES: Final = 4096

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# The most bytes that one character takes in JSON form: a control character as \u0000.
_WIDEST: Final = 6


def json_bytes(text: str) -> int:
    """The length of `text` in JSON form, in bytes of UTF-8, without the quotes.

    Raises:
        UnicodeEncodeError: `text` has a lone surrogate.
    """
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2


def has_surrogate(text: str) -> bool:
    """Whether `text` has a lone surrogate, which UTF-8 can't hold."""
    return not text.isascii() and _SURROGATE.search(text) is not None


def clean(text: str) -> str:
    """`text` with each lone surrogate replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def check_text(field: str, text: str, *, empty_ok: bool = False) -> None:
    """Refuse a text that can't be stored as it was sent.

    Raises:
        BadRequest: It is empty or has a lone surrogate.
        TooLarge: Its JSON form is over `TEXT_BYTES`.
    """
    if not text and not empty_ok:
        raise BadRequest(f"{field} must not be empty")
    if has_surrogate(text):
        raise BadRequest(f"{field} holds a lone surrogate, which can't be stored as it was sent")
    if len(text) * _WIDEST > TEXT_BYTES and (size := json_bytes(text)) > TEXT_BYTES:
        raise TooLarge(
            f"{field} has {size} bytes in JSON form; at most {TEXT_BYTES} are taken, "
            "send it in parts"
        )


def check_name(field: str, name: str, *, empty_ok: bool = False) -> None:
    """Refuse a name that is empty, over `NAME_CHARS` characters or holds control characters.

    Raises:
        BadRequest: It is one of these, or has a lone surrogate.
    """
    if not name and not empty_ok:
        raise BadRequest(f"{field} must not be empty")
    if len(name) > NAME_CHARS:
        raise BadRequest(f"{field} has {len(name)} characters; at most {NAME_CHARS} are taken")
    if not name.isprintable() and (_CONTROL.search(name) or has_surrogate(name)):
        raise BadRequest(f"{field} must not hold control characters or lone surrogates")


def cut(text: str, limit: int = TEXT_BYTES) -> str:
    """`text` in at most `limit` bytes of JSON form: head, tail, and how much was left out.

    Lone surrogates are replaced first, so the result can always be stored. A text that
    was cut is within the limit, so cutting it again changes nothing.

    Args:
        text: Any text.
        limit: At least 100, to hold the note of what was left out.
    """
    text = clean(text)
    if len(text) * _WIDEST <= limit or json_bytes(text) <= limit:
        return text
    room = limit - 80
    head, tail = _head(text, room // 2), _head(text[::-1], room // 2)[::-1]
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[... {left_out} characters left out ...]\n{tail}"


def cut_message(text: str) -> str:
    """A message for people in at most `MESSAGE_BYTES`."""
    return cut(text, MESSAGE_BYTES)


def cut_note(text: str | None) -> str | None:
    """A reason or purpose in at most `NOTE_CHARS` characters."""
    if text is None:
        return None
    text = clean(text)
    return text if len(text) <= NOTE_CHARS else text[: NOTE_CHARS - 1] + "…"


def _head(text: str, limit: int) -> str:
    """The longest prefix of `text` whose JSON form has at most `limit` bytes."""
    low, high = 0, min(len(text), limit)
    while low < high:
        middle = (low + high + 1) // 2
        if json_bytes(text[:middle]) <= limit:
            low = middle
        else:
            high = middle - 1
    return text[:low]
