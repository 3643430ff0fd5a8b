"""The rule that gives a folder's content its name.

The digest is the SHA-256 of one canonical JSON text:

    {"files":[["behavior.toml",123,"<sha256 hex>"],["lib/notes.py",45,"…"],…]}

Every regular file below the folder is listed by its path (relative, with `/`),
its size in bytes and the hash of its bytes, sorted by path; no spaces, and
non-ASCII characters as themselves. Modes, owners and times do not count, so the
same behaviour has the same digest wherever it was checked out or installed. The
kernel computes the digest by the same rule with code of its own: that is what
makes the two sides' agreement worth something.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klbr_trio.release.folder import FolderFile

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Whether `text` could be a digest: 64 lower-case hex digits and nothing else."""
    return _DIGEST.fullmatch(text) is not None


def digest_of(files: Iterable[FolderFile]) -> str:
    """The digest of a folder that holds exactly `files`."""
    rows = sorted(
        [file.path, len(file.data), hashlib.sha256(file.data).hexdigest()] for file in files
    )
    text = json.dumps({"files": rows}, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
