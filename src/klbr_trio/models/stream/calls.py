"""Call fragments to calls: which call a fragment belongs to.

1. By its index if it has one, else by its id, else it goes on with the last call.
2. A new id together with a name, after arguments that are complete, starts a new call, whatever
   the index says.
3. Null and empty are absent. Ids and names are set, arguments are appended, objects re-encoded.
4. A whole message is a copy: only what the fragments did not bring is taken from it.

Nothing is judged here: what the gathered arguments are worth is said when the answer is over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from klbr_trio.models.json_text import read_json_values
from klbr_trio.models.stream.chunk import Fields, fields

_KNOWN: Final = frozenset({"index", "id", "type", "function"})
_KNOWN_FUNCTION: Final = frozenset({"name", "arguments"})
_Key: TypeAlias = tuple[str, int]


@attrs.define(eq=False)
class GatheredCall:
    """One call as it stands."""

    id: str = ""
    names: list[str] = attrs.field(factory=list)
    """The names that came, each once, in order."""

    arguments: list[str] = attrs.field(factory=list)
    extra: dict[str, object] = attrs.field(factory=dict)
    """Unknown fields of the call."""

    extra_function: dict[str, object] = attrs.field(factory=dict)
    """Unknown fields of its function."""

    @property
    def text(self) -> str:
        """The arguments so far."""
        return "".join(self.arguments)

    @property
    def is_ghost(self) -> bool:
        """Whether nothing at all came for it but an index."""
        return not (self.id or self.names or self.text.strip())


@attrs.frozen
class _Fragment:
    """One fragment, with what is absent left out."""

    index: int | None
    id: str
    name: str
    arguments: str
    extra: Mapping[str, object]
    extra_function: Mapping[str, object]


@attrs.define(eq=False)
class CallGatherer:
    """The calls of one answer, in the order in which they began."""

    calls: list[GatheredCall] = attrs.field(factory=list, init=False)
    _by_key: dict[_Key, GatheredCall] = attrs.field(factory=dict, init=False)
    _by_id: dict[str, GatheredCall] = attrs.field(factory=dict, init=False)

    def feed(self, fragments: Sequence[Fields]) -> None:
        """Takes the fragments of one delta."""
        several = len(fragments) > 1
        for position, raw in enumerate(fragments):
            fragment = _read(raw)
            place = position if several else None
            _extend(self._owner(fragment, place), fragment)

    def feed_message(self, fragments: Sequence[Fields]) -> None:
        """Takes from a whole message's calls what the deltas did not bring."""
        streamed = list(self.calls)
        for position, raw in enumerate(fragments):
            fragment = _read(raw)
            call = _streamed(streamed, fragment, position)
            if call is None:
                _extend(self._begin(fragment, None), fragment)
            elif not is_complete(call.text):
                call.arguments[:] = [fragment.arguments]
                _extend(call, attrs.evolve(fragment, arguments=""))

    def _owner(self, fragment: _Fragment, position: int | None) -> GatheredCall:
        key = _key(fragment, position)
        call = self._known(fragment, key)
        if call is None or _starts_anew(call, fragment):
            return self._begin(fragment, key)
        return call

    def _known(self, fragment: _Fragment, key: _Key | None) -> GatheredCall | None:
        if key is not None:
            if key in self._by_key:
                return self._by_key[key]
            # an index that only comes later, without a name, belongs to what has begun without one
            continues = not (fragment.id or fragment.name) and self.calls
            if continues and self.calls[-1] not in self._by_key.values():
                self._by_key[key] = self.calls[-1]
                return self.calls[-1]
            return None
        if fragment.id in self._by_id:
            return self._by_id[fragment.id]
        if fragment.id and fragment.name and not _continues(fragment.arguments):
            return None
        return self.calls[-1] if self.calls else None

    def _begin(self, fragment: _Fragment, key: _Key | None) -> GatheredCall:
        call = GatheredCall()
        self.calls.append(call)
        if key is not None:
            self._by_key[key] = call
        if fragment.id:
            self._by_id[fragment.id] = call
        return call


def _read(raw: Fields) -> _Fragment:
    function = raw.get("function")
    # a few servers put name and arguments on the call itself
    inner = function if isinstance(function, dict) else raw
    known = _KNOWN if inner is not raw else _KNOWN | _KNOWN_FUNCTION
    return _Fragment(
        index=_index(raw.get("index")),
        id=_word(raw.get("id")),
        name=_word(inner.get("name")),
        arguments=_arguments(inner.get("arguments")),
        extra=_unknown(raw, known),
        extra_function=_unknown(fields(function), _KNOWN_FUNCTION),
    )


def _index(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _word(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    return value.strip() if isinstance(value, str) else ""


def _arguments(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _unknown(holder: Fields, known: frozenset[str]) -> dict[str, object]:
    return {
        name: value for name, value in holder.items() if name not in known and value is not None
    }


def _key(fragment: _Fragment, position: int | None) -> _Key | None:
    if fragment.index is not None:
        return ("index", fragment.index)
    if position is not None and not fragment.id:
        return ("position", position)
    return None


def _starts_anew(call: GatheredCall, fragment: _Fragment) -> bool:
    if not (fragment.id and fragment.name) or fragment.id == call.id:
        return False
    # to a call that has no id yet, an id that comes without arguments is its own
    return bool(call.id or fragment.arguments) and is_complete(call.text)


def _continues(arguments: str) -> bool:
    """Whether arguments can only be the rest of something."""
    return bool(arguments.strip()) and not arguments.lstrip().startswith(("{", '"{'))


def _extend(call: GatheredCall, fragment: _Fragment) -> None:
    call.id = call.id or fragment.id
    if fragment.name and fragment.name not in call.names:
        call.names.append(fragment.name)
    if fragment.arguments:
        call.arguments.append(fragment.arguments)
    call.extra.update(fragment.extra)
    call.extra_function.update(fragment.extra_function)


def _streamed(calls: list[GatheredCall], fragment: _Fragment, position: int) -> GatheredCall | None:
    for call in calls:
        if fragment.id and call.id == fragment.id:
            return call
    if position < len(calls) and not (fragment.id and calls[position].id):
        return calls[position]
    return None


def is_complete(arguments: str) -> bool:
    """Whether arguments are JSON that needs no more."""
    try:
        values = read_json_values(arguments)
    except ValueError:
        return False
    return bool(values) and any(value not in ({}, None, "") for value in values)
