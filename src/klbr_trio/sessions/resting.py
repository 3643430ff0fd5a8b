"""Kernels that rest between turns: only so many, or a long life would fill the memory."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final

import attrs

from klbr_trio.sessions.entry import SessionEntry

RESTING_KERNELS: Final = 32
"""Kernels that are kept for sessions which do not run; each takes some 25 MB."""


LOW_MEMORY: Final = 0.05
"""The part of the machine's memory that is left for everybody; below it no kernel rests."""


def is_memory_low(meminfo: Path = Path("/proc/meminfo")) -> bool:
    """Whether less of the machine's memory than that can be had."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return False  # not Linux
    amounts = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
    return amounts.get("MemAvailable", 1) < LOW_MEMORY * amounts.get("MemTotal", 0)


@attrs.define(eq=False)
class RestingKernels:
    """The kernels of sessions that do not run, the one that has rested longest first."""

    _limit: int
    _entries: OrderedDict[str, SessionEntry] = attrs.field(factory=OrderedDict)

    def rest(self, entry: SessionEntry) -> None:
        """The session's runner has ended; over the limit the kernel that rested longest ends.

        Its session's next turn tells the model of it.
        """
        self._entries.pop(entry.session_id, None)
        if entry.kernels.kernel is not None:
            self._entries[entry.session_id] = entry
        limit = 0 if is_memory_low() else self._limit
        while len(self._entries) > limit:
            _, oldest = self._entries.popitem(last=False)
            if oldest.runners.active is None:  # else it comes back when its runner ends
                oldest.kernels.retire()
