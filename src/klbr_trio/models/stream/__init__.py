"""From the bytes of an answer to one reply, without I/O."""

from __future__ import annotations
