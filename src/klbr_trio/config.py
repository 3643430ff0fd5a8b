"""Every limit of the service, named, with its unit and default, in one place."""

from __future__ import annotations

from typing import Final

FRAME_BYTES: Final = 1024 * 1024
"""No frame in either direction is longer."""

CLIENTS: Final = 1000
"""Connections at the same time."""

SUBSCRIPTIONS: Final = 100
"""Sessions that one client may follow at the same time."""

LIVE_QUEUE: Final = 256
"""Live chunks that wait for a slow client; more are dropped and counted."""

IN_FLIGHT: Final = 256
"""Requests of one client that wait for their answers; more are not read yet."""

DRAIN_SECONDS: Final = 0.0
"""How long a running turn may go on at shutdown."""

KERNELS: Final = 32
"""Kernels that are kept for sessions which do not run; the one that rested longest makes room."""

KERNEL_IDLE_SECONDS: Final = 1800.0
"""An idle kernel is let go after so long, and started again when a cell needs it."""

LISTEN_HOST: Final = "127.0.0.1"
LISTEN_PORT: Final = 8765

FIRST_TOKEN_SECONDS: Final = 120.0
"""How long a model may be silent before its answer."""

STALL_SECONDS: Final = 60.0
"""How long it may be silent during its answer."""
