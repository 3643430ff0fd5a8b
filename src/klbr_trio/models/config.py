"""How a model is reached, and what its provider needs to be told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from klbr_trio.errors import ConfigError
from klbr_trio.models.request.address import api_base

AS_IT_CAME: Final = "as it came"
"""The default of `ModelConfig.reasoning_field`: send reasoning back under the name it came with."""

_TOOL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\x80-\xff]*")


def _stripped(value: str) -> str:
    return value.strip()


def _clean_key(value: str | None) -> str | None:
    return (value.strip() or None) if value is not None else None


def _is_header_value(_: object, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    """Keys are read from files: the value is not shown, it is a secret."""
    if value is not None and not _HEADER_VALUE.fullmatch(value):
        raise ConfigError(f"{attribute.name} holds a character that no HTTP header can carry")


def _is_tool_name(_: object, __: attrs.Attribute[str], value: str) -> None:
    if not _TOOL_NAME.fullmatch(value):
        raise ConfigError(f"tool_name {value!r} is not a name that providers accept")


def _is_positive(_: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{attribute.name} must be more than 0, not {value}")


def _no_fields() -> Mapping[str, object]:
    return {}


def _no_headers() -> Mapping[str, str]:
    return {}


def _no_models() -> Mapping[str, ModelConfig]:
    return {}


@attrs.frozen
class ModelConfig:
    """One model behind one OpenAI-compatible endpoint.

    Args:
        url: The API's base, with or without a version segment such as `/v1`.
        model: The name that the provider knows it by.
        api_key: Sent as a bearer token; never shown.
        tool_name: What the Python tool is called towards this model. Families that have a
            built-in tool named `python` answer better under another name.
        reasoning_field: The field under which reasoning goes back in the history: as it came
            (the default), a name of one's own, or None where the model refuses it.
        echo_fields: Unknown fields of a whole message that go back as they came.
        stream_options: Ask for usage in the stream; left out by itself once a provider refuses it.
        extra_body: Fields added to every request, e.g. `{"temperature": 0.2}`.
        extra_headers: Headers added to every request.
        context_tokens: The model's context, if known; prompts are planned by it.
        price_input: Dollars for a million prompt tokens.
        price_output: Dollars for a million completion tokens.
        connect_s: How long connecting may take.
        first_token_s: How long the model may be silent before its first word.
        stall_s: How long it may be silent between words; keep-alives are not words.
        total_s: How long one answer may take.
        max_requests: How many requests this provider is sent at a time.
        attempts: How often one request is sent in all, when failures may pass.
        patience_s: How long waiting between attempts may take in all; while a provider says that
            it is still loading the model, twice as long.
        proxy: An HTTP proxy's URL; the environment's is never taken.
    """

    url: str = attrs.field(converter=_stripped)
    model: str
    api_key: str | None = attrs.field(
        default=None, repr=False, converter=_clean_key, validator=_is_header_value
    )
    tool_name: str = attrs.field(default="python", kw_only=True, validator=_is_tool_name)
    reasoning_field: str | None = attrs.field(default=AS_IT_CAME, kw_only=True)
    echo_fields: tuple[str, ...] = attrs.field(
        default=("extra_content", "reasoning_details", "thinking_blocks"), kw_only=True
    )
    stream_options: bool = attrs.field(default=True, kw_only=True)
    extra_body: Mapping[str, object] = attrs.field(factory=_no_fields, kw_only=True)
    extra_headers: Mapping[str, str] = attrs.field(factory=_no_headers, kw_only=True, repr=False)
    context_tokens: int | None = attrs.field(default=None, kw_only=True)
    price_input: float | None = attrs.field(default=None, kw_only=True)
    price_output: float | None = attrs.field(default=None, kw_only=True)
    connect_s: float = attrs.field(default=10.0, kw_only=True, validator=_is_positive)
    first_token_s: float = attrs.field(default=120.0, kw_only=True, validator=_is_positive)
    stall_s: float = attrs.field(default=60.0, kw_only=True, validator=_is_positive)
    total_s: float = attrs.field(default=1800.0, kw_only=True, validator=_is_positive)
    max_requests: int = attrs.field(default=8, kw_only=True, validator=_is_positive)
    attempts: int = attrs.field(default=4, kw_only=True, validator=_is_positive)
    patience_s: float = attrs.field(default=60.0, kw_only=True)
    proxy: str | None = attrs.field(default=None, kw_only=True, repr=False)

    def __attrs_post_init__(self) -> None:
        """Refuses a URL that no request could be sent to, while somebody can still read it."""
        api_base(self.url)


@attrs.frozen
class ModelsConfig:
    """The models of one service.

    Args:
        llm: The default.
        named: Others, by the name a request asks for them.
        fallbacks: Tried in this order when the model that was asked for is unavailable.
    """

    llm: ModelConfig
    named: Mapping[str, ModelConfig] = attrs.field(factory=_no_models, kw_only=True)
    fallbacks: tuple[ModelConfig, ...] = attrs.field(default=(), kw_only=True)

    def named_or_default(self, name: str) -> ModelConfig:
        """The model of that name; the default for an empty or unknown one."""
        return self.named.get(name, self.llm)

    def chain(self, name: str) -> tuple[ModelConfig, ...]:
        """The models to try in order for a request that asks for `name`; empty is the default.

        Raises:
            ConfigError: No model has that name.
        """
        if name and name not in self.named:
            known = ", ".join(sorted(self.named)) or "none"
            raise ConfigError(f"no model is named {name!r} (named models: {known})")
        first = self.named[name] if name else self.llm
        return (first, *(other for other in self.fallbacks if other != first))
