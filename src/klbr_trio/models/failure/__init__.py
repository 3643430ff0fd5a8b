"""What went wrong with a model call, and what is done about it."""

from __future__ import annotations
