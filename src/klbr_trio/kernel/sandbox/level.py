"""The levels of isolation, and which one this machine has."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Final

import attrs


class Level(enum.Enum):
    """How a kernel is kept from the machine, the strongest first."""

    FULL = "full"
    """bubblewrap: namespaces of its own, a read-only root of listed paths, no network."""
    FULL_NO_PROC = "full, no /proc"
    """The same, where a process file system can't be mounted, as in some containers."""
    REDUCED = "reduced"
    """Landlock and a system call filter: the host's processes and clock are visible."""
    NONE = "none"
    """A plain process with all rights of the service's user."""

    @property
    def rank(self) -> int:
        """3 for the strongest kind, 1 for none."""
        return {"full": 3, "full, no /proc": 3, "reduced": 2, "none": 1}[self.value]

    @property
    def namespaced(self) -> bool:
        """Whether a kernel has namespaces of its own."""
        return self.rank == 3


@attrs.frozen(kw_only=True)
class Interpreter:
    """Which files an interpreter is made of.

    Attributes:
        prefixes: The folders of its installation and of its virtual environment.
        hops: The links on the way from its path to the program.
    """

    python: Path
    prefixes: tuple[Path, ...]
    hops: tuple[Path, ...]


@attrs.frozen(kw_only=True)
class Sandbox:
    """What a probe has found.

    Attributes:
        level: The strongest level that works here.
        reasons: Why stronger ones don't, and what is weaker than it could be.
        bwrap: The bubblewrap program, at the levels that have one.
        drops_uid: Whether each session's worker gets a user id of its own.
        keeps_root: Whether the worker stays user 0, without capabilities.
        interpreter: What a kernel must be able to read of Python.
    """

    level: Level
    reasons: tuple[str, ...] = ()
    bwrap: Path | None = None
    drops_uid: bool = False
    keeps_root: bool = False
    interpreter: Interpreter | None = None

    def describe(self) -> str:
        """The level and what is to be known about it, in one line."""
        return "; ".join([self.level.value, *self.reasons])


NO_SANDBOX: Final = Sandbox(level=Level.NONE)
