"""The one converter, strict JSON in and compact JSON out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import cattrs
from cattrs.gen import make_dict_unstructure_fn

from klbr_trio.domain import work
from klbr_trio.domain.text import has_surrogate
from klbr_trio.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

MAX_INT: Final = 2**53
"""Integers on the wire lie within ±2^53, where every JSON reader keeps them exact."""

# Made once: `json.dumps` would make one a call.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

MAX_DEPTH: Final = 64
"""How deep stored JSON may be nested: far below what any reader's stack takes."""

_CAUSE_TYPES: Final = {
    work.InputReady: "input_ready",
    work.DeadlineWake: "deadline_wake",
    work.Repair: "repair",
    work.Recovery: "recovery",
    work.MaintenanceReady: "maintenance_ready",
}


def loads(text: str | bytes) -> Any:  # noqa: ANN401
    """One strict JSON value.

    Raises:
        BadRequest: It is not JSON, holds NaN or Infinity, is nested too deeply, or has
            a number too long to read.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise BadRequest("the frame is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError, _NotJson) as exc:
        raise BadRequest(f"the frame is not JSON: {_short(str(exc))}") from None
    except ValueError:
        raise BadRequest("the frame holds a number with too many digits") from None


def dumps(value: object) -> str:
    """Compact JSON; refuses NaN and Infinity with ValueError."""
    return _ENCODER.encode(value)


def is_deeper(value: object, levels: int) -> bool:
    """Whether lists and objects are nested deeper than `levels` in `value`, which has no cycle."""
    level = [[value]]
    for _ in range(levels + 1):
        level = [
            list(child.values() if isinstance(child, dict) else child)
            for parent in level
            for child in parent
            if isinstance(child, dict | list | tuple)
        ]
    return bool(level)


class _NotJson(ValueError):
    """What Python's reader takes and JSON does not have."""


def _no_constant(name: str) -> Any:  # noqa: ANN401
    raise _NotJson(f"{name} is not a JSON number")


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "…"


def _strict(kind: type, noun: str) -> Any:  # noqa: ANN401
    def hook(value: Any, _: Any) -> Any:  # noqa: ANN401
        if type(value) is not kind:
            raise TypeError(f"must be {noun}, not {_noun(value)}")
        if isinstance(value, str) and has_surrogate(value):
            raise ValueError("holds a lone surrogate")
        if isinstance(value, int) and not -MAX_INT <= value <= MAX_INT:
            raise ValueError("must lie within ±2^53")
        return value

    return hook


def _strict_tuple(value: Any, kind: Any) -> Any:  # noqa: ANN401
    if type(value) is not list:
        raise TypeError(f"must be a list, not {_noun(value)}")
    (inner, _) = kind.__args__
    return tuple(CONVERTER.structure(item, inner) for item in value)


def _noun(value: object) -> str:
    names = {
        dict: "an object", list: "a list", str: "a string", bool: "a boolean",
        int: "an integer", float: "a number with a fraction", type(None): "null",
    }  # fmt: skip
    return names.get(type(value), type(value).__name__)


def _make_converter() -> cattrs.Converter:
    """A converter on which nothing is coerced.

    str, int, bool and float take only themselves; tuples take only lists; unknown
    keys are ignored; fields left out take their defaults; causes carry a `type`.
    """
    converter = cattrs.Converter(unstruct_collection_overrides={tuple: list})
    for kind, noun in (
        (str, "a string"),
        (int, "an integer"),
        (bool, "a boolean"),
        (float, "a number"),
    ):
        converter.register_structure_hook(kind, _strict(kind, noun))
    converter.register_structure_hook_func(
        lambda kind: getattr(kind, "__origin__", None) is tuple, _strict_tuple
    )
    for cause, tag in _CAUSE_TYPES.items():
        converter.register_unstructure_hook(cause, _tagged(converter, cause, tag))
    return converter


def _tagged(converter: cattrs.Converter, kind: type, tag: str) -> Any:  # noqa: ANN401
    plain: Any = make_dict_unstructure_fn(kind, converter)
    return lambda value: {"type": tag, **plain(value)}


CONVERTER: Final = _make_converter()
_CAUSES: Final[dict[str, type[Any]]] = {tag: cause for cause, tag in _CAUSE_TYPES.items()}


def structure(values: dict[str, Any], kind: type[T]) -> T:
    """`values` as a `kind`; null counts as absent.

    Raises:
        BadRequest: A field is missing or wrong; the message names it.
    """
    present = {key: value for key, value in values.items() if value is not None}
    try:
        return CONVERTER.structure(present, kind)
    except Exception as exc:  # noqa: BLE001 - cattrs raises whatever its hooks met
        lines = [_short(line) for line in _reasons(exc)]
        raise BadRequest("; ".join(lines)) from None


def _reasons(exc: Exception) -> Sequence[str]:
    """One line a wrong field: `limit must be an integer, not a string`."""
    if not isinstance(exc, cattrs.BaseValidationError):
        return [str(exc)]
    lines = []
    groups = exc.group_exceptions()[0] if isinstance(exc, cattrs.ClassValidationError) else []
    for inner, note in groups:
        if isinstance(inner, KeyError):
            lines.append(f"{note.name} is missing")
        else:
            lines.extend(f"{note.name} {line}" for line in _reasons(inner))
    return lines or [str(exc)]


def check_cause(cause: work.RunCause) -> None:
    """Refuse a cause that could not be read back as it is.

    Raises:
        BadRequest: A field is wrong; the message names it.
    """
    kind = type(cause)
    if kind not in _CAUSE_TYPES:
        raise BadRequest(f"cause must be one of the run causes, not {kind.__name__}")
    try:
        values = loads(dumps(attrs.asdict(cause)))
    except (TypeError, ValueError) as exc:
        raise BadRequest(f"cause holds what JSON does not have: {exc}") from None
    structure(values, kind)


def cause_from_json(text: str) -> work.RunCause:
    """A cause as it was stored.

    Raises:
        BadRequest: It is not one.
    """
    values = loads(text)
    kind = _CAUSES.get(str(values.get("type"))) if isinstance(values, dict) else None
    if kind is None:
        raise BadRequest("type is not that of a run cause")
    cause: work.RunCause = structure(values, kind)
    return cause
