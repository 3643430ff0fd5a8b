"""Kernels that rest between turns: only so many, or a long life would fill the memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import attrs

from klbr_trio.sessions.entry import SessionEntry

RESTING_KERNELS: Final = 32
"""Kernels that are kept for sessions which do not run; each takes some 25 MB."""


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
        while len(self._entries) > self._limit:
            _, oldest = self._entries.popitem(last=False)
            if oldest.runners.active is None:  # else it comes back when its runner ends
                oldest.kernels.retire()
