"""Good streams, and what becomes of them on the way."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fakes.provider import chunk

if TYPE_CHECKING:
    from random import Random

Chunks: TypeAlias = list[dict[str, Any]]
Mutation: TypeAlias = Callable[[Chunks, "Random"], Chunks]

CODES: Final = ("first = '{}'", "second = [1, '\\\\', \"]\"]")
"""What a good stream asks to run; a part of neither is Python's business."""


def good(rng: Random) -> Chunks:
    """An answer with words, thoughts and two calls, each argument whole in one fragment."""
    chunks = [chunk({"role": "assistant", "content": ""}), chunk({"reasoning_content": "hm"})]
    chunks += [chunk({"content": word}) for word in ("I ", "do 🙂 ", "it.")]
    for index, code in enumerate(CODES):
        call = {"index": index, "id": f"call_{rng.randrange(3)}{index}", "type": "function"}
        whole = {"name": "python", "arguments": json.dumps({"code": code})}
        if rng.random() < 0.5:
            chunks.append(chunk({"tool_calls": [{**call, "function": whole}]}))
        else:
            named = {"name": "python", "arguments": ""}
            chunks.append(chunk({"tool_calls": [{**call, "function": named}]}))
            rest = {"arguments": whole["arguments"]}
            chunks.append(chunk({"tool_calls": [{"index": index, "function": rest}]}))
    chunks.append(chunk(finish="tool_calls", usage={"total_tokens": 3}))
    return chunks


def mutated(rng: Random) -> Chunks:
    """A good stream after one to four accidents."""
    chunks = good(rng)
    for mutation in rng.choices(_MUTATIONS, k=rng.randint(1, 4)):
        chunks = mutation(chunks, rng)
    return chunks


def calls_anything(chunks: Chunks) -> bool:
    """Whether a chunk still names a call or brings arguments for one."""
    return any(_is_call(fragment) for each in chunks for fragment in _fragments(each))


def _is_call(fragment: object) -> bool:
    if not isinstance(fragment, dict):
        return False
    function = fragment.get("function")
    held = function if isinstance(function, dict) else {}
    return bool(fragment.get("id") or held.get("name") or held.get("arguments"))


def _fragments(body: dict[str, Any]) -> list[Any]:
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    delta = choice.get("delta") if isinstance(choice, dict) else None
    calls = delta.get("tool_calls") if isinstance(delta, dict) else None
    return calls if isinstance(calls, list) else []


def _cut(chunks: Chunks, rng: Random) -> Chunks:
    return chunks[: rng.randint(0, len(chunks))]


def _lose(chunks: Chunks, rng: Random) -> Chunks:
    at = rng.randint(0, len(chunks))
    return chunks[:at] + chunks[at + 1 :]


def _repeat(chunks: Chunks, rng: Random) -> Chunks:
    at = rng.randint(0, len(chunks))
    return chunks[: at + 1] + chunks[at:]


def _shuffle(chunks: Chunks, rng: Random) -> Chunks:
    return rng.sample(chunks, len(chunks))


def _empty_a_field(chunks: Chunks, rng: Random) -> Chunks:
    if not chunks:
        return chunks
    changed = copy.deepcopy(chunks)
    holder = rng.choice(_objects(rng.choice(changed)))
    if holder:
        holder[rng.choice(sorted(holder))] = rng.choice([None, "", [], {}, 0, "null"])
    return changed


def _objects(value: object) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(found for each in value.values() for found in _objects(each))]
    if isinstance(value, list):
        return [found for each in value for found in _objects(each)]
    return []


_MUTATIONS: Final[tuple[Mutation, ...]] = (_cut, _lose, _repeat, _shuffle, _empty_a_field)
