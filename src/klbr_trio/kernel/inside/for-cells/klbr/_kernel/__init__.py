"""The worker's own machinery; not for cells."""

from __future__ import annotations
