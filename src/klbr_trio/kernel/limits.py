"""What one kernel may take, with everything that it starts."""

from __future__ import annotations

from typing import Final

import attrs
from attrs.validators import gt

MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB


@attrs.frozen(kw_only=True)
class Limits:
    """Bounds of one kernel; each has a message that names it and what was used."""

    memory_bytes: int = attrs.field(default=3 * GIB, validator=gt(0))
    """All processes together: over it the kernel is killed. Enforced by polling."""
    process_memory_bytes: int = attrs.field(default=2 * GIB, validator=gt(0))
    """One process: over it an allocation fails with MemoryError, and the variables are kept."""
    processes: int = attrs.field(default=128, validator=gt(0))
    """Processes and threads, where the kernel has a user id or a user namespace of its own."""
    file_bytes: int = attrs.field(default=1 * GIB, validator=gt(0))
    """One file."""
    open_files: int = attrs.field(default=1024, validator=gt(0))
    """File descriptors of one process."""
    disk_bytes: int = attrs.field(default=5 * GIB, validator=gt(0))
    """The workspace: over it the running cell is interrupted, then killed."""
    disk_files: int = attrs.field(default=200_000, validator=gt(0))
    """Files and folders in the workspace."""
    free_bytes: int = attrs.field(default=1 * GIB, validator=gt(0))
    """What must stay free on the workspace's disk while a cell runs, if it was at the start."""
    temporary_bytes: int = attrs.field(default=512 * MIB, validator=gt(0))
    """The kernel's own /tmp, where it has one."""


@attrs.frozen
class Breach:
    """A limit of the whole kernel that the warden has found broken."""

    what: str
    used: int
    limit: int

    @property
    def is_deadly(self) -> bool:
        """Whether the warden is killing the kernel; else the running cell is to be interrupted."""
        return self.what == "memory"

    def __str__(self) -> str:
        match self.what:
            case "memory":
                amount = f"{_mb(self.used)} of memory with everything it started"
                return f"it used {amount} (limit {_mb(self.limit)})"
            case "disk":
                return f"its workspace held {_mb(self.used)} (limit {_mb(self.limit)})"
            case "files":
                return f"its workspace held {self.used:,} files (limit {self.limit:,})"
            case _:
                left = f"the disk had {_mb(self.used)} left"
                return f"{left} (limit: {_mb(self.limit)} stay free)"


def _mb(amount: int) -> str:
    return f"{amount // MIB:,} MB"
