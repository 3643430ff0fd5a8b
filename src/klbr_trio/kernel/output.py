"""What a kernel writes to its file descriptors 1 and 2: kept in part, passed on live, bounded."""

from __future__ import annotations

import array
import codecs
import fcntl
import os
import termios
from collections.abc import Callable
from typing import Final

import attrs
import trio

_READ: Final = 64 * 1024
_LIVE_BURST: Final = 64 * 1024
_LIVE_PER_SECOND: Final = 64 * 1024
_FREE: Final = 16 * 1024 * 1024
"""A cell may write this much as fast as it can."""
_SLOWED_PER_SECOND: Final = 100 * 1024 * 1024
"""What is read of it from then on, so that a flood does not take a whole core of the host."""
_BACKGROUND_BYTES: Final = 16 * 1024


@attrs.define(eq=False)
class Kept:
    """The first and the last bytes of something long."""

    limit: int
    total: int = 0
    _head: bytearray = attrs.field(factory=bytearray)
    _tail: bytearray = attrs.field(factory=bytearray)

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.limit // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 4 * self.limit:
            del self._tail[: -self._tail_limit]

    @property
    def _tail_limit(self) -> int:
        return self.limit - self.limit // 2

    @property
    def truncated(self) -> bool:
        return self.total > self.limit

    def text(self) -> str:
        """What was kept; a mark says how much is missing between its two parts."""
        if not self.truncated:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = bytes(self._head), bytes(self._tail[-self._tail_limit :])
        # No character is cut in two: bytes of one that the limits would split are left out.
        start = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
        skipped = next((n for n in range(min(4, len(tail))) if tail[n] & 0xC0 != 0x80), 0)
        end = tail[skipped:].decode(errors="replace")
        omitted = self.total - len(head) - len(tail)
        return f"{start}\n[... {omitted:,} bytes of output left out ...]\n{end}"


@attrs.define(eq=False)
class Live:
    """Passes text on as it comes, but no more than a person could follow."""

    _listener: Callable[[str], None]
    _decoder: codecs.IncrementalDecoder = attrs.field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    _allowance: float = float(_LIVE_BURST)
    _as_of: float = attrs.field(factory=trio.current_time)
    _withheld: int = 0

    def add(self, data: bytes) -> None:
        now = trio.current_time()
        self._allowance = min(
            float(_LIVE_BURST), self._allowance + (now - self._as_of) * _LIVE_PER_SECOND
        )
        self._as_of = now
        if len(data) > self._allowance:
            self._withheld += len(data)
            return
        self._allowance -= len(data)
        self._say(self._decoder.decode(data))

    def finish(self) -> None:
        self._say(self._decoder.decode(b"", final=True))

    def _say(self, text: str) -> None:
        if self._withheld:
            text = f"\n[... {self._withheld:,} bytes of output not shown live ...]\n{text}"
            self._withheld = 0
        if text:
            self._listener(text)


@attrs.define(eq=False)
class Output:
    """The reading end of a kernel's output pipe. Owns the descriptor.

    Between `begin` and `finish` what comes is the running cell's; else it is background output,
    which is put in front of the next cell's.
    """

    _fd: int
    _limit: int
    _flood_bytes: int
    _background: Kept = attrs.field(factory=lambda: Kept(_BACKGROUND_BYTES))
    _kept: Kept | None = None
    _live: Live | None = None
    _on_flood: Callable[[], None] | None = None
    _before: str = ""
    _closed: bool = False
    _since: int = 0
    """Bytes since the last cell began or ended."""

    @property
    def background(self) -> str:
        """What was written since the last cell has ended."""
        return self._background.text()

    def begin(self, on_output: Callable[[str], None], *, on_flood: Callable[[], None]) -> None:
        """From here on, output is a new cell's."""
        self._drain()
        self._before = self.background
        self._background = Kept(_BACKGROUND_BYTES)
        self._kept = Kept(self._limit)
        self._live = Live(on_output)
        self._on_flood = on_flood
        self._since = 0

    def finish(self) -> tuple[str, bool]:
        """The cell's output, complete, since all it wrote is in the pipe; whether parts are out."""
        assert self._kept is not None
        assert self._live is not None
        self._drain()
        self._live.finish()
        text, truncated = self._kept.text(), self._kept.truncated
        if self._before:
            end = "" if self._before.endswith("\n") else "\n"
            text = (
                f"[background output since the last cell]\n{self._before}{end}[this cell]\n{text}"
            )
        self._kept = self._live = self._on_flood = None
        self._since = 0
        return text, truncated

    async def pump(self) -> None:
        """Reads until every process has closed its end."""
        owed = 0
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            data = self._read(_READ)
            if data == b"":
                return
            owed += len(data or b"") if self._since > _FREE else 0
            if owed > _SLOWED_PER_SECOND // 100:
                await trio.sleep(owed / _SLOWED_PER_SECOND)
                owed = 0

    def close(self) -> None:
        """Takes what the dead processes have left in the pipe, and closes it."""
        self._drain()
        self._closed = True
        os.close(self._fd)

    def _drain(self) -> None:
        """Reads what is in the pipe at this moment, and no more."""
        if self._closed:
            return
        size = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, size)
        left = size[0]
        while left > 0:
            data = self._read(left)
            if not data:
                return
            left -= len(data)

    def _read(self, size: int) -> bytes | None:
        """What one read gives, b"" at the end, None if nothing is there."""
        try:
            data = os.read(self._fd, size)
        except BlockingIOError:
            return None
        self._take(data)
        return data

    def _take(self, data: bytes) -> None:
        self._since += len(data)
        if self._kept is None or self._live is None:
            self._background.add(data)
            return
        self._kept.add(data)
        self._live.add(data)
        if self._kept.total > self._flood_bytes and self._on_flood is not None:
            on_flood, self._on_flood = self._on_flood, None
            on_flood()
