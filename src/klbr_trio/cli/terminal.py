"""Text for a terminal: what others wrote can't drive it.

Model, tool and kernel text may hold anything. Everything but printable characters, line
ends and tabs is shown as an escape, one character at a time, so that a sequence which is
split across pieces is caught as well.
"""

from __future__ import annotations

import json
import re
from typing import Final

# C0 but for tab and line feed, DEL, C1, marks that turn the direction of text or are not
# seen at all, and lone surrogates. The two joiners stay: emoji and scripts need them.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """`text` with every character that could drive a terminal shown as its escape."""
    return _HIDDEN.sub(_escape, text)


def visible_line(text: str) -> str:
    """As `visible`, on one line."""
    return visible(text).replace("\n", "\\n").replace("\t", " ")


def to_json(value: object) -> str:
    """One line of JSON that reads back as it was and is safe on a terminal."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Such characters stand only inside of strings, where JSON has escapes for them.
    return _HIDDEN.sub(_json_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]
