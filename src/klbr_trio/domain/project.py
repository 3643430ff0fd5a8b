"""What a session's log means: one pure function from its events to its facts.

The store's tables are the log's shadow; `check` compares them with this. The
prompt starts from it. Each arm of `_ARMS` says what one kind of event makes true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.domain.events import Event, Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@attrs.frozen
class Wait:
    """What a session waits for: a time, a receipt, or both.

    Attributes:
        seq: Of its `session.waiting`.
        retry: Set when the wait is a failed wake's next try.
    """

    seq: int
    wake_at_ms: int | None
    receipt: str | None
    reason: str | None
    retry: Retry | None


@attrs.define
class Projection:
    """A session's facts, as its events up to `head_seq` make them.

    Attributes:
        open_calls: Call ids requested and not finished, in order → their step, of the
            open attempt.
        pending_inputs: Seq of each input whose work item is pending or claimed → item id.
        held: Ids of the work items that the open attempt holds.
        recovered_attempt: The attempt that a crash broke off last, until a turn begins.
        kernel_used: Whether a cell may have run since the last new kernel.
    """

    head_seq: int = 0
    stopped: bool = False
    open_attempt: str | None = None
    open_calls: dict[str, int] = attrs.field(factory=dict)
    pending_inputs: dict[int, str] = attrs.field(factory=dict)
    held: tuple[str, ...] = ()
    recovered_attempt: str | None = None
    wait: Wait | None = None
    hook_epoch: int = 1
    fold_epoch: int = 0
    fold_seq: int | None = None
    kernel_used: bool = False

    @property
    def state(self) -> str:
        """The stored state: `ready`, `executing`, `waiting` or `stopped`."""
        if self.stopped:
            return "stopped"
        if self.open_attempt is not None:
            return "executing"
        return "ready" if self.wait is None else "waiting"

    @property
    def wake_at_ms(self) -> int | None:
        """The armed deadline."""
        return None if self.wait is None else self.wait.wake_at_ms

    def apply(self, event: Event) -> None:
        """Take the next event of the log.

        Raises:
            ValueError: Its seq is not the next one.
        """
        if event.seq != self.head_seq + 1:
            raise ValueError(f"seq {event.seq} after {self.head_seq}")
        self.head_seq = event.seq
        arm = _ARMS.get(event.kind)
        if arm is not None:
            arm(self, event)

    def end_items(self) -> None:
        """The open attempt ends, and the inputs that it held with it."""
        held = set(self.held)
        self.pending_inputs = {
            seq: item for seq, item in self.pending_inputs.items() if item not in held
        }
        self._end_attempt()

    def _end_attempt(self) -> None:
        self.open_attempt = None
        self.held = ()
        self.open_calls = {}


def project(events: Iterable[Event]) -> Projection:
    """The facts of a session with these events, which begin at seq 1."""
    facts = Projection()
    for event in events:
        facts.apply(event)
    return facts


def _input_admitted(facts: Projection, event: Event) -> None:
    facts.pending_inputs[event.seq] = event.payload["work_item_id"]


def _turn_started(facts: Projection, event: Event) -> None:
    facts.open_attempt = event.payload["attempt_id"]
    facts.held = tuple(event.payload["work_items"])
    facts.recovered_attempt = None


def _cell_requested(facts: Projection, event: Event) -> None:
    facts.open_calls[event.payload["call_id"]] = event.payload["step"]
    if event.payload["code"] is not None:
        facts.kernel_used = True


def _cell_finished(facts: Projection, event: Event) -> None:
    facts.open_calls.pop(event.payload["call_id"], None)


def _turn_completed(facts: Projection, event: Event) -> None:
    if event.payload["outcome"] == "done":
        facts.wait = None
    if facts.wait is not None:
        # A completed attempt ends a series of retries; its deadline stays armed.
        facts.wait = attrs.evolve(facts.wait, retry=None)
    facts.end_items()


def _turn_failed(facts: Projection, event: Event) -> None:
    del event
    facts.end_items()


def _turn_interrupted(facts: Projection, event: Event) -> None:
    if event.payload["why"] == "stopped":
        facts.end_items()
        return
    if event.payload["why"] == "crash":
        facts.recovered_attempt = event.payload["attempt_id"]
    failed = set(event.payload["failed"])
    facts.held = tuple(item for item in facts.held if item in failed)
    facts.end_items()


def _session_waiting(facts: Projection, event: Event) -> None:
    payload = event.payload
    retry = payload.get("retry")
    facts.wait = Wait(
        event.seq,
        payload["wake_at_ms"],
        payload["receipt"],
        payload["reason"],
        None if retry is None else Retry(retry["of_ms"], retry["n"]),
    )


def _session_woken(facts: Projection, event: Event) -> None:
    del event
    facts.wait = None


def _session_stopped(facts: Projection, event: Event) -> None:
    del event
    facts.wait = None
    facts.stopped = True
    facts.kernel_used = False


def _session_reopened(facts: Projection, event: Event) -> None:
    facts.stopped = False
    facts.hook_epoch = event.payload["hook_epoch"]
    facts.kernel_used = False


def _kernel_reset(facts: Projection, event: Event) -> None:
    facts.hook_epoch = event.payload["hook_epoch"]
    facts.kernel_used = bool(facts.open_calls)  # the calls that are left run in the new one


def _frontier_installed(facts: Projection, event: Event) -> None:
    facts.fold_epoch = event.payload["epoch"]
    facts.fold_seq = event.payload["drained_through_seq"]


_ARMS: Final[Mapping[str, Callable[[Projection, Event], None]]] = {
    "input.admitted": _input_admitted,
    "turn.started": _turn_started,
    "cell.requested": _cell_requested,
    "cell.finished": _cell_finished,
    "turn.completed": _turn_completed,
    "turn.failed": _turn_failed,
    "turn.interrupted": _turn_interrupted,
    "session.waiting": _session_waiting,
    "session.woken": _session_woken,
    "session.stopped": _session_stopped,
    "session.reopened": _session_reopened,
    "kernel.reset": _kernel_reset,
    "frontier.installed": _frontier_installed,
}
