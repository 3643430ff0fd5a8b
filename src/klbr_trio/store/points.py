"""The commit points: every durable step, what it makes true, and what a crash beside it means.

One list, from which the documentation's table, the fault points (`on_commit`) and
the crash tests are made.
"""

from __future__ import annotations

import enum

import attrs


@attrs.frozen
class Meaning:
    """What one commit point is worth.

    Attributes:
        holds: What is true once it is committed.
        before: What a crash just before it means.
        after: What a crash just after it means.
        fails: What happens when the commit itself fails.
    """

    holds: str
    before: str
    after: str
    fails: str


class CommitPoint(enum.Enum):
    """A durable step; its value's `holds` says what it makes true."""

    OPEN_SESSION = Meaning(
        "the session's row", "no session", "an empty session", "the caller gets the error"
    )
    ADMIT = Meaning(
        "the input's event, its work item and its source key",
        "no ack; the client sends again and is admitted",
        "the client sends again and gets `duplicate`",
        "`busy`; nothing is stored",
    )
    NOTE = Meaning(
        "one event outside attempts", "no event", "the event", "the caller gets the error"
    )
    ADD_WORK = Meaning("one pending work item", "no item", "it runs", "the caller gets the error")
    CLAIM = Meaning(
        "the items belong to the attempt, `turn.started`, the session is executing",
        "the items are pending",
        "recovery interrupts the attempt; the items are pending again",
        "nothing runs; the driver tries again after 1 to 60 s",
    )
    REPLY = Meaning(
        "`reply.received`, `scratchpad`, the `cell.requested`s, and results of calls that can't run",
        "the reply is lost and the model is asked again",
        "the first open call may have run, in part or whole; later ones did not",
        "the attempt stops where it is and is interrupted when writing works again",
    )
    SAY = Meaning(
        "`local.sent`",
        "nothing was said; the cell sees an error or its death",
        "it was said; clients get it by replay, and the call's result names it",
        "the cell gets the error; nothing was said",
    )
    RESULT = Meaning("`cell.finished`", "as after reply", "the next step goes on", "as reply")
    CLOSE = Meaning(
        "the last results, the items' ends, a repair, the deadline, the state, the closing event",
        "as after result",
        "the turn is over; nothing that was published lived in memory alone",
        "as reply",
    )
    INTERRUPT = Meaning(
        "`turn.interrupted`, open calls finished, the items pending again",
        "recovery does it",
        "the items run again",
        "recovery does it",
    )
    WAKE = Meaning(
        "the deadline is gone, `session.woken`, a pending DeadlineWake item",
        "still armed",
        "the item runs, once",
        "still armed; tried again",
    )
    ARM = Meaning("`session.waiting` and its deadline", "not armed", "armed", "the caller gets it")
    STOP = Meaning(
        "the attempt interrupted, what is no input cancelled, no deadline, `session.stopped`",
        "not stopped, not acknowledged",
        "stopped; its kernel dies with the service",
        "killed all the same, `success: false`",
    )
    REOPEN = Meaning(
        "`session.reopened`; the session is ready", "still stopped", "ready", "still stopped"
    )
    RESET = Meaning(
        "`kernel.reset`; calls of the old kernel are refused from here on",
        "the old kernel dies with the service",
        "the next cell has a fresh kernel",
        "the old kernel stays, `success: false`",
    )
    FOLD = Meaning(
        "`frontier.installed` and the frontier", "the old window", "the new window",
        "the caller gets the error",
    )  # fmt: skip
    RECOVERED = Meaning(
        "this service has settled what earlier ones left",
        "the next service settles it",
        "nothing is left to settle",
        "tried again at the next start",
    )

    @property
    def label(self) -> str:
        """Its name in `on_commit` and the documentation: `admit`, `open-session` …."""
        return self.name.lower().replace("_", "-")
