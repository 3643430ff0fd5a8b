"""From a prompt to the bytes of one request."""

from __future__ import annotations
