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

_BLOCK_SHARE: Final = 3
"""Over budget, what must be shown (the reasons to run, the newest step) takes no more than
this part of it each."""

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
    summary = None if window.summary is None else User(words.summary(*window.summary))
    blocks = render(window.events, window.inputs)
    head: list[Message] = [system]
    left_out = window.left_out
    if sum(map(_block_size, blocks)) + (_size(summary) if summary else 0) > room:
        if summary is not None:
            summary = User(_cut(summary.text, room // _SINGLE_SHARE))
            room -= _size(summary)
        owed = owed_items(window.events, attempt_id)
        blocks, dropped = _fitted(blocks, room, lambda block: block.is_needed(attempt_id, owed))
        left_out += dropped
    if summary is not None:
        head.append(summary)
    if left_out:
        head.append(User(words.LEFT_OUT))
    return tuple(_merged([*head, *(message for block in blocks for message in block.messages)]))


def length(messages: Iterable[Message]) -> int:
    """How long these messages are together, as budgets count it."""
    return sum(map(_size, messages))


def _fitted(
    blocks: Sequence[Block], room: int, is_needed: Callable[[Block], bool]
) -> tuple[list[Block], int]:
    """The blocks that must be shown and the newest others, cut to fit; and how many do not."""
    room -= len(words.LEFT_OUT) + _OVERHEAD_CHARS
    needed = [index for index, block in enumerate(blocks) if is_needed(block)]
    last = len(blocks) - 1
    kept = _cut_together(blocks, needed, room // _BLOCK_SHARE)
    if last not in kept:
        kept |= _cut_together(blocks, [last], room // _BLOCK_SHARE)
    room -= sum(map(_block_size, kept.values()))
    for index in range(last, -1, -1):
        if index in kept:
            continue
        block = _cut_block(blocks[index], room // _SINGLE_SHARE)
        room -= _block_size(block)
        if room < 0:
            break
        kept[index] = block
    return [kept[index] for index in sorted(kept)], len(blocks) - len(kept)


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
