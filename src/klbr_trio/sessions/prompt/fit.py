"""Making a prompt fit: single messages are cut, then the oldest steps are left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.models import Assistant, Message, PastCall, System, ToolResult, User
from klbr_trio.sessions.prompt import words
from klbr_trio.sessions.prompt.blocks import Block, render
from klbr_trio.sessions.prompt.causes import owed_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klbr_trio.sessions.prompt.window import Window

_SINGLE_SHARE: Final = 4
"""Over budget, no single message takes more than this part of it."""

_NEEDED_SHARE: Final = 3
"""Over budget, the reasons to run take no more than this part of it; then the newest step no
more than half of the rest."""

_MARK_CHARS: Final = 60
_SHORTEST_CUT: Final = 80
_OVERHEAD_CHARS: Final = 30
"""What a message costs besides its text."""


@attrs.frozen
class Persona:
    """Who speaks: the release's instructions and the soul."""

    instructions: str
    soul: str

    def text(self) -> str:
        """The system message."""
        parts = (self.instructions.strip(), self.soul.strip())
        return "\n\n".join(filter(None, parts)) or "You are an agent."


def build(
    window: Window, persona: Persona, *, budget_chars: int, attempt_id: str
) -> tuple[Message, ...]:
    """The messages of a request; a pure function of its arguments.

    Args:
        window: The part of the log to show.
        persona: The system message.
        budget_chars: How long all messages together may be. The system message is never
            cut, and leaves the others at least a quarter of it.
        attempt_id: The open attempt; its reasons to run are always shown, and the newest
            step.
    """
    system = System(persona.text())
    room = max(budget_chars - _size(system), budget_chars // _SINGLE_SHARE)
    head: list[Message] = [] if window.summary is None else [User(words.summary(*window.summary))]
    gap: list[Message] = [User(words.LEFT_OUT)] if window.left_out else []
    blocks = render(window.events, window.inputs)
    if length([*head, *gap]) + sum(map(_block_size, blocks)) > room:
        head = [_cut_message(message, room // _SINGLE_SHARE) for message in head]
        gap = [User(words.LEFT_OUT)]
        owed = owed_items(window.events, attempt_id)
        blocks = _fitted(
            blocks,
            room - length([*head, *gap]),
            lambda block: block.is_needed(attempt_id, owed),
        )
    shown = (message for block in blocks for message in block.messages)
    return tuple(_merged([system, *head, *gap, *shown]))


def length(messages: Iterable[Message]) -> int:
    """How long these messages are together, as budgets count it."""
    return sum(map(_size, messages))


def _fitted(blocks: Sequence[Block], room: int, is_needed: Callable[[Block], bool]) -> list[Block]:
    """The blocks that must be shown and the newest others, cut to fit."""
    needed = [index for index, block in enumerate(blocks) if is_needed(block)]
    last = len(blocks) - 1
    kept = _cut_together(blocks, needed, room // _NEEDED_SHARE)
    room -= sum(map(_block_size, kept.values()))
    if last not in kept:
        kept |= _cut_together(blocks, [last], room // 2)
        room -= _block_size(kept[last])
    single = room // _SINGLE_SHARE
    for index in range(last, -1, -1):
        if index in kept:
            continue
        block = _cut_block(blocks[index], single)
        room -= _block_size(block)
        if room < 0:
            break
        kept[index] = block
    return [kept[index] for index in sorted(kept)]


def _cut_together(blocks: Sequence[Block], indexes: Sequence[int], room: int) -> dict[int, Block]:
    """These blocks, with all their messages cut to one length so that together they fit."""
    sizes = [_size(message) for index in indexes for message in blocks[index].messages]
    limit = _fair_share(sizes, room)
    return {index: _cut_block(blocks[index], limit) for index in indexes}


def _fair_share(sizes: Sequence[int], room: int) -> int:
    """The longest length to which all can be cut so that together they take at most `room`."""
    for index, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - index)
        if size > share:
            return max(share, _SHORTEST_CUT)
        room -= size
    return max(sizes, default=0)


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
    limit = max(limit - _OVERHEAD_CHARS, _SHORTEST_CUT)
    match message:
        case Assistant():
            return _cut_reply(message, limit)
        case ToolResult(provider_id, text):
            return ToolResult(provider_id, _cut(text, limit))
        case User(text):
            return User(_cut(text, limit))
        case System():
            return message


def _cut_reply(reply: Assistant, limit: int) -> Assistant:
    """The reply with its texts cut to one length; what is opaque is whole or not there."""
    opaque = reply.opaque if _opaque_size(reply.opaque) <= limit // 2 else None
    room = limit - _opaque_size(opaque)
    sizes = [len(reply.text), *(len(_asked(call)) for call in reply.calls)]
    each = _fair_share(sizes, room)
    calls = tuple(
        PastCall(
            call.provider_id,
            None if call.code is None else _cut(call.code, each),
            None if call.raw is None else _cut(call.raw, each),
        )
        for call in reply.calls
    )
    return Assistant(_cut(reply.text, each), calls, opaque)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = max(1, (limit - _MARK_CHARS) // 2)
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _block_size(block: Block) -> int:
    return sum(map(_size, block.messages))


def _size(message: Message) -> int:
    match message:
        case Assistant(text, calls, opaque):
            asked = sum(len(_asked(call)) + _OVERHEAD_CHARS for call in calls)
            return len(text) + asked + _opaque_size(opaque) + _OVERHEAD_CHARS
        case System(text) | User(text) | ToolResult(_, text):
            return len(text) + _OVERHEAD_CHARS


def _asked(call: PastCall) -> str:
    return call.raw or "" if call.code is None else call.code


def _opaque_size(opaque: Mapping[str, object] | None) -> int:
    """What goes back of it is not known here; this is the most."""
    return len(json.dumps(opaque, ensure_ascii=False)) if opaque else 0
