"""Bytes to events: server-sent events as providers send them.

httpx-sse frames by the book, and that is not enough here: it loses the first event behind a
byte-order mark and a last event without a blank line, follows a wrong charset label, has no bound
on a line, and drops what the book calls unknown: an error on a line of its own whose field name is
`error`, and JSON without any framing. So this is a decoder of our own, without I/O: it takes bytes
as they come and gives events at their blank line.

Lines end at CR, LF or CRLF and nowhere else, and are decoded as UTF-8 once they are whole.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

MAX_EVENT: Final = 4 * 1024 * 1024  # a call whose code has 256 KiB stays far below it
_BOM: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


class EventTooLong(ValueError):
    """One event is longer than `MAX_EVENT`."""


@attrs.frozen
class Event:
    """One event: its data lines in order."""

    lines: tuple[str, ...]
    name: str = ""
    """The event's name, `error` also for data that came under the field name `error`."""

    framed: bool = True
    """False for lines that were no fields at all."""

    ended: bool = True
    """False for what was pending when the body ended."""


@attrs.define(eq=False)
class EventDecoder:
    """Collects bytes and hands on events."""

    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    _at_start: bool = attrs.field(default=True, init=False)
    _after_cr: bool = attrs.field(default=False, init=False)
    _data: list[str] = attrs.field(factory=list, init=False)
    _bare: list[str] = attrs.field(factory=list, init=False)
    _name: str = attrs.field(default="", init=False)
    _size: int = attrs.field(default=0, init=False)

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete after these bytes.

        Raises:
            EventTooLong: An event grew past `MAX_EVENT`.
        """
        buffer = self._buffer
        buffer += data
        if self._at_start and not self._past_mark():
            return []
        events: list[Event] = []
        for line in self._take_lines(data):
            if line:
                self._line(line)
            elif self._size:  # of many blank lines the first one ends an event
                self._dispatch(events)
        if len(buffer) + self._size > MAX_EVENT:
            raise EventTooLong(f"an event is longer than {MAX_EVENT // 1024 // 1024} MiB")
        return events

    def end(self) -> list[Event]:
        """The event that was pending, if one was; nothing may be fed afterwards."""
        events: list[Event] = []
        rest = bytes(self._buffer)
        self._buffer.clear()
        if rest:
            self._line(rest)
        self._dispatch(events, ended=False)
        return events

    def _past_mark(self) -> bool:
        """Strips one leading byte-order mark; false while what came may still be one."""
        buffer = self._buffer
        if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
            return False
        if buffer.startswith(_BOM):
            del buffer[: len(_BOM)]
        self._at_start = False
        return True

    def _take_lines(self, data: bytes) -> list[bytes]:
        """Takes the whole lines out of the buffer, if `data` brought an end of one."""
        buffer = self._buffer
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 0x0A:  # the second half of a CRLF that was cut in two
                del buffer[0]
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            lines = _LINE_END.split(bytes(buffer))
        elif b"\n" in data:
            lines = bytes(buffer).split(b"\n")
        else:
            return []
        buffer[:] = lines.pop()
        return lines

    def _line(self, line: bytes) -> None:
        self._size += len(line)
        if line.startswith(b"data: "):  # the usual case
            self._data.append(line[6:].decode("utf-8", "replace"))
            return
        text = line.decode("utf-8", "replace")
        field, colon, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "error" and colon:
            self._data.append(value)
            self._name = "error"
        elif field not in ("", "id", "retry"):
            self._bare.append(text)

    def _dispatch(self, events: list[Event], *, ended: bool = True) -> None:
        if self._data:
            events.append(Event(tuple(self._data), self._name, ended=ended))
        if self._bare:
            events.append(Event(tuple(self._bare), self._name, framed=False, ended=ended))
            self._bare = []
        self._data, self._name, self._size = [], "", 0
