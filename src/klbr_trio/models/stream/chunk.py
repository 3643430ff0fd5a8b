"""Events to chunks: what one event says, in one shape whatever shape it came in.

Shapes served here: heartbeats as data, several JSON values in one event, `choices` that is empty,
null or missing, a second choice, `delta` that is null, missing or replaced by `message`,
`tool_calls` that is null, empty or a lone object, the older `function_call`, a finish reason that is
empty or the text `null`, and errors wherever they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from klbr_trio.models.json_text import read_json

if TYPE_CHECKING:
    from klbr_trio.models.stream.sse import Event

DONE: Final = "[DONE]"
_FINE: Final = frozenset({"", "0", "200", "true", "ok", "success"})
Fields: TypeAlias = Mapping[str, object]


@attrs.frozen
class Done:
    """The answer's end, said so."""


@attrs.frozen
class Chunk:
    """A piece of the answer."""

    delta: Fields
    message: Fields
    """A whole message, where one came; a copy of what the deltas brought, if they brought it."""

    finish: str | None
    usage: Fields | None

    @property
    def says_something(self) -> bool:
        """Whether the model moved: more than a role, an empty text or a count."""
        for name, value in self.delta.items():
            if value and name != "role":
                return True
        return bool(self.message) or self.finish is not None


@attrs.frozen
class Broken:
    """An error that came in place of an answer, or in the middle of it."""

    body: object


@attrs.frozen
class Garbage:
    """An event that can't be read."""

    text: str
    ended: bool
    framed: bool


Item: TypeAlias = Done | Chunk | Broken | Garbage


def read_event(event: Event) -> list[Item]:
    """What an event says; nothing for a heartbeat."""
    text = "\n".join(event.lines)
    if event.name == "error":
        return [Broken(_value_or_text(text))]
    try:
        return _items(read_json(text))
    except ValueError:
        return _line_by_line(event, text)


def _line_by_line(event: Event, text: str) -> list[Item]:
    """JSON values on `data` lines that no blank line parts; only if each can be read."""
    items: list[Item] = []
    try:
        for line in event.lines:
            if line.strip() == DONE:
                return [*items, Done()]
            if line.strip():
                items += _items(read_json(line))
    except ValueError:
        return [Garbage(text, event.ended, event.framed)]
    return items


def _value_or_text(text: str) -> object:
    try:
        return read_json(text)
    except ValueError:
        return text


def _items(value: object) -> list[Item]:
    if isinstance(value, dict):
        item = _item(value)
        return [item] if item is not None else []
    if isinstance(value, list):
        return [item for each in value if isinstance(each, dict) for item in _items(each)]
    return [Done()] if value == DONE else []


def _item(body: Fields) -> Item | None:
    if is_error(body):
        return Broken(body)
    choice = _first_choice(body.get("choices"))
    if choice.get("error") and isinstance(choice["error"], (str, dict, list)):
        return Broken(choice)
    usage = _usage(body, choice)
    if not choice and usage is None:
        return None
    return Chunk(_delta(choice), fields(choice.get("message")), _finish(choice), usage)


def is_error(body: Fields) -> bool:
    """Whether an object is an error: by its `error`, or without choices by what errors look like."""
    error = body.get("error")
    if error and isinstance(error, (str, dict, list)):
        return True
    base = body.get("base_resp")
    if isinstance(base, dict) and base.get("status_code") not in (None, 0, "0", ""):
        return True
    if body.get("choices"):
        return False
    if body.get("object") == "error" or body.get("type") == "error":
        return True
    if body.get("detail") and "choices" not in body and "object" not in body:
        return True
    says = isinstance(body.get("message") or body.get("msg"), str)
    return says and (_is_bad(body.get("code")) or _is_bad(body.get("status")))


def _is_bad(code: object) -> bool:
    """Whether a code or status beside a message stands for a failure."""
    return code not in (None, False, 0, 200) and str(code).lower() not in _FINE


def _first_choice(choices: object) -> Fields:
    """The choice with index 0; one without an index counts as that."""
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict) and choice.get("index") in (None, 0, "0"):
                return choice
    return {}


def _delta(choice: Fields) -> Fields:
    delta = choice.get("delta")
    return {"content": delta} if isinstance(delta, str) else fields(delta)


def _finish(choice: Fields) -> str | None:
    finish = choice.get("finish_reason")
    if not isinstance(finish, str) or finish.strip().lower() in ("", "null", "none"):
        return None
    return finish.strip()


def _usage(body: Fields, choice: Fields) -> Fields | None:
    if not ("usage" in body or "usage" in choice or "x_groq" in body):
        return None
    for holder in (body, choice, fields(body.get("x_groq"))):
        usage = holder.get("usage")
        if usage and isinstance(usage, dict):
            return usage
    return None


def fields(value: object) -> Fields:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def call_fragments(holder: Fields) -> list[Fields]:
    """The call fragments of a delta or message."""
    calls = holder.get("tool_calls")
    if not calls and "function_call" not in holder:
        return []
    if isinstance(calls, dict):
        calls = [calls]
    found: list[Fields]
    found = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if not found and isinstance(holder.get("function_call"), dict):
        found = [{"function": holder["function_call"]}]
    return found
