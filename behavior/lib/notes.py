"""A small notebook that outlives the kernel: one JSON file in the workspace.

from notes import remember, recall, forget

remember("ada.language", "prefers Spanish")
recall("ada.language")      # the value, or None
recall()                    # everything, as a dict
forget("ada.language")
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypeAlias

__all__ = ["forget", "recall", "remember"]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

# Taken once: a cell that changes its directory must not lose the notebook.
_FILE = Path.cwd() / "notes.json"
_MAX_BYTES = 256 * 1024


def remember(name: str, value: Json) -> None:
    """`value` is kept under `name`, on the disk when this returns."""
    if not name:
        raise ValueError("a note needs a name")
    notes = _read()
    notes[name] = value
    _write(notes)


def recall(name: str | None = None, default: Json = None) -> Json:
    """The note of that name, or `default`; without a name all notes, as a dict."""
    notes = _read()
    return notes if name is None else notes.get(name, default)


def forget(name: str) -> bool:
    """The note of that name is gone; False if there was none."""
    notes = _read()
    if name not in notes:
        return False
    del notes[name]
    _write(notes)
    return True


def _read() -> dict[str, Json]:
    try:
        text = _FILE.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        notes = json.loads(text)
    except ValueError as exc:
        raise ValueError(f"{_FILE} is not valid JSON ({exc}); repair it or move it away") from exc
    if not isinstance(notes, dict):
        raise TypeError(f"{_FILE} does not hold notes; repair it or move it away")
    return notes


def _write(notes: dict[str, Json]) -> None:
    text = json.dumps(notes, ensure_ascii=False, indent=1, allow_nan=False)
    data = text.encode("utf-8", "replace")
    if len(data) > _MAX_BYTES:
        raise ValueError(
            f"the notes would have over {_MAX_BYTES // 1024} KiB; use a file of its own"
        )
    # Written beside and renamed: a kernel that is killed here leaves the old notes whole.
    fresh = _FILE.with_name(f".{_FILE.name}.{os.getpid()}")
    with fresh.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(_FILE)
