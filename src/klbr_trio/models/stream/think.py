"""A think block at the very start of an answer is reasoning; anywhere else the tag is text."""

from __future__ import annotations

from typing import Final

import attrs

_TAGS: Final = {"<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>"}


@attrs.define(eq=False)
class ThinkSplitter:
    """Parts visible text from a leading think block; holds back only what may still be a tag."""

    _held: str = attrs.field(default="", init=False)
    _closing: str = attrs.field(default="", init=False)
    _at_start: bool = attrs.field(default=True, init=False)

    def feed(self, piece: str) -> tuple[str, str]:
        """The (text, reasoning) that this piece makes sure."""
        if self._at_start:
            return self._start(self._held + piece)
        if self._closing:
            return self._inside(self._held + piece)
        return piece, ""

    def end(self) -> tuple[str, str]:
        """What was held back when no more comes."""
        held, self._held = self._held, ""
        return ("", held) if self._closing else (held, "")

    def _start(self, piece: str) -> tuple[str, str]:
        begun = piece.lstrip()
        for opening, closing in _TAGS.items():
            if begun.startswith(opening):
                self._at_start, self._closing = False, closing
                return self._inside(begun[len(opening) :])
        if any(opening.startswith(begun) for opening in _TAGS):
            self._held = piece
            return "", ""
        self._at_start, self._held = False, ""
        return piece, ""

    def _inside(self, piece: str) -> tuple[str, str]:
        reasoning, found, rest = piece.partition(self._closing)
        if found:
            self._closing = self._held = ""
            return rest, reasoning
        keep = _overlap(piece, self._closing)
        self._held = piece[len(piece) - keep :]
        return "", piece[: len(piece) - keep]


def _overlap(text: str, tag: str) -> int:
    """How much of the end of `text` may be the beginning of `tag`."""
    for size in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0
