"""Makes `tests/` importable, so that tests can use `fakes`."""

from __future__ import annotations
