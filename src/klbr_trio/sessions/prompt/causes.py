"""Why a turn runs, as the log says it, and as the model is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klbr_trio.sessions.prompt import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klbr_trio.domain.events import Event


def owed_items(events: Iterable[Event], attempt_id: str) -> frozenset[str]:
    """The work items that the attempt answers to: its own, and those that it is to make good."""
    started: dict[str, Mapping[str, Any]] = {
        event.payload["attempt_id"]: event.payload
        for event in events
        if event.kind == "turn.started"
    }
    own = started.get(attempt_id)
    if own is None:
        return frozenset()
    repaired = [
        started[cause["of"]]
        for cause in own["causes"]
        if cause["type"] == "repair" and cause["of"] in started
    ]
    return frozenset(item for turn in (own, *repaired) for item in turn["work_items"])


def notes(payload: Mapping[str, Any], woken: Mapping[int, tuple[int, str | None]]) -> Iterable[str]:
    """What the model is told of the causes of a `turn.started`.

    Inputs are shown as such; of a repair's failure and of a broken-off attempt that runs
    again, a note stands just before.

    Args:
        payload: The event's payload.
        woken: Of each wake, by its time: how late it was, and what it was for.
    """
    causes = payload["causes"]
    # A cause in front that no item stands for only says that a crash came before.
    for cause in causes[len(causes) - len(payload["work_items"]) :]:
        match cause["type"]:
            case "deadline_wake":
                yield words.woken(
                    cause["wake_at_ms"], *woken.get(cause["wake_at_ms"], (None, None))
                )
            case "maintenance_ready":
                yield words.maintenance(cause["item_id"], cause["purpose"])
            case "recovery":
                yield words.RECOVERY
            case _:
                pass
