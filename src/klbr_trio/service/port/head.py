"""The head of an HTTP/1.1 request, read from bytes and nothing else.

Everything in this file is sans-IO: bytes in, a `Head` or a `HeadRefused` out. What
leaves here as a `Head` is plain: visible ASCII, an origin-form target, each header
that must be single at most once. Whoever comes after never sees a stranger's bytes.
"""

from __future__ import annotations

from typing import Final

import attrs
import h11

from klbr_trio.errors import KlbrError

HEAD_BYTES: Final = 16 * 1024  # a browser's cookies for localhost fit; a flood does not
HEADERS: Final = 64

_VISIBLE: Final = frozenset(range(0x20, 0x7F)) | {0x09}
_SINGLE: Final = frozenset(
    {"content-length", "host", "sec-websocket-key", "sec-websocket-version", "upgrade"}
)


class HeadRefused(KlbrError):
    """The bytes are no request that this service reads; the text is safe to send back."""


@attrs.frozen(kw_only=True)
class Head:
    """One request's head, as far as it was checked without knowing what is served.

    Attributes:
        path: The target up to its query. The query itself is forgotten here, so that
            nothing later can log it or take a secret from it.
        headers: Names in lower case, values as sent, in the order sent.
    """

    method: str
    path: str
    http_version: str
    headers: tuple[tuple[str, str], ...]

    def values(self, name: str) -> tuple[str, ...]:
        """Every value of the header `name`, which is given in lower case."""
        return tuple(value for header, value in self.headers if header == name)

    def tokens(self, name: str) -> tuple[str, ...]:
        """The comma-separated elements of all lines of the header `name`."""
        elements = (part.strip() for value in self.values(name) for part in value.split(","))
        return tuple(element for element in elements if element)


def _new_parser() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)


@attrs.define(eq=False)
class HeadReader:
    """Takes a connection's first bytes until they are one whole head."""

    _parser: h11.Connection = attrs.field(factory=_new_parser, init=False)
    _fed: int = attrs.field(default=0, init=False)

    @property
    def room(self) -> int:
        """How many bytes `feed` may be given next; at least 1 while there is no head."""
        return HEAD_BYTES - self._fed

    @property
    def rest(self) -> bytes:
        """What was fed behind the head; it belongs to whatever is spoken next."""
        return self._parser.trailing_data[0]

    def feed(self, data: bytes) -> Head | None:
        """The head, once `data` completes it.

        Raises:
            HeadRefused: The head is malformed, too long, or could be read in two ways.
        """
        assert 0 < len(data) <= self.room
        self._fed += len(data)
        try:
            self._parser.receive_data(data)
            event = self._parser.next_event()
        except h11.RemoteProtocolError:
            raise HeadRefused("This is not an HTTP/1.1 request.") from None
        if isinstance(event, h11.Request):
            return _checked(event)
        if self.room == 0:
            raise HeadRefused(f"The request's head is longer than {HEAD_BYTES} bytes.")
        return None


def _checked(request: h11.Request) -> Head:
    if request.http_version not in {b"1.0", b"1.1"}:
        raise HeadRefused("Only HTTP/1.1 is spoken here.")
    if not request.target.startswith(b"/"):
        raise HeadRefused("The request's target must be a path.")
    pairs = list(request.headers)
    if len(pairs) > HEADERS:
        raise HeadRefused(f"The request has more than {HEADERS} headers.")
    headers = tuple((_text(name).lower(), _text(value)) for name, value in pairs)
    names = [name for name, _ in headers]
    for name in sorted(_SINGLE):
        if names.count(name) > 1:
            raise HeadRefused(f"The header {name} is given twice.")
    return Head(
        method=request.method.decode("ascii"),
        path=request.target.decode("ascii").partition("?")[0],
        http_version=request.http_version.decode("ascii"),
        headers=headers,
    )


def _text(raw: bytes) -> str:
    if not _VISIBLE.issuperset(raw):
        raise HeadRefused("A header has a byte that is not visible ASCII.")
    return raw.decode("ascii")
