"""What the model sees: a pure function of the log, the release and a budget.

`window` reads the part of the log that may be shown; `blocks` turns its events into
messages; `fit` makes them fit. Whatever the history, every call has exactly one result
and the messages are what a provider accepts.
"""

from __future__ import annotations

from klbr_trio.sessions.prompt.blocks import render
from klbr_trio.sessions.prompt.fit import Persona, build, length
from klbr_trio.sessions.prompt.window import Window

__all__ = ["Persona", "Window", "build", "length", "render"]
