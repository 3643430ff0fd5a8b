"""Messages to the body of a request, such as the strictest provider accepts it.

- One system message, first; user messages that follow each other are joined, since many chat
  templates want roles to alternate.
- Every call has a name, an id, arguments that are one JSON object, and exactly one result.
- Opaque fields go back as they came, to the model that they came from, where it wants them.
- No lone surrogates anywhere.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, TypeAlias

from klbr_trio.models.config import AS_IT_CAME, ModelConfig
from klbr_trio.models.messages import (
    Assistant,
    Message,
    ModelRequest,
    PastCall,
    System,
    ToolResult,
    User,
)
from klbr_trio.models.reply import PYTHON
from klbr_trio.models.request.names import sendable_name
from klbr_trio.models.surrogates import whole_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_Json: TypeAlias = dict[str, object]
UNREADABLE_CODE: Final = "# the call that stood here could not be read; nothing was run"
_NO_RESULT: Final = "(no result of this call was recorded)"
_SAID_NOTHING: Final = "(nothing)"


def request_fields(
    request: ModelRequest, config: ModelConfig, *, dropped: frozenset[str] = frozenset()
) -> _Json:
    """The body of a request as JSON values.

    Args:
        request: What is asked.
        config: The model that is asked.
        dropped: Optional fields that this provider has refused.
    """
    body: _Json = {"model": config.model, "messages": _messages(request.messages, config, dropped)}
    if request.tools:
        body["tools"] = [_tool(config.tool_name, request.tool_description)]
    body["stream"] = True
    if config.stream_options and "stream_options" not in dropped:
        body["stream_options"] = {"include_usage": True}
    body.update(config.extra_body)
    return body


def encode(body: Mapping[str, object]) -> bytes:
    """The body's bytes; lone surrogates, wherever they hide, become U+FFFD."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return whole_text(text).encode()


def _tool(name: str, description: str) -> _Json:
    code = {"type": "string", "description": "Python source code."}
    parameters = {"type": "object", "properties": {"code": code}, "required": ["code"]}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _messages(
    messages: Sequence[Message], config: ModelConfig, dropped: frozenset[str]
) -> list[_Json]:
    sent: list[_Json] = []
    results = _Results(messages)
    for position, message in enumerate(messages):
        match message:
            case System(text) if not any(each["role"] != "system" for each in sent):
                _say(sent, "system", text)
            case System(text) | User(text):
                _say(sent, "user", text)
            case Assistant():
                sent.append(_assistant(message, config, dropped))
                sent += results.of(position, message)
            case ToolResult():
                pass  # goes with its call; one without a call in sight is left out
    return sent


def _say(sent: list[_Json], role: str, text: str) -> None:
    if sent and sent[-1]["role"] == role:
        sent[-1]["content"] = f"{sent[-1]['content']}\n\n{text}"
    else:
        sent.append({"role": role, "content": text})


class _Results:
    """The results between one assistant message and the next, by id."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._by_owner: dict[int, dict[str, str]] = {}
        owner = -1
        for position, message in enumerate(messages):
            if isinstance(message, Assistant):
                owner = position
            elif isinstance(message, ToolResult):
                self._by_owner.setdefault(owner, {}).setdefault(message.provider_id, message.text)

    def of(self, position: int, message: Assistant) -> list[_Json]:
        """A tool message for every call of that message."""
        texts = self._by_owner.get(position, {})
        return [
            {
                "role": "tool",
                "tool_call_id": call.provider_id,
                "content": texts.get(call.provider_id, _NO_RESULT),
            }
            for call in message.calls
        ]


def _assistant(message: Assistant, config: ModelConfig, dropped: frozenset[str]) -> _Json:
    opaque = message.opaque or {}
    is_own = opaque.get("model") in (None, config.model)
    opaque = opaque if is_own else {}
    text = message.text if message.text or message.calls else _SAID_NOTHING
    sent: _Json = {"role": "assistant", "content": text}
    sent.update(_message_fields(opaque, config, dropped))
    if message.calls:
        held = _held_calls(opaque, message.calls)
        sent["tool_calls"] = [
            _call(call, fields, config, dropped)
            for call, fields in zip(message.calls, held, strict=True)
        ]
    return sent


def _message_fields(
    opaque: Mapping[str, object], config: ModelConfig, dropped: frozenset[str]
) -> _Json:
    held = _object(opaque.get("message"))
    sent = {name: held[name] for name in config.echo_fields if name in held}
    reasoning = _object(opaque.get("reasoning"))
    field = config.reasoning_field
    if field == AS_IT_CAME:
        came_as = reasoning.get("field")
        field = came_as if isinstance(came_as, str) else None
    if field and isinstance(reasoning.get("text"), str):
        sent[field] = reasoning["text"]
    return {name: value for name, value in sent.items() if name not in dropped}


def _held_calls(opaque: Mapping[str, object], calls: Sequence[PastCall]) -> list[_Json]:
    """What is held for each call: by position if there are as many, else by id."""
    held = opaque.get("calls")
    objects = [_object(each) for each in held] if isinstance(held, list) else []
    if len(objects) == len(calls):
        return objects
    by_id = {each.get("id"): each for each in reversed(objects)}
    return [by_id.get(call.provider_id, {}) for call in calls]


def _call(
    call: PastCall, held: Mapping[str, object], config: ModelConfig, dropped: frozenset[str]
) -> _Json:
    name = held.get("name")
    is_tool = not isinstance(name, str) or name in ("", PYTHON)
    function: _Json = dict(_object(held.get("function")))
    function["name"] = config.tool_name if is_tool else sendable_name(str(name))
    function["arguments"] = _arguments(call)
    sent: _Json = {
        field: value for field, value in _object(held.get("fields")).items() if field not in dropped
    }
    return {"id": call.provider_id, "type": "function", "function": function, **sent}


def _arguments(call: PastCall) -> str:
    """One JSON object, always: also for a call that could not run."""
    if call.code is None and call.raw is not None:
        try:
            if isinstance(json.loads(call.raw), dict):
                return call.raw
        except (ValueError, RecursionError):
            pass
    code = UNREADABLE_CODE if call.code is None else call.code
    return json.dumps({"code": code}, ensure_ascii=False)


def _object(value: object) -> _Json:
    return value if isinstance(value, dict) else {}
