"""The scripted provider: a real HTTP server that speaks SSE, and no model at all.

It exists so that the whole of a service can be seen at work without a network. What it
says is worked out by rules from the conversation it is sent; it calls itself `demo`
everywhere and is never used unless it was asked for.
"""

from __future__ import annotations
