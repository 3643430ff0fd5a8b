"""The log: JSON lines on stderr, whatever a hostile text may hold."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Final

from typing_extensions import override

_VALUE_CHARS: Final = 256
_MESSAGE_CHARS: Final = 2_000
_TRACE_CHARS: Final = 16_000
_QUIET: Final = ("httpx", "httpcore", "trio-websocket")
_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One record, one line of ASCII: nothing in it can break out of the line."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(record.getMessage(), _MESSAGE_CHARS),
        }
        for name, value in vars(record).items():
            if name not in _OWN_FIELDS:
                line[name] = _plain(value)
        if record.exc_info:
            trace = "".join(traceback.format_exception(*record.exc_info))
            line["traceback"] = _tail(trace, _TRACE_CHARS)
        return json.dumps(line, ensure_ascii=True)


def start_logging(level: str) -> None:
    """Everything at `level` or above goes to stderr; libraries that log URLs stay quiet."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return _cut(str(value), _VALUE_CHARS)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more)"


def _tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"({len(text) - limit} more) …{text[-limit:]}"
