"""`klbr config`: what a service would be started with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from klbr_trio import config as limits
from klbr_trio.cli.exits import Exit
from klbr_trio.cli.settings import TABLE, api_key, here
from klbr_trio.domain.text import TEXT_BYTES
from klbr_trio.wire.client import PAGE_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klbr_trio.cli.output import Output
    from klbr_trio.cli.settings import Found


def show_config(*, output: Output, flags: Mapping[str, object]) -> Exit:
    """Show every setting with its value and where it came from."""
    settings = here(flags)
    rows: dict[str, dict[str, Any]] = {}
    for setting in TABLE:
        found = settings.found[setting.name]
        rows[setting.name] = {"value": _shown(setting.name, found), "source": found.source}
    key = api_key(settings, os.environ)
    rows["api_key"] = {"value": None if key.value is None else "(set)", "source": key.source}
    for name, table in settings.models.items():
        rows[f"models.{name}"] = {"value": _model(table), "source": settings.models_source}
    fixed = _limits()
    lines = [f"{name:<25} {_text(row['value'])}   [{row['source']}]" for name, row in rows.items()]
    lines += [f"{name:<25} {number}   [fixed]" for name, number in fixed.items()]
    output.fact({"settings": rows, "limits": fixed}, "\n".join(lines))
    return Exit.DONE


def _shown(name: str, found: Found) -> object:
    """A value as it may be shown: paths as texts, a URL without a password."""
    if isinstance(found.value, Path):
        return str(found.value)
    if name == "model_url" and isinstance(found.value, str):
        return _without_password(found.value)
    return found.value


def _model(table: object) -> str:
    """A model's table in a few words; nothing of it is checked here."""
    fields = table if isinstance(table, dict) else {}
    return f"{fields.get('model')} at {_without_password(str(fields.get('url')))}"


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(unreadable)"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _limits() -> dict[str, int]:
    return {
        "frame_bytes": limits.FRAME_BYTES,
        "text_bytes": TEXT_BYTES,
        "clients": limits.CLIENTS,
        "subscriptions": limits.SUBSCRIPTIONS,
        "live_queue": limits.LIVE_QUEUE,
        "in_flight": limits.IN_FLIGHT,
        "page": PAGE_MAX,
    }
