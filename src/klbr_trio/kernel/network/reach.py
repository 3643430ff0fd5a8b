"""What a kernel can reach of the network."""

from __future__ import annotations

import enum


class Network(enum.Enum):
    """How far a kernel's connections go."""

    OFF = "off"
    """Nowhere; behind namespaces it has a loopback of its own."""
    PUBLIC = "public"
    """Public addresses, by HTTP through a proxy of the service's that checks each of them."""
    OPEN = "open"
    """Whatever the service's machine can reach, its own services and neighbours too."""
