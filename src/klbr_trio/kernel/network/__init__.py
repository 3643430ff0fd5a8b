"""What a kernel can reach of the network, and the proxy that lets it."""

from __future__ import annotations

from klbr_trio.kernel.network.reach import Network

__all__ = ["Network"]
