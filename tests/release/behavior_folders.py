"""Behaviour folders for tests, and what lies in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SMALLEST = {"behavior.toml": b"", "prompt.md": b"Be kind.\n"}


def write_folder(root: Path, files: Mapping[str, bytes]) -> Path:
    """A folder that holds exactly `files`."""
    root.mkdir()
    for path, data in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return root


def files_in(root: Path) -> dict[str, bytes]:
    """Every file below `root`, by its path."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if not path.is_dir()
    }
