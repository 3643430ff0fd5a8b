"""The port: the service's bytes, from an accepted connection to whole messages.

`head` reads a request, `gate` judges it, `accept` answers it or hands over a WebSocket;
`connection` is that socket over the `stream` that keeps frames whole, `meter` counts
what comes in. Nothing here knows sessions or messages.
"""

from __future__ import annotations
