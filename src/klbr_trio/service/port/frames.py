"""Outgoing WebSocket frames, as bytes that are ready to be written.

A server's frames are not masked and ours are never fragmented, so a frame is its
header and its payload, and one frame serves any number of clients.
"""

from __future__ import annotations

import struct
from typing import Final

FRAME_BYTES: Final = 1024 * 1024

_FIN: Final = 0x80
_TEXT: Final = _FIN | 0x1
_CLOSE: Final = _FIN | 0x8
_PING: Final = _FIN | 0x9
_CONTROL_BYTES: Final = 125


def frame(text: str | bytes) -> bytes:
    """The text frame that carries `text`; bytes are taken as UTF-8 and not looked at."""
    payload = text.encode() if isinstance(text, str) else text
    size = len(payload)
    assert size <= FRAME_BYTES, size
    if size < 126:
        return bytes((_TEXT, size)) + payload
    if size < 65536:
        return struct.pack("!BBH", _TEXT, 126, size) + payload
    return struct.pack("!BBQ", _TEXT, 127, size) + payload


def close_frame(code: int, reason: str) -> bytes:
    """The close frame for `code`, its reason cut to what a control frame can hold."""
    text = reason.encode()[: _CONTROL_BYTES - 2].decode(errors="ignore").encode()
    return struct.pack("!BBH", _CLOSE, 2 + len(text), code) + text


def ping_frame() -> bytes:
    """A ping without a payload; whatever the peer sends after it proves that it lives."""
    return bytes((_PING, 0))


def is_close(data: bytes) -> bool:
    """Whether `data`, which begins with a frame, begins with a close frame."""
    return data[:1] == bytes((_CLOSE,))
