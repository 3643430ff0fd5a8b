"""Making a prompt fit: single messages are cut, then the oldest steps are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.models import Assistant, PastCall, System, ToolResult, User
from klbr_trio.sessions.prompt import words
from klbr_trio.sessions.prompt.blocks import Block, render

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klbr_trio.models import Message
    from klbr_trio.sessions.prompt.window import Window

_SINGLE_SHARE: Final = 4
"""No single message takes more than this part of the budget."""

_MARK_CHARS: Final = 60


@attrs.frozen
class Persona:
    """Who speaks: the release's instructions and the soul."""

    instructions: str
    soul: str

    def text(self) -> str:
        """The system message."""
        return f"{self.instructions.rstrip()}\n\n{self.soul}".strip() or "You are an agent."


def build(
    window: Window, persona: Persona, *, budget_chars: int, attempt_id: str
) -> tuple[Message, ...]:
    """The messages of a request; a pure function of its arguments.

    Args:
        window: The part of the log to show.
        persona: The system message.
        budget_chars: How long all messages together may be; the system message, the
            summary and the open attempt's own reasons are kept even beyond it.
        attempt_id: The open attempt.
    """
    single = max(400, budget_chars // _SINGLE_SHARE)
    blocks = [_cut_block(block, single) for block in render(window.events, window.inputs)]
    head: list[Message] = [System(persona.text())]
    if window.summary is not None:
        head.append(User(words.summary(window.summary[0], _cut(window.summary[1], single))))
    room = budget_chars - sum(_size(message) for message in head)
    kept, left_out = _newest(blocks, room, attempt_id)
    left_out += window.left_out
    if left_out:
        head.append(User(words.left_out(left_out)))
    return tuple(_merged([*head, *(message for block in kept for message in block.messages)]))


def _newest(blocks: list[Block], room: int, attempt_id: str) -> tuple[list[Block], int]:
    """The newest blocks that fit, with the open attempt's reasons; and how many do not."""
    kept: list[Block] = []
    left_out = 0
    full = False
    for index, block in enumerate(reversed(blocks)):
        size = sum(_size(message) for message in block.messages)
        room -= size
        full = full or (room < 0 and index > 0)
        if full and block.attempt_id != attempt_id:
            left_out += 1
        else:
            kept.append(block)
    return kept[::-1], left_out


def _merged(messages: Iterable[Message]) -> Iterable[Message]:
    """Words to the model in a row are one message: some providers refuse two."""
    held: User | None = None
    for message in messages:
        if isinstance(message, User):
            held = message if held is None else User(f"{held.text}\n\n{message.text}")
            continue
        if held is not None:
            yield held
            held = None
        yield message
    if held is not None:
        yield held


def _cut_block(block: Block, limit: int) -> Block:
    if all(_size(message) <= limit for message in block.messages):
        return block
    return attrs.evolve(block, messages=tuple(_cut_message(one, limit) for one in block.messages))


def _cut_message(message: Message, limit: int) -> Message:
    match message:
        case Assistant(text, calls, opaque):
            cut_calls = tuple(
                PastCall(
                    call.provider_id,
                    None if call.code is None else _cut(call.code, limit),
                    None if call.raw is None else _cut(call.raw, limit),
                )
                for call in calls
            )
            return Assistant(_cut(text, limit), cut_calls, opaque)
        case ToolResult(provider_id, text):
            return ToolResult(provider_id, _cut(text, limit))
        case User(text):
            return User(_cut(text, limit))
        case System():
            return message


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = max(1, (limit - _MARK_CHARS) // 2)
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _size(message: Message) -> int:
    match message:
        case Assistant(text, calls, _):
            return len(text) + sum(len(call.code or call.raw or "") for call in calls)
        case System(text) | User(text) | ToolResult(_, text):
            return len(text)
