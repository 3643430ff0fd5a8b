"""What a client's frames may amount to, judged from their headers alone.

The parser behind us counts characters, not bytes, and does not count empty fragments
or tiny pieces at all. The meter sees every byte before the parser does, follows the
frame headers, and names the first thing that is wrong, before anything of it is kept.
"""

from __future__ import annotations

from typing import Final

import attrs

PROTOCOL_ERROR: Final = 1002
TOO_LARGE: Final = 1009

_CONTINUATION: Final = 0x0
_CLOSE: Final = 0x8
_OPCODES: Final = frozenset({0x0, 0x1, 0x2, 0x8, 0x9, 0xA})


@attrs.frozen
class Violation:
    """Why no further byte of this client is looked at, as its close frame says it."""

    code: int
    reason: str


@attrs.define(eq=False, kw_only=True)
class Meter:
    """Follows one client's bytes.

    Attributes:
        message_bytes: How many bytes the payloads of one message may have together.
        pieces: How many fragments and reads one message may be spread over. Each
            piece costs the parser an object, however few bytes it has.
        violation: What went wrong; nothing is taken after it.
        peer_closed: Whether the client's close frame has gone by.
        units: How many messages or lone control frames have begun.
    """

    message_bytes: int
    pieces: int
    violation: Violation | None = attrs.field(default=None, init=False)
    peer_closed: bool = attrs.field(default=False, init=False)
    units: int = attrs.field(default=0, init=False)
    _header: bytearray = attrs.field(factory=bytearray, init=False)
    _payload_left: int = attrs.field(default=0, init=False)
    _closing: bool = attrs.field(default=False, init=False)
    _message_open: bool = attrs.field(default=False, init=False)
    _message_size: int = attrs.field(default=0, init=False)
    _message_pieces: int = attrs.field(default=0, init=False)

    @property
    def unfinished(self) -> bool:
        """Whether something has begun that only further bytes can end."""
        return self._message_open or self._payload_left > 0 or bool(self._header)

    def take(self, data: bytes, *, frames: int) -> int:
        """Follow `data` for at most `frames` further frames.

        Returns:
            How many bytes from the start of `data` are fit to be parsed. Fewer than
            all of them means that `frames` have begun, or that there is a violation.
        """
        at = 0
        while at < len(data) and not self.peer_closed:
            if self._payload_left:
                at += self._pass_payload(len(data) - at)
                continue
            if not self._header and frames == 0:
                return at
            start = at
            at = self._read_header(data, at)
            if self.violation is not None:
                return start
            if not self._header:
                frames -= 1
        self._count_piece()
        return 0 if self.violation is not None else len(data)

    def _read_header(self, data: bytes, at: int) -> int:
        if not self._header and not self._message_open:
            self.units += 1
        while at < len(data) and len(self._header) < _header_size(self._header):
            self._header.append(data[at])
            at += 1
        if len(self._header) >= 2:
            self.violation = self._fault_of_start()
        if self.violation is None and len(self._header) == _header_size(self._header):
            self._begin_frame()
        return at

    def _fault_of_start(self) -> Violation | None:
        first, second = self._header[0], self._header[1]
        opcode = first & 0x0F
        if first & 0x70:
            return Violation(PROTOCOL_ERROR, "reserved bits are set")
        if opcode not in _OPCODES:
            return Violation(PROTOCOL_ERROR, "unknown opcode")
        if not second & 0x80:
            return Violation(PROTOCOL_ERROR, "a client's frames must be masked")
        if opcode >= _CLOSE:
            if not first & 0x80 or second & 0x7F > 125:
                return Violation(PROTOCOL_ERROR, "a control frame is short and whole")
        elif (opcode == _CONTINUATION) is not self._message_open:
            return Violation(PROTOCOL_ERROR, "a fragment is out of place")
        return None

    def _begin_frame(self) -> None:
        opcode, final = self._header[0] & 0x0F, bool(self._header[0] & 0x80)
        size = _payload_size(self._header)
        self._header.clear()
        if opcode < _CLOSE:
            self._message_size += size
            self._message_open = not final
            self._count_piece()
            if self._message_size > self.message_bytes:
                self.violation = _too_large(f"a message has at most {self.message_bytes} bytes")
        self._closing = opcode == _CLOSE
        self._payload_left = size
        self._end_payload()

    def _pass_payload(self, available: int) -> int:
        step = min(self._payload_left, available)
        self._payload_left -= step
        self._end_payload()
        return step

    def _end_payload(self) -> None:
        if self._payload_left:
            return
        self.peer_closed = self._closing
        if not self._message_open:
            self._message_size = self._message_pieces = 0

    def _count_piece(self) -> None:
        if not self.unfinished:
            return
        self._message_pieces += 1
        if self._message_pieces > self.pieces:
            self.violation = _too_large(f"a message has at most {self.pieces} pieces")


def _too_large(reason: str) -> Violation:
    return Violation(TOO_LARGE, reason)


def _header_size(header: bytearray) -> int:
    if len(header) < 2:
        return 2
    return 6 + {126: 2, 127: 8}.get(header[1] & 0x7F, 0)


def _payload_size(header: bytearray) -> int:
    return (header[1] & 0x7F) if len(header) == 6 else int.from_bytes(header[2:-4], "big")
