"""The models of `klbr.toml`: one table a model, the default, and who is asked in its place.

```toml
model = "big"             # a table below; or the provider's own name, together with model_url
fallbacks = "small"       # asked in this order while the model that should answer is unavailable

[models.big]
url = "https://api.example.org/v1"
model = "big-2"           # the name that the provider knows
api_key_file = "/home/me/.keys/example"
price_input = 3.0         # dollars for a million tokens

[models.small]
url = "http://127.0.0.1:11434/v1"
model = "small"
context_tokens = 8192
extra_body = { temperature = 0.2 }
```

A behaviour chooses one of them with `model` in its `behavior.toml`; `docs/providers.md` has every key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klbr_trio.cli.settings import OTHERS_URL, api_key
from klbr_trio.daemon.settings import DemoProvider, ModelChoice
from klbr_trio.errors import ConfigError
from klbr_trio.models import ModelConfig, ModelsConfig

if TYPE_CHECKING:
    from klbr_trio.cli.settings import Settings

_Parse = Callable[[object], Any]


def model_choice(settings: Settings, environ: Mapping[str, str]) -> ModelChoice:
    """The models of the service; None: inputs are stored and nothing answers them.

    Raises:
        ConfigError: Two settings don't go together, or one can't be.
    """
    if settings.text("provider") == "demo" and _is_demo(settings):
        return DemoProvider()
    tables = {name: _table(settings, name) for name in settings.models}
    default = _default(settings, environ, tables)
    names = [name.strip() for name in (settings.text("fallbacks") or "").split(",")]
    fallbacks = tuple(_named(tables, name, settings) for name in names if name)
    if default is None:
        if fallbacks:
            raise ConfigError("there are fallbacks and no model; say which with model = NAME")
        return None
    return ModelsConfig(default, named=tables, fallbacks=fallbacks)


def _is_demo(settings: Settings) -> bool:
    """Whether the demo provider was named before any model was."""
    named = [
        settings.found[name].rank
        for name in ("model_url", "model")
        if settings.found[name].source != OTHERS_URL  # meant for other programs, too
    ]
    rank = settings.found["provider"].rank
    if rank in named:
        raise ConfigError("choose one: --provider demo, or --model-url and --model")
    return rank < min(named)


def _default(
    settings: Settings, environ: Mapping[str, str], tables: Mapping[str, ModelConfig]
) -> ModelConfig | None:
    url, model = settings.found["model_url"], settings.found["model"]
    is_ours = url.value is not None and url.source != OTHERS_URL
    if not is_ours and model.value in tables:
        return tables[str(model.value)]
    if not is_ours and model.value is None and tables:
        if len(tables) > 1:
            known = ", ".join(sorted(tables))
            raise ConfigError(f"there are several models ({known}); say which with model = NAME")
        return next(iter(tables.values()))
    if url.value is None and model.value is None:
        return None
    if model.value is None:
        raise ConfigError(
            f"there is a model's URL ({url.source}) and no name; add --model NAME or KLBR_MODEL"
        )
    if url.value is None:
        known = f", or name one of: {', '.join(sorted(tables))}" if tables else ""
        raise ConfigError(
            f"there is a model's name ({model.source}) and no URL; add --model-url URL, "
            f"e.g. http://127.0.0.1:11434/v1{known}"
        )
    key = api_key(settings, environ).value
    return ModelConfig(
        str(url.value),
        str(model.value),
        None if key is None else str(key),
        first_token_s=settings.number("first_token_seconds"),
        stall_s=settings.number("stall_seconds"),
    )


def _named(tables: Mapping[str, ModelConfig], name: str, settings: Settings) -> ModelConfig:
    if name not in tables:
        known = ", ".join(sorted(tables)) or "none"
        source = settings.found["fallbacks"].source
        raise ConfigError(f"{source}: no model is named {name!r} (there are: {known})")
    return tables[name]


def _table(settings: Settings, name: str) -> ModelConfig:
    """One model's table, read to the last key."""
    where = f"{settings.models_source}: models.{name}"
    table = settings.models[name]
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table: [models.{name}]")
    given: dict[str, Any] = {
        "first_token_s": settings.number("first_token_seconds"),
        "stall_s": settings.number("stall_seconds"),
    }
    for key, value in table.items():
        if key not in _FIELDS:
            raise ConfigError(f"{where}: {key!r} is no setting; these are: {', '.join(_FIELDS)}")
        field, parse = _FIELDS[key]
        try:
            given[field] = parse(value)
        except ValueError as exc:
            raise ConfigError(f"{where}: {key} {exc}") from exc
    for key in ("url", "model"):
        if key not in given:
            raise ConfigError(f"{where}: {key} is missing")
    try:
        return ModelConfig(**given)
    except ConfigError as exc:
        raise ConfigError(f"{where}: {exc}") from exc


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text that is not empty")
    return value


def _text_or_none(value: object) -> str | None:
    if not isinstance(value, str):
        raise ValueError("must be a text; empty for none")  # noqa: TRY004 - one kind of refusal
    return value or None


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of texts")  # noqa: TRY004 - as above
    return tuple(_text(each) for each in value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - as above
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number, 1 or more")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise ValueError("must be a number, 0 or more")
    return float(value)


def _table_of_any(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError("must be a table")  # noqa: TRY004 - as above
    return value


def _table_of_texts(value: object) -> dict[str, str]:
    return {name: _text(each) for name, each in _table_of_any(value).items()}


def _key(value: object) -> str:
    path = Path(_text(value)).expanduser()
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError(f"{path} can't be read: {exc}") from exc
    if not key:
        raise ValueError(f"{path} is empty; it should hold the key")
    return key


_FIELDS: Final[Mapping[str, tuple[str, _Parse]]] = {
    "url": ("url", _text),
    "model": ("model", _text),
    "api_key_file": ("api_key", _key),
    "tool_name": ("tool_name", _text),
    "reasoning_field": ("reasoning_field", _text_or_none),
    "echo_fields": ("echo_fields", _texts),
    "stream_options": ("stream_options", _flag),
    "extra_body": ("extra_body", _table_of_any),
    "extra_headers": ("extra_headers", _table_of_texts),
    "context_tokens": ("context_tokens", _whole),
    "price_input": ("price_input", _number),
    "price_output": ("price_output", _number),
    "connect_seconds": ("connect_s", _number),
    "first_token_seconds": ("first_token_s", _number),
    "stall_seconds": ("stall_s", _number),
    "total_seconds": ("total_s", _number),
    "max_requests": ("max_requests", _whole),
    "attempts": ("attempts", _whole),
    "patience_seconds": ("patience_s", _number),
    "proxy": ("proxy", _text),
}

SETTINGS: Final = tuple(_FIELDS)
"""The keys of a model's table."""
