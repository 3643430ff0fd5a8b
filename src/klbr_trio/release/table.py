"""One TOML table, read key by key and strictly.

`close()` refuses what nobody asked for, so a reader is also the list of the keys
that exist. TOML's types are kept apart: `true` is no number, `"3"` neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

import attrs

from klbr_trio.errors import ReleaseRefused

_MAX_NAME: Final = 64
_MAX_WHOLE: Final = 2**53
_MAX_SHOWN: Final = 80

E = TypeVar("E", bound=Enum)


@attrs.define(eq=False)
class Table:
    """A TOML table of which every key must be asked for."""

    _content: Mapping[str, object]
    _path: str = attrs.field(kw_only=True)
    _prefix: str = attrs.field(default="", kw_only=True)
    _asked: set[str] = attrs.field(factory=set, init=False)

    def text(self, key: str, *, default: str) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def line(self, key: str, *, default: str) -> str:
        """A short name on one line."""
        value = self.text(key, default=default)
        if not value.strip() or len(value) > _MAX_NAME or not value.isprintable():
            raise self._wrong(key, value, f"one line of 1 to {_MAX_NAME} characters")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Either true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def whole(self, key: str, *, default: int, least: int) -> int:
        """A whole number of at least `least`."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, value, f"a whole number of at least {least}")
        if not least <= value <= _MAX_WHOLE:
            raise self._wrong(key, value, f"a whole number of at least {least}")
        return value

    def number(self, key: str, *, default: float, above: bool) -> float:
        """A finite number, above 0 or (without `above`) also 0."""
        wanted = "a number above 0" if above else "0 or a number above it"
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(key, value, wanted)
        # Written so that nan, too, is outside; and an int may be too long for a float.
        if not 0 <= value <= _MAX_WHOLE or (above and value == 0):
            raise self._wrong(key, value, wanted)
        return float(value)

    def choice(self, key: str, *, default: E) -> E:
        """One of the enum's values."""
        value = self._get(key, default.value)
        for member in type(default):
            if member.value == value:
                return member
        raise self._wrong(key, value, " or ".join(f'"{member.value}"' for member in type(default)))

    def table(self, key: str) -> Table:
        """A table below this one; an empty one if it isn't there."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, value, "a table")
        return Table(value, path=self._path, prefix=f"{self._prefix}{key}.")

    def close(self) -> None:
        """Every key was asked for.

        Raises:
            ReleaseRefused: One was not; it names the key and those that exist.
        """
        for key in self._content:
            if key not in self._asked:
                known = ", ".join(sorted(self._asked))
                raise ReleaseRefused(
                    f"{self._path}: {self._prefix}{_shown(key)} is not a setting; remove it,"
                    f" or use one of: {known}"
                )

    def _get(self, key: str, default: object) -> object:
        self._asked.add(key)
        return self._content.get(key, default)

    def _wrong(self, key: str, value: object, wanted: str) -> ReleaseRefused:
        return ReleaseRefused(
            f"{self._path}: {self._prefix}{key} must be {wanted}, not {ascii(value)[:_MAX_SHOWN]}"
        )


def _shown(key: str) -> str:
    return (key if key.isprintable() else ascii(key))[:_MAX_SHOWN]
