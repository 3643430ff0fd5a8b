"""What becomes of one input, read from its session's log.

An input is claimed by an attempt; one that is interrupted gives it back, and a later one
claims it again; one that fails leaves one repair. The input's story ends with the first
attempt that completes, with the repair's failure, or with the operator's Stop.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs


class Ending(enum.Enum):
    """How an input's story ends."""

    COMPLETED = "completed"
    FAILED = "failed"  # its turn and the repair failed, or it was broken off too often
    STOPPED = "stopped"  # the operator stopped the session while it was answered
    HELD = "held"  # the session is stopped; the input runs after a reset


@attrs.define(eq=False)
class Awaited:
    """One input and what is known of it.

    Attributes:
        seq: The input's number in its session.
        speech: What was said in answer to it.
        failure: The `turn.failed` of its last attempt that failed.
        ending: None while it goes on.
    """

    seq: int
    speech: list[str] = attrs.field(factory=list)
    failure: Mapping[str, Any] | None = None
    ending: Ending | None = None
    _attempt: str | None = None
    _item: str | None = None
    _is_session_stopped: bool = False

    def take(self, record: Mapping[str, Any]) -> str | None:
        """The session's next event; what it says in answer to the input, if it is speech."""
        kind, payload = record["kind"], record["payload"]
        match kind:
            case "turn.started":
                self._start(payload)
            case "session.stopped":
                self._is_session_stopped = True
                if self._attempt is None and self.failure is not None:
                    self.ending = Ending.STOPPED  # its repair is cancelled
            case "session.reopened":
                self._is_session_stopped = False
            case _ if self._attempt is not None and payload.get("attempt_id") == self._attempt:
                return self._take_own(kind, payload)
            case _:
                pass
        return None

    def caught_up(self) -> None:
        """Everything up to now is known: what waits, waits."""
        if self._is_session_stopped and self.ending is None:
            self.ending = Ending.HELD

    def _start(self, payload: Mapping[str, Any]) -> None:
        causes, items = payload["causes"], payload["work_items"]
        # A recovery that only tells the agent of a crash has no work item of its own.
        for cause, item in zip(causes[len(causes) - len(items) :], items, strict=True):
            if self._is_ours(cause):
                self._attempt, self._item = payload["attempt_id"], item

    def _is_ours(self, cause: Mapping[str, Any]) -> bool:
        if self.failure is None:
            return bool(cause["type"] == "input_ready" and cause["seq"] == self.seq)
        return bool(cause["type"] == "repair" and cause["of"] == self.failure["attempt_id"])

    def _take_own(self, kind: str, payload: Mapping[str, Any]) -> str | None:
        match kind:
            case "local.sent":
                self.speech.append(payload["text"])
                return self.speech[-1]
            case "turn.completed":
                self.ending = Ending.COMPLETED
            case "turn.failed":
                if self.failure is not None:
                    self.ending = Ending.FAILED
                self.failure, self._attempt = payload, None
            case "turn.interrupted":
                self._attempt = None
                if payload["why"] == "stopped":
                    self.ending = Ending.STOPPED
                elif self._item in payload["failed"]:
                    self.ending = Ending.FAILED
            case _:
                pass
        return None
