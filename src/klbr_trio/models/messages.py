"""What a prompt is made of: the messages of one model request, as plain values.

Whoever builds a prompt makes these; `request.body` turns them into what a provider accepts. They
say nothing about JSON and nothing about a particular provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import attrs

TOOL_DESCRIPTION: Final = (
    "Run Python in this conversation's kernel. Variables stay from call to call, top-level await works, "
    "and the result holds what the code printed and the value of its last expression."
)


@attrs.frozen
class System:
    """The instructions; one, and first."""

    text: str


@attrs.frozen
class User:
    """What the outside says to the model: inputs, wakes, notes."""

    text: str


@attrs.frozen
class PastCall:
    """A call that an earlier reply made."""

    provider_id: str
    """The id under which the provider knows it; its result carries the same."""

    code: str | None
    """What it asked to run; None if it could not run."""

    raw: str | None = None
    """What came instead, where it could not run."""


@attrs.frozen
class Assistant:
    """An earlier reply of the model."""

    text: str
    calls: tuple[PastCall, ...] = ()
    opaque: Mapping[str, object] | None = None
    """`Reply.opaque` as it was stored."""


@attrs.frozen
class ToolResult:
    """What the call of that id came to."""

    provider_id: str
    text: str


Message: TypeAlias = System | User | Assistant | ToolResult


@attrs.frozen
class ModelRequest:
    """One step of a turn, to be answered by one reply."""

    messages: tuple[Message, ...]
    tools: bool = True
    """Whether the model may call the Python tool."""

    session_id: str = ""
    """On whose behalf: requests that wait are taken session by session."""

    model: str = ""
    """The name of one of the configured models; empty means the default."""

    tool_description: str = TOOL_DESCRIPTION
