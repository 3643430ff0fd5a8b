"""What a turn works with, handed to it whole."""

from __future__ import annotations

import attrs

from klbr_trio.domain.clock import Clock
from klbr_trio.models import LlmClient
from klbr_trio.release import Release
from klbr_trio.sessions.entry import SessionEntry
from klbr_trio.sessions.live import LiveStream
from klbr_trio.store import Store


@attrs.frozen
class Means:
    """The collaborators of one turn.

    Attributes:
        soul: Who the agent is; None: the release's own.
        live: Where what it streams goes.
    """

    store: Store
    entry: SessionEntry
    llm: LlmClient
    release: Release
    soul: str | None
    clock: Clock
    live: LiveStream
