"""From events to messages: one block a step of the model, one block a word to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from klbr_trio.domain.events import Event
from klbr_trio.models import Assistant, Message, PastCall, ToolResult, User
from klbr_trio.sessions.prompt import causes, names, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@attrs.frozen
class Block:
    """Messages that stay together or are left out together.

    Attributes:
        attempt_id: The attempt whose reasons to run these are, else None.
        items: The work items whose inputs these are.
    """

    messages: tuple[Message, ...]
    attempt_id: str | None = None
    items: frozenset[str] = frozenset()

    def is_needed(self, attempt_id: str, owed: frozenset[str]) -> bool:
        """Whether it says why `attempt_id` runs, or holds one of the items that it owes."""
        return self.attempt_id == attempt_id or bool(self.items & owed)


@attrs.define
class _Step:
    """A reply as its events come in."""

    attempt_id: str
    number: int
    opaque: Mapping[str, Any]
    text: str = ""
    calls: dict[str, PastCall] = attrs.field(factory=dict)
    results: dict[str, str] = attrs.field(factory=dict)

    def block(self) -> Block:
        """The reply and one result for each of its calls."""
        text = self.text or ("" if self.calls else "(nothing)")
        reply = Assistant(text, tuple(self.calls.values()), self.opaque.get("reply"))
        results = (
            ToolResult(
                call.provider_id,
                self.results.get(call_id, "[error] no result is known; it may have run"),
            )
            for call_id, call in self.calls.items()
        )
        return Block((reply, *results))


def render(events: Iterable[Event], inputs: Mapping[str, Event]) -> list[Block]:
    """The blocks of these events, in order.

    Args:
        events: A part of a session's log, without gaps, up to its head.
        inputs: The `input.admitted` of each work item that the part names.
    """
    renderer = _Renderer(inputs)
    for event in events:
        renderer.take(event)
    return renderer.finish()


@attrs.define
class _Renderer:
    inputs: Mapping[str, Event]
    blocks: list[Block] = attrs.field(factory=list)
    step: _Step | None = None
    notes: list[str] = attrs.field(factory=list)
    shown: set[str] = attrs.field(factory=set)
    held: frozenset[str] = frozenset()
    reason: str | None = None
    cells: list[str] = attrs.field(factory=list)
    """What the living kernel was asked to run."""
    woken: dict[int, tuple[int, str | None]] = attrs.field(factory=dict)

    def take(self, event: Event) -> None:
        """The next event."""
        arm = _ARMS.get(event.kind)
        if arm is not None:
            arm(self, event.payload)

    def reply(self, payload: Mapping[str, Any]) -> None:
        self._end_step(nudged=True)
        self._flush()
        self.step = _Step(payload["attempt_id"], payload["step"], payload["opaque"] or {})

    def finished(self, payload: Mapping[str, Any]) -> None:
        if self.step is not None and payload["call_id"] in self.step.calls:
            self.step.results[payload["call_id"]] = words.result(payload)

    def completed(self, _: Mapping[str, Any]) -> None:
        self._end_step()

    def failed(self, payload: Mapping[str, Any]) -> None:
        self._end_step()
        self.notes.append(words.failed(payload))

    def interrupted(self, payload: Mapping[str, Any]) -> None:
        self._end_step()
        goes_on = payload["why"] != "stopped" and not self.held <= set(payload["failed"])
        self.notes.append(words.interrupted(payload, goes_on=goes_on or not self.held))

    def reopened(self, _: Mapping[str, Any]) -> None:
        self.notes.append(words.reopened(self._forget()))

    def kernel_reset(self, payload: Mapping[str, Any]) -> None:
        self.notes.append(words.kernel_reset(payload, self._forget()))

    def _forget(self) -> tuple[str, ...]:
        """The names that are gone with the kernel."""
        cells, self.cells = self.cells, []
        return names.made_by(cells)

    def waiting(self, payload: Mapping[str, Any]) -> None:
        self.reason = payload["reason"]

    def woken_up(self, payload: Mapping[str, Any]) -> None:
        self.woken[payload["wake_at_ms"]] = (payload["late_ms"], self.reason)

    def finish(self) -> list[Block]:
        """All blocks; what the model is to hear next is the last."""
        self._end_step(nudged=True)
        self._flush()
        return self.blocks

    def started(self, payload: Mapping[str, Any]) -> None:
        self._end_step()
        self.held = frozenset(payload["work_items"])
        new = [item_id for item_id in payload["work_items"] if item_id not in self.shown]
        self.shown.update(new)
        for item_id in new:
            event = self.inputs.get(item_id)
            if event is not None:
                said = event.payload
                self.notes.append(words.an_input(said["source"], said["text"], event.created_ms))
        self.notes += causes.notes(payload, self.woken)
        if not self.notes:
            self.notes.append(words.GO_ON)
        self._flush(payload["attempt_id"], frozenset(new))

    def scratchpad(self, payload: Mapping[str, Any]) -> None:
        if "attempt_id" not in payload:
            self.notes.append(words.plain_note(payload["text"]))
        elif self.step is not None:
            self.step.text += payload["text"]

    def requested(self, payload: Mapping[str, Any]) -> None:
        if payload["code"] is not None:
            self.cells.append(payload["code"])
        if self.step is None:
            return
        ids = self.step.opaque.get("calls") or ()
        index = len(self.step.calls)
        provider_id = ids[index] if index < len(ids) else payload["call_id"]
        self.step.calls[payload["call_id"]] = PastCall(
            provider_id, payload["code"], payload.get("raw")
        )

    def _end_step(self, *, nudged: bool = False) -> None:
        """The reply is whole; a reply without a call that did not end its turn was nudged."""
        step, self.step = self.step, None
        if step is None:
            return
        self.blocks.append(step.block())
        if nudged and not step.calls:
            hint = step.opaque.get("hint")
            self.notes.append(words.hint(hint) if hint else words.NUDGE)
        self._flush()

    def _flush(self, attempt_id: str | None = None, items: frozenset[str] = frozenset()) -> None:
        if self.notes:
            self.blocks.append(Block(tuple(map(User, self.notes)), attempt_id, items))
            self.notes = []


_ARMS: Final[Mapping[str, Callable[[_Renderer, Mapping[str, Any]], None]]] = {
    "turn.started": _Renderer.started,
    "reply.received": _Renderer.reply,
    "scratchpad": _Renderer.scratchpad,
    "cell.requested": _Renderer.requested,
    "cell.finished": _Renderer.finished,
    "turn.completed": _Renderer.completed,
    "turn.failed": _Renderer.failed,
    "turn.interrupted": _Renderer.interrupted,
    "kernel.reset": _Renderer.kernel_reset,
    "session.reopened": _Renderer.reopened,
    "session.waiting": _Renderer.waiting,
    "session.woken": _Renderer.woken_up,
}
