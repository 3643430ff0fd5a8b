"""What the strictest providers refuse in a request, all of it at once.

Each rule is one that some provider enforces; a history that breaks one is refused for ever, since
every later request repeats it. `strict` makes a scripted answer as strict.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from fakes.provider import refuse

if TYPE_CHECKING:
    from fakes.provider import Request, Scripted

_Json: TypeAlias = dict[str, Any]
Rule: TypeAlias = Callable[[_Json], Iterator[str]]


def objections(body: object, *more: Rule) -> list[str]:
    """Why a strict provider would refuse this request; empty if none would."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        return ["the request has no messages"]
    if _has_lone_surrogate(body):
        return ["the request holds a lone surrogate"]
    rules: tuple[Rule, ...] = (_roles, _contents, _calls, _pairs, *more)
    return [words for rule in rules for words in rule(body)]


def strict(answer: Scripted, *more: Rule) -> Callable[[Request], Scripted]:
    """The answer, or a refusal that says what is wrong with the request."""

    def judge(request: Request) -> Scripted:
        found = objections(request.body, *more)
        if not found:
            return answer
        error = {"message": "; ".join(found), "type": "invalid_request_error", "code": None}
        return refuse(400, {"error": error})

    return judge


def wants_extra_content(body: _Json) -> Iterator[str]:
    """Every call carries back the signature that it came with."""
    for call in _all_calls(body):
        if not call.get("extra_content"):
            yield "a call lacks its signature: extra_content was not sent back"


def wants_reasoning(body: _Json) -> Iterator[str]:
    """Every message that calls carries back the reasoning that it came with."""
    for message in _assistants(body):
        if message.get("tool_calls") and not message.get("reasoning_content"):
            yield "reasoning_content was not sent back"


def refuses_reasoning(body: _Json) -> Iterator[str]:
    """No message carries reasoning."""
    for message in _assistants(body):
        if {"reasoning_content", "reasoning"} & set(message):
            yield "unknown field: reasoning"


def refuses_stream_options(body: _Json) -> Iterator[str]:
    """The request does not ask for usage."""
    if "stream_options" in body:
        yield "unknown field: stream_options"


def _roles(body: _Json) -> Iterator[str]:
    """One system message, first; user and assistant take turns; the last word is not the model's."""
    roles = [message.get("role") for message in body["messages"]]
    if "system" in roles[1:]:
        yield "a system message that is not the first"
    spoken = [role for role in roles if role not in ("system", "tool")]
    if not spoken or spoken[0] != "user":
        yield "the first message is not the user's"
    if roles and roles[-1] == "assistant":
        yield "the last message is the assistant's"
    for earlier, later in itertools.pairwise(roles):
        if earlier == later == "user":
            yield "two user messages in a row"


def _contents(body: _Json) -> Iterator[str]:
    for message in body["messages"]:
        content = message.get("content")
        has_calls = bool(message.get("tool_calls"))
        if not isinstance(content, str) and not (content is None and has_calls):
            yield f"the content of a {message.get('role')} message is no text"
        elif message.get("role") in ("user", "assistant") and not content and not has_calls:
            yield f"an empty {message.get('role')} message"
        if "tool_calls" in message and not has_calls:
            yield "an empty list of calls"


def _calls(body: _Json) -> Iterator[str]:
    for call in _all_calls(body):
        function = call.get("function")
        if call.get("type") != "function" or not isinstance(function, dict):
            yield "a call that is no function call"
            continue
        name = function.get("name")
        if not isinstance(name, str) or not name or not name.replace("-", "_").isidentifier():
            yield f"a call without a proper name: {name!r}"
        if not isinstance(_read(function.get("arguments")), dict):
            yield "a call whose arguments are not one JSON object"


def _pairs(body: _Json) -> Iterator[str]:
    """Every call is answered right behind its message, exactly once, and nothing else is."""
    waiting: list[object] = []
    for message in body["messages"]:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in waiting:
                yield "a result without its call"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield f"calls without a result: {waiting}"
        waiting = [call.get("id") for call in message.get("tool_calls") or []]
        if any(not isinstance(each, str) or not each for each in waiting):
            yield "a call without an id"
        if len(set(map(str, waiting))) != len(waiting):
            yield "two calls of one message with the same id"
    if waiting:
        yield f"calls without a result: {waiting}"


def _assistants(body: _Json) -> Iterator[_Json]:
    return (message for message in body["messages"] if message.get("role") == "assistant")


def _all_calls(body: _Json) -> Iterator[_Json]:
    return (call for message in _assistants(body) for call in message.get("tool_calls") or [])


def _read(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _has_lone_surrogate(body: object) -> bool:
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
