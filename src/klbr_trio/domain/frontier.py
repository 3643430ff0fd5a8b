"""Frontiers: summaries that stand for the older part of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable


def _names(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


@attrs.frozen
class Frontier:
    """A summary of every event up to `drained_through_seq`; installing one is a fold.

    Attributes:
        epoch: 1 for a session's first fold, then one more each time.
        derived_by: Who wrote the summary.
        source_children: Ids of what it was derived from.
        actor_testimony: What the agent itself said about it, and where.
    """

    epoch: int
    drained_through_seq: int
    summary: str
    derived_by: str
    created_ms: int = 0
    source_children: tuple[str, ...] = attrs.field(default=(), converter=_names)
    actor_testimony: str | None = None
    actor_testimony_source: str | None = None
