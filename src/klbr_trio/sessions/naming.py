"""A reply as the log takes it: its calls named, its texts bounded, what can't run set apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from klbr_trio.domain.events import CellFinished, CellRequested, ReplyReceived
from klbr_trio.domain.text import TEXT_BYTES, clean, cut, cut_note, json_bytes
from klbr_trio.wire.codec import dumps, is_deeper

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klbr_trio.models import Reply, ToolCall

OPAQUE_BYTES: Final = 512 * 1024
"""What a provider may have us send back; more would not fit a frame beside the rest."""

OPAQUE_LEVELS: Final = 48
"""How deep that may be nested: below what an event may be."""

ID_CHARS: Final = 200
"""The longest call id that is kept as it came."""


@attrs.frozen
class Named:
    """One reply, ready to be committed.

    Attributes:
        refused: The results of the calls that can't run.
    """

    received: ReplyReceived
    calls: tuple[CellRequested, ...]
    refused: tuple[CellFinished, ...]


@attrs.define(eq=False)
class Naming:
    """Names the calls of one attempt: each call id is the provider's, unless it was seen before."""

    attempt_id: str
    _seen: set[str] = attrs.field(factory=set)

    def name(self, reply: Reply, step: int) -> Named:
        """The reply's events."""
        calls: list[CellRequested] = []
        refused: list[CellFinished] = []
        provider_ids: list[str] = []
        for call in reply.calls:
            call_id = self._fresh(call.provider_id)
            fits = len(call.provider_id) <= ID_CHARS
            provider_ids.append(call.provider_id if fits else call_id)
            code, raw, error = _judged(call)
            asked = CellRequested(self.attempt_id, step, call_id, code=code, raw=raw)
            calls.append(asked)
            if error is not None:
                refused.append(not_run(asked, error, duration_ms=0))
        received = ReplyReceived(
            self.attempt_id,
            step,
            reply.model,
            cut_note(reply.finish),
            reply.usage,
            _opaque(reply, provider_ids),
        )
        return Named(received, tuple(calls), tuple(refused))

    def _fresh(self, provider_id: str) -> str:
        wanted = clean(provider_id[:ID_CHARS])
        call_id, n = wanted, 2
        while call_id in self._seen:
            call_id, n = f"{wanted}~{n}", n + 1
        self._seen.add(call_id)
        return call_id


def not_run(call: CellRequested, error: str, *, duration_ms: int | None = None) -> CellFinished:
    """The result of a call that did not run."""
    return CellFinished(
        call.attempt_id, call.step, call.call_id, ok=False, output="", value=None, error=error,
        truncated=False, duration_ms=duration_ms,
    )  # fmt: skip


def _judged(call: ToolCall) -> tuple[str | None, str | None, str | None]:
    """Its code; or what came instead, and why it can't run."""
    if call.code is None:
        return None, call.raw or "", call.error or "the call can't run"
    code = clean(call.code)
    size = json_bytes(code)
    if size > TEXT_BYTES:
        return None, cut(code), f"the code has {size} bytes of at most {TEXT_BYTES}; nothing ran"
    return code, None, None


def _opaque(reply: Reply, provider_ids: list[str]) -> dict[str, Any]:
    """What the log keeps of a reply for the provider's sake, besides its text and code."""
    held = dict(reply.opaque)
    return {
        "reply": held if _can_be_kept(held) else {},
        "calls": provider_ids,
        "hint": reply.hint,
    }


def _can_be_kept(held: Mapping[str, object]) -> bool:
    try:
        text = dumps(held)
    except (ValueError, RecursionError):
        return False
    return len(clean(text).encode()) <= OPAQUE_BYTES and not is_deeper(held, OPAQUE_LEVELS)
