"""What an HTTP request is answered with: one small reply, then the connection ends."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import attrs

TEXT: Final = "text/plain; charset=utf-8"

# On every reply, the 101 of a WebSocket included. There is no CORS header, ever.
SAFE_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
)


@attrs.frozen
class Response:
    """A whole reply.

    Attributes:
        headers: Extra headers; names and values come from code, never from a request.
    """

    status: int
    body: bytes
    content_type: str = attrs.field(default=TEXT, kw_only=True)
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), kw_only=True)

    @classmethod
    def line(cls, status: int, text: str, *, headers: tuple[tuple[str, str], ...] = ()) -> Response:
        """A reply that says one thing, in one line of plain text."""
        return cls(status, f"{text}\n".encode(), headers=headers)

    def encode(self) -> bytes:
        """The reply as it goes over the wire; it announces that the connection closes."""
        fields = (
            ("Content-Type", self.content_type),
            ("Content-Length", str(len(self.body))),
            *SAFE_HEADERS,
            *self.headers,
            ("Connection", "close"),
        )
        phrase = HTTPStatus(self.status).phrase
        lines = [f"HTTP/1.1 {self.status} {phrase}", *(f"{k}: {v}" for k, v in fields), "", ""]
        return "\r\n".join(lines).encode("ascii") + self.body
