"""A session as it happens: lanes while they stream, records as they are committed.

What was shown while it streamed is not shown again by its record, unless chunks of it
were dropped or withdrawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from klbr_trio.cli.output import Output
from klbr_trio.cli.records import record_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_Stream: TypeAlias = tuple[str, str, int, str]
"""What chunks belong to: lane, attempt, step, call."""

_QUIET: Final = frozenset({"reply.received"})


@attrs.define(eq=False)
class Screen:
    """What stands on the screen.

    Attributes:
        is_silent: Whether nothing is shown at all.
    """

    _output: Output
    is_silent: bool = False
    _open: _Stream | None = None
    _at_line_start: bool = True
    _shown: set[_Stream] = attrs.field(factory=set)

    def frame(self, frame: Mapping[str, Any]) -> None:
        """Show one frame of the service."""
        if self.is_silent:
            return
        if self._output.as_json:
            self._output.fact(frame, "")
            return
        match frame.get("type"):
            case "event":
                self._record(frame["record"])
            case "live_chunk":
                self._chunk(frame)
            case "live_discard":
                self._withdraw(frame)
            case "live_gap":
                self._shown.clear()
                self.line(f"({frame['dropped']} pieces were left out here)")
            case _:
                pass

    def line(self, text: str) -> None:
        """Show a line of its own."""
        if self.is_silent:
            return
        self._end_stream()
        self._output.write(self._output.shown(text) + "\n")

    def _chunk(self, frame: Mapping[str, Any]) -> None:
        stream = _stream(frame)
        self._shown.add(stream)
        if stream != self._open:
            self._end_stream()
            self._output.write(f"{frame['lane']}> ")
            self._open = stream
        delta = str(frame["delta"])
        self._output.write(self._output.shown(delta))
        self._at_line_start = delta.endswith("\n")

    def _end_stream(self) -> None:
        if self._open is not None and not self._at_line_start:
            self._output.write("\n")
        self._open, self._at_line_start = None, True

    def _withdraw(self, frame: Mapping[str, Any]) -> None:
        step = (frame["attempt_id"], frame["step"])
        self._shown = {stream for stream in self._shown if (stream[1], stream[2]) != step}
        self.line("(the answer broke off; what was shown of it does not count)")

    def _record(self, record: Mapping[str, Any]) -> None:
        kind, payload = record["kind"], record["payload"]
        if kind in _QUIET or (kind in ("scratchpad", "local.sent") and self._was_shown(record)):
            return
        if kind == "cell.finished" and self._was_shown(record):
            record = {**record, "payload": {**payload, "output": ""}}
        if kind.startswith("turn.") and kind != "turn.started":
            self._shown.clear()
        self.line(record_text(record))

    def _was_shown(self, record: Mapping[str, Any]) -> bool:
        lane = {"scratchpad": "scratchpad", "local.sent": "speech"}.get(record["kind"], "output")
        payload = record["payload"]
        if "attempt_id" not in payload:
            return False
        return _stream({**payload, "lane": lane}) in self._shown


def _stream(frame: Mapping[str, Any]) -> _Stream:
    return (frame["lane"], frame["attempt_id"], frame["step"], frame.get("call_id") or "")
