"""What a provider says when it refuses: its sentence, its machine words, its number.

Error bodies are objects, strings, lists and pages; the message is a string, an object with a list
of details, or JSON inside JSON. The sentence is dug out and shown; raw JSON and HTML never are.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.models.json_text import read_json
from klbr_trio.models.surrogates import whole_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_WORDS: Final = 500
_MAX_PAGE: Final = 4 * 1024
_MESSAGE_KEYS: Final = (
    "message", "msg", "detail", "details", "error_description", "error_message", "error_msg",
    "description", "status_msg", "reason", "title", "errors", "error",
)  # fmt: skip
_NUMBER_KEYS: Final = ("status", "code", "status_code", "statusCode", "http_status", "http_code")
_CODE_KEYS: Final = ("code", "type", "status", "reason", "error_code", "status_code", "error")
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_DROPPED: Final = re.compile(r"<(script|style)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_TAG: Final = re.compile(r"<[^>]*>")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_HTML: Final = re.compile(r"\s*<(?:!doctype|html|head|body|\?xml|!--)", re.IGNORECASE)
_FRAMED: Final = re.compile(r"^(?:data|error):\s*([\[{\"].*)$", re.MULTILINE)


@attrs.frozen
class Said:
    """What was said."""

    words: str
    codes: frozenset[str] = frozenset()
    """Machine words, in lower case."""

    number: int | None = None
    """An HTTP status, where the body names one."""

    is_json: bool = True


def read_text(text: str) -> Said:
    """Reads the body of a refusal."""
    text = text.removeprefix("\ufeff").strip()
    candidates = [text, *(match[1] for match in _FRAMED.finditer(text))]
    for candidate in candidates:
        try:
            return read_body(read_json(candidate))
        except ValueError:
            continue
    return Said(plain_words(text), is_json=False)


def read_body(body: object) -> Said:
    """Reads a refusal that is JSON."""
    holders = list(_holders(body))
    if not holders:
        return Said(plain_words(_sentence(body)))
    codes = {word for holder in holders for word in _codes(holder)}
    numbers = [number for holder in reversed(holders) for number in _numbers(holder)]
    words = [plain_words(words) for holder in holders for words in _sentences(holder)]
    sentence = ": ".join(dict.fromkeys(filter(None, words))) or _pairs(holders[-1])
    return Said(sentence[:_MAX_WORDS], frozenset(codes), numbers[0] if numbers else None)


def plain_words(text: str) -> str:
    """`text` as one line that can be shown: a page's title, no tags, no control characters."""
    if _HTML.match(text):
        text = text[:_MAX_PAGE]
        title = _TITLE.search(text)
        text = title[1] if title else _DROPPED.sub(" ", text)
        text = html.unescape(_TAG.sub(" ", text))
    text = whole_text(" ".join(_CONTROL.sub(" ", text).split()))
    return text if len(text) <= _MAX_WORDS else text[:_MAX_WORDS] + "…"


def _holders(body: object, depth: int = 4) -> Iterator[Mapping[str, object]]:
    """The objects that may hold the words, from the outside in."""
    if isinstance(body, list):
        body = next((each for each in body if isinstance(each, dict)), None)
    if not isinstance(body, dict) or not depth:
        return
    yield body
    for name in ("error", "base_resp"):
        yield from _holders(body.get(name), depth - 1)
    metadata = body.get("metadata")
    if isinstance(metadata, dict) and metadata.get("raw"):
        yield from _holders(_unpacked(metadata["raw"]), depth - 1)


def _unpacked(raw: object) -> object:
    if not isinstance(raw, str):
        return raw
    try:
        value = read_json(raw)
    except ValueError:
        return {"message": raw}
    return value if isinstance(value, (dict, list)) else {"message": raw}


def _sentences(holder: Mapping[str, object]) -> Iterator[str]:
    """The words of one object: those of `error`, if it is a string, and the first other."""
    error = holder.get("error")
    if isinstance(error, str):
        yield error
    elif isinstance(error, list):
        yield _sentence([each for each in error if isinstance(each, str)])
    for name in _MESSAGE_KEYS:
        if name != "error" and holder.get(name):
            yield _sentence(holder[name])
            return


def _sentence(value: object, depth: int = 5) -> str:
    """The words in a value, with the place they are about where one is named."""
    if isinstance(value, str):
        return _sentence(_unpacked_sentence(value), depth - 1) if _is_packed(value) else value
    if not depth or value is None or isinstance(value, bool):
        return ""
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list):
        return "; ".join(filter(None, (_sentence(each, depth - 1) for each in value[:5])))
    assert isinstance(value, dict)
    place = value.get("loc") or value.get("param") or value.get("field")
    where = ".".join(map(str, place)) if isinstance(place, list) else place
    for name in _MESSAGE_KEYS:
        found = _sentence(value.get(name), depth - 1)
        if found:
            return f"{where}: {found}" if isinstance(where, str) and where else found
    return _pairs(value)


def _is_packed(text: str) -> bool:
    return text.lstrip().startswith(("{", '[{"'))


def _unpacked_sentence(text: str) -> object:
    try:
        return read_json(text)
    except ValueError:
        return text.replace("{", "(").replace("}", ")").replace('"', "'")


def _codes(holder: Mapping[str, object]) -> Iterator[str]:
    for name in _CODE_KEYS:
        value = holder.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            yield str(value)
        elif isinstance(value, str) and value and " " not in value.strip():
            yield value.strip().lower()


def _numbers(holder: Mapping[str, object]) -> Iterator[int]:
    for name in _NUMBER_KEYS:
        value = holder.get(name)
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
            yield value


def _pairs(holder: Mapping[str, object]) -> str:
    """An object that says nothing, as `name: value` pairs."""
    pairs = (f"{name}: {value}" for name, value in holder.items() if isinstance(value, (str, int)))
    return plain_words(", ".join(pairs))
