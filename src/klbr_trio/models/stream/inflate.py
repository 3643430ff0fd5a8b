"""Compressed bodies, although none was asked for: inflated piece by piece and within a bound.

Compression delays words, so requests ask for identity; some proxies compress all the same. A small
body can inflate to gigabytes: pieces are bounded, and so is the whole.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE: Final = 64 * 1024
MAX_INFLATED: Final = 32 * 1024 * 1024  # inflated; an honest answer of 100,000 tokens has less
_WINDOWS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class InflateError(ValueError):
    """The body can't be inflated: it is broken, or encoded in a way that was not asked for."""


class TooMuch(InflateError):
    """The body inflates to more than `MAX_INFLATED`."""


@attrs.define(eq=False)
class Inflater:
    """Inflates one body."""

    encoding: str
    _inflate: zlib._Decompress | None = attrs.field(init=False)
    _total: int = attrs.field(default=0, init=False)

    @_inflate.default
    def _new(self) -> zlib._Decompress | None:
        name = self.encoding.strip().lower()
        if name in ("", "identity"):
            return None
        if name not in _WINDOWS:
            raise InflateError(f"the body is encoded as {name!r}, although identity was asked for")
        return zlib.decompressobj(_WINDOWS[name])

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that these bytes inflate to, each at most `PIECE` long.

        Raises:
            InflateError: The data is broken.
            TooMuch: It inflates to more than `MAX_INFLATED`.
        """
        if self._inflate is None:
            yield data
            return
        piece = b""
        while data or len(piece) == PIECE:  # a full piece: zlib may hold more
            try:
                piece = self._inflate.decompress(data, PIECE)
            except zlib.error as error:
                raise InflateError(f"the compressed body is broken: {error}") from error
            self._total += len(piece)
            if self._total > MAX_INFLATED:
                raise TooMuch(f"the compressed body is over {MAX_INFLATED // 2**20} MiB")
            if piece:
                yield piece
            data = self._inflate.unconsumed_tail
