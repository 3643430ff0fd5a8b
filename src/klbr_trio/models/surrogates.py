r"""Text without lone surrogates.

JSON can spell half a character (`\ud83d`), and a provider that cuts its text into deltas by
UTF-16 units sends the two halves apart. UTF-8 can't carry a half: stored as it is, it would break
every later request that repeats the history. Halves that meet are joined, the others become U+FFFD.
"""

from __future__ import annotations


def whole_text(text: str) -> str:
    """`text` with its surrogates paired or replaced."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class TextJoin:
    """Joins a text from its pieces; holds a first half back until its second comes."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        """What may be shown after this piece."""
        if not self._half and piece.isascii():
            return piece
        piece = self._half + piece
        self._half = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            self._half, piece = piece[-1], piece[:-1]
        return whole_text(piece)

    def end(self) -> str:
        """What is left when no more comes."""
        rest, self._half = self._half, ""
        return whole_text(rest)
