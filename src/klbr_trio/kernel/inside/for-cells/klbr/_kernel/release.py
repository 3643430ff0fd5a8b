# Importing pathlib would be a good part of this process's start.
# ruff: noqa: PTH103, PTH118, PTH120, PTH123
"""The published behaviour folder as the kernel itself reads it."""

from __future__ import annotations

import hashlib
import json
import os


def digest(folder: str) -> str:
    """The sha256 of the folder's canonical manifest: every regular file's path, size and sha256.

    Raises:
        OSError: The folder or a file in it can't be read.
        UnicodeEncodeError: A file's name is not UTF-8.
    """
    files: list[list[object]] = []
    for path in sorted(_files(folder, "")):
        with open(os.path.join(folder, path), "rb") as file:
            content = file.read()
        files.append([path, len(content), hashlib.sha256(content).hexdigest()])
    manifest = json.dumps({"files": files}, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(manifest.encode()).hexdigest()


def copy(source: str, target: str) -> None:
    """Every file of the folder `source` is in `target`, too, for everybody to read."""
    before = os.umask(0o022)
    for path in _files(source, ""):
        there = os.path.join(target, path)
        os.makedirs(os.path.dirname(there), exist_ok=True)
        with open(os.path.join(source, path), "rb") as file:
            content = file.read()
        with open(there, "xb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o444)
    os.umask(before)


def _files(folder: str, prefix: str) -> list[str]:
    found: list[str] = []
    with os.scandir(os.path.join(folder, prefix)) as entries:
        for entry in entries:
            path = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                found += _files(folder, f"{path}/")
            elif entry.is_file(follow_symlinks=False):
                found.append(path)
    return found
