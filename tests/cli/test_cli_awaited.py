from __future__ import annotations

from typing import Any

from klbr_trio.cli.awaited import Awaited, Ending


def event(kind: str, **payload: Any) -> dict[str, Any]:
    return {"kind": kind, "payload": payload}


def started(attempt_id: str, *causes: dict[str, Any], told: bool = False) -> dict[str, Any]:
    items = [f"work-{number}" for number in range(len(causes))]
    recovery = [{"type": "recovery", "attempt_id": "gone"}] if told else []
    return event(
        "turn.started", attempt_id=attempt_id, causes=[*recovery, *causes], work_items=items
    )


def ready(seq: int) -> dict[str, Any]:
    return {"type": "input_ready", "seq": seq}


def repair(of: str) -> dict[str, Any]:
    return {"type": "repair", "of": of}


def sent(attempt_id: str, text: str) -> dict[str, Any]:
    return event("local.sent", attempt_id=attempt_id, text=text)


def failed(attempt_id: str) -> dict[str, Any]:
    return event("turn.failed", attempt_id=attempt_id, code="internal", message="m")


def interrupted(attempt_id: str, why: str, *items: str) -> dict[str, Any]:
    return event("turn.interrupted", attempt_id=attempt_id, why=why, failed=list(items))


def completed(attempt_id: str) -> dict[str, Any]:
    return event("turn.completed", attempt_id=attempt_id, outcome="done")


def told(*events: dict[str, Any], seq: int = 5) -> tuple[Awaited, list[str]]:
    awaited = Awaited(seq)
    said = [text for one in events if (text := awaited.take(one)) is not None]
    return awaited, said


def test_only_the_words_of_its_own_attempt_answer_it() -> None:
    awaited, said = told(
        sent("earlier", "to somebody else"),
        completed("earlier"),
        started("a", ready(4), ready(5)),
        sent("a", "one"),
        sent("a", "two"),
        completed("a"),
    )
    assert (awaited.ending, said) == (Ending.COMPLETED, ["one", "two"])


def test_a_crash_gives_it_back_and_a_later_attempt_answers() -> None:
    awaited, said = told(
        started("a", ready(5)),
        sent("a", "half"),
        interrupted("a", "crash"),
        started("b", ready(9)),
        completed("b"),
        started("c", ready(5), told=True),
        sent("c", "whole"),
        completed("c"),
    )
    assert (awaited.ending, said) == (Ending.COMPLETED, ["half", "whole"])


def test_its_repair_may_save_it() -> None:
    awaited, said = told(
        started("a", ready(5)), failed("a"), started("r", repair("a")), sent("r", "after all"),
        completed("r"),
    )  # fmt: skip
    assert (awaited.ending, said) == (Ending.COMPLETED, ["after all"])


def test_a_failed_repair_is_the_end() -> None:
    first = (started("a", ready(5)), failed("a"))
    other = (started("other", repair("somebody else's")), failed("other"))
    assert told(*first, *other)[0].ending is None
    awaited, _ = told(*first, *other, started("r", repair("a")), failed("r"))
    assert awaited.ending is Ending.FAILED
    assert awaited.failure is not None
    assert awaited.failure["attempt_id"] == "r"


def test_broken_off_too_often_is_a_failure_of_that_item_only() -> None:
    awaited, _ = told(
        started("a", ready(4), ready(5), told=True), interrupted("a", "crash", "work-0")
    )
    assert awaited.ending is None
    awaited, _ = told(
        started("a", ready(4), ready(5), told=True), interrupted("a", "crash", "work-1")
    )
    assert awaited.ending is Ending.FAILED


def test_stop_ends_what_it_held() -> None:
    awaited, _ = told(started("a", ready(5)), interrupted("a", "stopped"), event("session.stopped"))
    assert awaited.ending is Ending.STOPPED


def test_stop_cancels_a_waiting_repair() -> None:
    awaited, _ = told(started("a", ready(5)), failed("a"), event("session.stopped"))
    assert awaited.ending is Ending.STOPPED


def test_stop_holds_what_nobody_had_claimed_and_a_reset_lets_it_go_on() -> None:
    assert told(event("session.stopped"))[0].ending is None, "a reset may follow in the log"
    awaited, _ = told(event("session.stopped"))
    awaited.caught_up()
    assert awaited.ending is Ending.HELD
    awaited, _ = told(
        event("session.stopped"),
        event("session.reopened"),
        started("a", ready(5)),
        completed("a"),
    )
    awaited.caught_up()
    assert awaited.ending is Ending.COMPLETED
