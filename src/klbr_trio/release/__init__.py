"""Releases: immutable, content-addressed copies of behaviour folders.

A behaviour folder says how an agent behaves: `behavior.toml` (limits and
options), `prompt.md` (its instructions), and optionally `policy.py` (hooks that
run in the kernel) and `lib/` (modules that cells can import). The service never
runs a folder that somebody may still be editing: it publishes a copy and runs
that, and every turn names the digest that it ran.

Everything here is plain and synchronous, and knows neither sessions nor kernels.
"""

from __future__ import annotations

from klbr_trio.release.release import Release
from klbr_trio.release.settings import (
    BehaviorSettings,
    CellSettings,
    PlainText,
    SendSettings,
    TurnSettings,
    WaitSettings,
)
from klbr_trio.release.shipped import default_behavior

__all__ = [
    "BehaviorSettings",
    "CellSettings",
    "PlainText",
    "Release",
    "SendSettings",
    "TurnSettings",
    "WaitSettings",
    "default_behavior",
]
