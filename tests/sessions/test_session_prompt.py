"""What the model reads, word by word, for small histories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from histories import NOW_MS, SID, History, open_history

from klbr_trio.domain.events import CellFinished, CellRequested, LocalSent, ReplyReceived
from klbr_trio.domain.frontier import Frontier
from klbr_trio.models import Assistant, Message, PastCall, System, ToolResult, User
from klbr_trio.sessions.prompt import Persona, Window, build, length
from klbr_trio.sessions.prompt.words import moment, span
from klbr_trio.store import Failure, Input, Results, WaitFor

if TYPE_CHECKING:
    from pathlib import Path

    from klbr_trio.store import Turn

PERSONA = Persona("Be brief.\n", "You are kind.")
AT = "2027-01-15 08:00:00 UTC"


async def admit(history: History, text: str) -> None:
    await history.store.admit(Input(SID, "operator", text, None))


async def claim(history: History, name: str) -> Turn:
    turn = await history.store.claim_turn(SID, attempt_id=name, release="r", model="m")
    assert turn is not None
    return turn


async def reply(
    history: History, turn: Turn, step: int, text: str, *codes: str, hint: str | None = None
) -> None:
    ids = [f"{turn.attempt_id}-{step}-{n}" for n in range(len(codes))]
    await history.store.reply(
        turn,
        ReplyReceived(
            turn.attempt_id, step, "m", "stop", None,
            {"reply": {}, "calls": [f"call_{n}" for n in range(len(codes))], "hint": hint},
        ),
        scratchpad=text,
        calls=[
            CellRequested(turn.attempt_id, step, call_id, code=code)
            for call_id, code in zip(ids, codes, strict=True)
        ],
        refused=[],
    )  # fmt: skip


def finished(turn: Turn, step: int, n: int = 0, **told: str | None) -> Results:
    fields = {"output": "", "value": None, "error": None, **told}
    return Results(
        (
            CellFinished(
                turn.attempt_id, step, f"{turn.attempt_id}-{step}-{n}",
                ok=fields["error"] is None, output=fields["output"] or "", value=fields["value"],
                error=fields["error"], truncated=False, duration_ms=1,
            ),
        )
    )  # fmt: skip


async def prompt(history: History, turn: Turn, budget: int = 100_000) -> tuple[Message, ...]:
    window = await Window.read(
        history.store, SID, budget_chars=budget, started_seq=turn.started_seq
    )
    return build(window, PERSONA, budget_chars=budget, attempt_id=turn.attempt_id)


async def test_a_small_history_word_by_word(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        store = history.store
        await admit(history, "What is 6 × 7?")
        one = await claim(history, "one")
        await reply(history, one, 1, "I compute it.", "6 * 7", "1 / 0")
        await store.result(one, finished(one, 1, 0, output="thinking\n", value="42"))
        await store.result(one, finished(one, 1, 1, error="ZeroDivisionError: division by zero"))
        await reply(history, one, 2, "", "await local.send('42')")
        said = LocalSent("42", "one", 2, "one-2-0")
        await store.say(one, said, hook_epoch=1)
        await store.complete(
            one, outcome="waiting", wait=WaitFor(NOW_MS + 60_000, "see if there is more."),
            results=finished(one, 2), usage=None,
        )  # fmt: skip
        await store.wake_due(NOW_MS + 3 * 60_000)
        two = await claim(history, "two")
        await store.fail(
            two, Failure("provider_unavailable", "nobody answers.", retryable=True),
            results=Results(),
        )  # fmt: skip
        await admit(history, "Are you there?")
        three = await claim(history, "three")
        assert await prompt(history, three) == (
            System("Be brief.\n\nYou are kind."),
            User(f"[input from operator, {AT}]\nWhat is 6 × 7?"),
            Assistant(
                "I compute it.", (PastCall("call_0", "6 * 7"), PastCall("call_1", "1 / 0")), {}
            ),
            ToolResult("call_0", "thinking\n=> 42"),
            ToolResult("call_1", "[error] ZeroDivisionError: division by zero"),
            Assistant("", (PastCall("call_0", "await local.send('42')"),), {}),
            ToolResult("call_0", "(no output)"),
            User(
                "[note: you are awake: the wake time you set, 2027-01-15 08:01:00 UTC, has come, "
                "2.0 minutes late. Your reason: see if there is more.]\n\n"
                "[note: the turn above failed (provider_unavailable): nobody answers. "
                "It is not repeated by itself; what you still owe somebody from it, do now.]\n\n"
                f"[input from operator, {AT}]\nAre you there?"
            ),
        )


async def test_what_broke_off_is_told_by_its_cause(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        store = history.store
        await admit(history, "Tidy up.")
        turn = await claim(history, "first")
        await reply(history, turn, 1, "", "tidy()", "report()")
        await store.interrupt(SID, "first", why="shutdown")
        turn = await claim(history, "second")
        messages = await prompt(history, turn)
        assert messages[2:] == (
            Assistant("", (PastCall("call_0", "tidy()"), PastCall("call_1", "report()")), {}),
            ToolResult(
                "call_0",
                "[error] the service was shut down; the code may have run, in part or whole; "
                "known: it sent nothing",
            ),
            ToolResult("call_1", "[error] not run: the service was shut down"),
            User(
                "[note: the turn above was broken off: the service was shut down. What it was for "
                "is still to be done: look at what was done already, then go on.]"
            ),
        )
        await store.stop(SID)
        await store.reset(SID)
        await admit(history, "Never mind.")
        messages = await prompt(history, await claim(history, "third"))
        last = messages[-1]
        assert isinstance(last, User)
        assert last.text.split("\n\n")[1:] == [
            (
                "[note: the turn above was broken off: the operator stopped the session. "
                "What it was for is cancelled.]"
            ),
            (
                "[note: here the operator stopped the session, and later reopened it. Your Python "
                "kernel is a fresh one: every variable, import and running task is gone; files in the "
                "working directory remain. No wake time is set.]"
            ),
            f"[input from operator, {AT}]\nNever mind.",
        ]


async def test_a_reply_without_a_call_is_answered_by_what_is_known_of_it(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        await admit(history, "Hello?")
        turn = await claim(history, "one")
        await reply(history, turn, 1, "", hint="no call arrived")
        messages = await prompt(history, turn)
        assert messages[2:] == (Assistant("(nothing)", (), {}), User("[note: no call arrived]"))
        await reply(history, turn, 2, "Hello!")
        messages = await prompt(history, turn)
        assert isinstance(messages[-1], User)
        assert messages[-1].text.startswith("[note: nobody has heard anything from you in this")


async def test_a_fold_stands_for_what_is_below_it(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        await admit(history, "old business")
        turn = await claim(history, "one")
        await reply(history, turn, 1, "done with it")
        await history.store.complete(
            turn, outcome="replied", wait=None, results=Results(), usage=None
        )
        await admit(history, "below the fold, not yet seen")
        head = history.store.head(SID)
        await history.store.install_frontier(SID, Frontier(1, head, "We did old business.", "test"))
        messages = await prompt(history, await claim(history, "two"))
        assert messages[1:] == (
            User(
                f"[summary of everything up to record {head}]\nWe did old business.\n\n"
                f"[input from operator, {AT}]\nbelow the fold, not yet seen"
            ),
        )


async def test_over_budget_the_oldest_go_and_what_is_owed_stays(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        await admit(history, "THE TASK " + "t" * 3_000)
        turn = await claim(history, "one")
        for step in range(1, 13):
            await reply(history, turn, step, f"thought {step}. " + "x" * 300, f"work({step})")
            await history.store.result(turn, finished(turn, step, output=f"worked {step}"))
        await history.store.interrupt(SID, "one", why="aborted")
        turn = await claim(history, "two")
        window = await Window.read(
            history.store, SID, budget_chars=5_000, started_seq=turn.started_seq
        )
        assert window.left_out == 0, "the whole log is there to choose from"
        messages = await prompt(history, turn, 5_000)
        text = str(messages)
        assert length(messages) <= 5_000
        assert "THE TASK" in text
        assert "characters left out" in text
        assert "earlier parts of this conversation are left out here" in text
        assert "thought 12." in text
        assert "thought 1." not in text
        assert "it was aborted" in text
        whole = await prompt(history, turn, 100_000)
        assert "left out" not in str(whole)


async def test_what_a_provider_wants_back_counts_and_goes_first(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        await admit(history, "Think.")
        turn = await claim(history, "one")
        thought = {"reasoning": {"field": "reasoning_content", "text": "r" * 6_000}}
        await history.store.reply(
            turn,
            ReplyReceived("one", 1, "m", "stop", None, {"reply": thought, "calls": [], "hint": None}),
            scratchpad="short", calls=[], refused=[],
        )  # fmt: skip
        assert length(await prompt(history, turn)) > 6_000
        tight = await prompt(history, turn, 4_000)
        assert length(tight) <= 4_000
        assert tight[2] == Assistant("short", (), None)


def test_times_and_spans_are_readable_whatever_they_are() -> None:
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(-1) == "1969-12-31 23:59:59 UTC"
    assert moment(2**53) == f"{2**53} ms after 1970"
    assert span(1500) == "1.5 s"
    assert span(150_000) == "2.5 minutes"
    assert span(3 * 3_600_000) == "3.0 hours"
    assert span(3 * 86_400_000) == "3.0 days"
