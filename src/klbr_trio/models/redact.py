"""Providers repeat what they were sent; secrets among it must not be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from klbr_trio.models.config import ModelConfig

_MIN_SECRET: Final = 6  # shorter values would blot out ordinary words


def redacted(text: str, config: ModelConfig) -> str:
    """`text` without the key and the header values of this model."""
    for secret in (config.api_key, *config.extra_headers.values()):
        if secret and len(secret) >= _MIN_SECRET:
            text = text.replace(secret, "***")
    return text
