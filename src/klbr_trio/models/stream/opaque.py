"""What a reply has to remember without understanding it, so that its message can go back right.

```
{"model": "…",                                   who said it: others are not shown it
 "reasoning": {"field": "reasoning_content", "text": "…"},      only if there was any
 "message": {unknown fields of the message},
 "calls": [{"id": "…", "name": "…", "fields": {unknown fields of the call},
            "function": {unknown fields of its function}}]}
```
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.models.stream.content import REASONING_FIELDS
from klbr_trio.models.surrogates import whole_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klbr_trio.models.reply import ToolCall
    from klbr_trio.models.stream.calls import GatheredCall
    from klbr_trio.models.stream.chunk import Fields

logger = logging.getLogger("klbr_trio.models")

MAX_REASONING: Final = 128 * 1024  # characters; the record that holds it has to fit into one frame
MAX_FIELDS: Final = 128 * 1024  # of all unknown fields together
MAX_DEPTH: Final = 40
_KNOWN: Final = frozenset({
    "role", "content", "refusal", "tool_calls", "function_call", *REASONING_FIELDS,
})  # fmt: skip
_APPENDED: Final = frozenset({"text", "summary", "data", "thinking", "signature_delta"})


@attrs.define(eq=False)
class OpaqueGatherer:
    """Unknown fields of a message, gathered over its deltas."""

    fields: dict[str, object] = attrs.field(factory=dict, init=False)

    def feed(self, holder: Fields) -> None:
        """Takes what a delta or message has beyond the known; later values replace, lists grow."""
        for name, value in holder.items():
            if name in _KNOWN or value is None:
                continue
            held = self.fields.get(name)
            if isinstance(held, list) and isinstance(value, list):
                _grow(held, value)
            elif isinstance(held, dict) and isinstance(value, dict):
                held.update(value)
            else:
                self.fields[name] = list(value) if isinstance(value, list) else value


def _grow(held: list[object], more: list[object]) -> None:
    """Appends parts; one that goes on with the last is joined to it."""
    for part in more:
        last = held[-1] if held else None
        if isinstance(part, dict) and isinstance(last, dict) and _goes_on(last, part):
            held[-1] = _joined(last, part)
        else:
            held.append(part)


def _goes_on(last: Mapping[str, object], part: Mapping[str, object]) -> bool:
    same = all(last.get(name) == part.get(name) for name in ("type", "index"))
    return same and "index" in part and part.get("id") in (None, last.get("id"))


def _joined(last: Mapping[str, object], part: Mapping[str, object]) -> dict[str, object]:
    joined = dict(last)
    for name, value in part.items():
        held = joined.get(name)
        if name in _APPENDED and isinstance(held, str) and isinstance(value, str):
            joined[name] = held + value
        elif value is not None:
            joined[name] = value
    return joined


def opaque_of(
    *,
    model: str,
    message: Fields,
    reasoning: tuple[str | None, str],
    gathered: Sequence[GatheredCall],
    judged: Sequence[ToolCall],
) -> dict[str, object]:
    """The opaque part of one reply: plain JSON, bounded, without lone surrogates."""
    keep = _Keeper()
    calls: list[dict[str, object]] = [
        {
            "id": call.provider_id,
            "name": call.name,
            "fields": keep.fields(raw.extra),
            "function": keep.fields(raw.extra_function),
        }
        for raw, call in zip(gathered, judged, strict=True)
    ]
    opaque: dict[str, object] = {"model": model, "message": keep.fields(message), "calls": calls}
    field, text = reasoning
    if text:
        opaque["reasoning"] = {"field": field, "text": text[:MAX_REASONING]}
    return opaque


@attrs.define(eq=False)
class _Keeper:
    """Keeps unknown fields as long as there is room for them."""

    room: int = MAX_FIELDS

    def fields(self, held: Fields) -> object:
        """`held` as it came; nothing of it if it is too long or too deep to be stored."""
        if not held:
            return {}
        if _depth(held) <= MAX_DEPTH:
            text = whole_text(json.dumps(held, ensure_ascii=False))
            self.room -= len(text)
            if self.room >= 0:
                return json.loads(text, parse_constant=_no_number)
        logger.warning(
            "unknown fields are too long or too deep to keep: %s",
            ", ".join(held)[:200],
            extra={"action": "opaque_dropped"},
        )
        return {}


def _depth(value: object, most: int = MAX_DEPTH) -> int:
    """How deep a value is; it is not looked at further than needed."""
    if most < 0 or not isinstance(value, (dict, list)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max((_depth(each, most - 1) for each in inner), default=0)


def _no_number(_: str) -> None:
    """NaN and its like are no JSON."""
