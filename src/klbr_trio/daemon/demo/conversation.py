"""What a model is sent, read back: who asks for what, and what became of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEADER: Final = re.compile(r"^\[input from (?P<source>.*?), [^\],]*\]\n", re.MULTILINE)
_NOTE: Final = re.compile(r"^\[note: .*?\]$", re.MULTILINE)
_REASON: Final = re.compile(r"Your reason: (?P<reason>.*?)\.?\]$")
_BROKEN_OFF: Final = ("may have run, in part or whole", "not run: ")
_SENT: Final = re.compile(r"known: it sent (?P<texts>.*)")
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


@attrs.frozen
class Asked:
    """Somebody sent a message."""

    text: str


@attrs.frozen
class Woken:
    """A deadline came; `reason` is what the agent had noted."""

    reason: str


Owed: TypeAlias = Asked | Woken


@attrs.define
class Conversation:
    """What is still to be answered.

    Attributes:
        owed: What nobody has been answered yet, oldest first.
        was_interrupted: Whether an answer to it was begun and broken off.
        errors: The errors of the cells that tried to answer it.
    """

    owed: list[Owed] = attrs.field(factory=list)
    was_interrupted: bool = False
    errors: list[str] = attrs.field(factory=list)

    def ask(self, owed: Owed) -> None:
        """One more thing to answer."""
        self.owed.append(owed)

    def take_result(self, text: str) -> None:
        """A cell has ended: it answered everything, or a part, or failed."""
        if "[error]" not in text:
            self._settle(len(self.owed))
        elif any(mark in text for mark in _BROKEN_OFF):
            self.was_interrupted = True
            said = _SENT.search(text)
            self._settle(len(_QUOTED.findall(said["texts"])) if said else 0)
        else:
            self.errors.append(text)

    def _settle(self, count: int) -> None:
        del self.owed[:count]
        if not self.owed:
            self.was_interrupted = False
            self.errors.clear()


def read(messages: Sequence[Mapping[str, Any]]) -> Conversation:
    """The conversation that these chat messages tell."""
    conversation = Conversation()
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) else ""
        match message.get("role"):
            case "user":
                for owed in _owed(text):
                    conversation.ask(owed)
            case "tool":
                conversation.take_result(text)
            case _:
                pass  # the instructions, and what this provider has said itself
    return conversation


def _owed(text: str) -> list[Owed]:
    """The inputs and wakes in one user message, in order."""
    found: list[tuple[int, Owed]] = []
    headers = list(_HEADER.finditer(text))
    ends = [*(header.start() for header in headers[1:]), len(text)]
    for header, end in zip(headers, ends, strict=False):
        body = text[header.end() : end]
        found.append((header.start(), Asked(_NOTE.sub("", body).strip())))
    for note in _NOTE.finditer(text):
        if "you are awake" in note[0]:
            reason = _REASON.search(note[0])
            found.append((note.start(), Woken(reason["reason"] if reason else "")))
    return [owed for _, owed in sorted(found, key=lambda each: each[0])]
