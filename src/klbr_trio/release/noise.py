"""What a behaviour folder may contain without it being part of the behaviour.

Tools leave these files in folders that people work in; nobody means to publish
them. They are the only things that are left out without a word. A published
release contains none, so finding one there is a change like any other.

| left out | made by |
| --- | --- |
| `__pycache__/`, `*.pyc`, `*.pyo` | Python, also when a wheel is installed |
| `.git` (folder or file), `.hg/`, `.svn/`, `.gitignore`, `.gitattributes`, `.gitkeep` | version control |
| `.mypy_cache/`, `.ruff_cache/`, `.pytest_cache/` | checkers |
| `.idea/`, `.vscode/`, `.editorconfig` | editors' settings |
| `*~`, `#*#`, `.#*`, `.*.swp`, `.*.swo`, `.*.swx` | editors' backups, autosaves and locks |
| `.DS_Store`, `._*`, `Thumbs.db`, `desktop.ini` | file managers |

Any other name counts, also one with a leading dot.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

_NAMES: Final = frozenset(
    {
        "__pycache__",
        ".git",
        ".hg",
        ".svn",
        ".gitignore",
        ".gitattributes",
        ".gitkeep",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".idea",
        ".vscode",
        ".editorconfig",
        ".DS_Store",
        "Thumbs.db",
        "desktop.ini",
    }
)
_PATTERNS: Final = (
    "*.pyc",
    "*.pyo",
    "*~",
    "#*#",
    ".#*",
    ".*.swp",
    ".*.swo",
    ".*.swx",
    "._*",
)


def is_noise(name: str) -> bool:
    """Whether a file or folder of this name is left out of a release."""
    return name in _NAMES or any(fnmatchcase(name, pattern) for pattern in _PATTERNS)
