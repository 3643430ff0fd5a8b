from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from fakes.provider import (
    USAGE,
    Scripted,
    call_fragment,
    call_reply,
    chunk,
    drip,
    hang,
    refuse,
    sse,
    text_reply,
)
from session_lab import DONE, SID, SPEAK, WAIT, FakeClock, client, open_lab, publish

from klbr_trio.domain.session import Ready, Waiting
from klbr_trio.domain.work import Completed, Failed, Pending

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_turn_that_speaks_and_is_done(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(SPEAK.format("hello"), text="I say it.")]) as lab:
        events = await lab.turn("greet me")
        assert [event.kind for event in events] == [
            "input.admitted",
            "turn.started",
            "reply.received",
            "scratchpad",
            "cell.requested",
            "local.sent",
            "cell.finished",
            "turn.completed",
        ]
        started, closed = events[1].payload, events[-1].payload
        assert started["causes"] == [{"type": "input_ready", "seq": 1}]
        assert started["work_items"] == ["work-input-1"]
        assert started["release"] == lab.release.digest
        assert started["model"] == "a-model"
        assert closed == {
            "attempt_id": started["attempt_id"],
            "outcome": "done",
            "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
        }
        assert events[3].payload["text"] == "I say it."
        assert events[5].payload == {
            "text": "hello",
            "attempt_id": started["attempt_id"],
            "step": 1,
            "call_id": "call_1",
        }
        assert await lab.store.pending(SID, 10) == []
        item = await lab.store.get_work_item("work-input-1")
        assert item is not None
        assert item.status == Completed("done")
        assert (await lab.entry()).state == Ready()


async def test_a_turn_that_waits(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_lab(tmp_path, [call_reply(WAIT.format(60, "tea"))], clock=clock) as lab:
        await lab.turn()
        wake_at_ms = clock.time_ms + 60_000
        assert (await lab.entry()).state == Waiting(None, wake_at_ms, "tea")
        assert lab.kinds()[-2:] == ["session.waiting", "turn.completed"]
        assert lab.of("session.waiting") == [
            {"wake_at_ms": wake_at_ms, "reason": "tea", "receipt": None, "retry": None}
        ]
        assert lab.of("turn.completed")[0]["outcome"] == "waiting"


async def test_a_reply_without_a_call_is_nudged_once_and_then_ends_the_turn(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [text_reply("Hello to you.")]) as lab:
        await lab.turn()
        assert lab.of("turn.completed")[0]["outcome"] == "replied"
        assert len(lab.provider.requests) == 2
        assert [one["role"] for one in lab.messages()] == ["system", "user", "assistant", "user"]
        assert "nobody has heard anything" in lab.messages()[-1]["content"]
        assert lab.said() == []


async def test_whoever_has_spoken_is_not_nudged(tmp_path: Path) -> None:
    say = "from klbr import local\nawait local.send('yes')"
    async with open_lab(tmp_path, [call_reply(say), text_reply("That was it.")]) as lab:
        await lab.turn()
        assert len(lab.provider.requests) == 2
        assert lab.of("turn.completed")[0]["outcome"] == "replied"


async def test_a_turn_without_an_input_is_not_nudged(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [text_reply("Nothing to tidy.")]) as lab:
        await lab.maintenance()
        assert await lab.trigger()
        await lab.idle()
        assert len(lab.provider.requests) == 1
        assert "maintenance is due: tidy the notes (item upkeep)" in lab.messages()[-1]["content"]
        item = await lab.store.get_work_item("upkeep")
        assert item is not None
        assert item.status == Completed("replied")


async def test_a_release_without_nudge_and_one_that_speaks_plain_text(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [text_reply("Plain words.")], settings="nudge = false") as lab:
        await lab.turn()
        assert len(lab.provider.requests) == 1
        speaking = publish(tmp_path, 'plain_text = "speak"')
        await lab.admit("again")
        assert await lab.trigger(release=speaking)
        await lab.idle()
        assert lab.said() == ["Plain words."]
        assert lab.of("local.sent")[0]["call_id"] is None
        assert in_last_turn(lab.kinds()) == [
            "turn.started", "reply.received", "scratchpad", "local.sent", "turn.completed",
        ]  # fmt: skip


def in_last_turn(kinds: list[str]) -> list[str]:
    return kinds[len(kinds) - 1 - kinds[::-1].index("turn.started") :]


async def test_a_cell_that_raises_drops_its_wait(tmp_path: Path) -> None:
    raises = WAIT.format(60, "never") + "\n1 / 0"
    async with open_lab(tmp_path, [call_reply(raises), call_reply(DONE)]) as lab:
        await lab.turn()
        assert "session.waiting" not in lab.kinds()
        first, second = lab.of("cell.finished")
        assert not first["ok"]
        assert "ZeroDivisionError" in first["error"]
        assert second["ok"]
        assert "ZeroDivisionError" in lab.messages()[-1]["content"]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("await runtime.wait(seconds=5)\nawait runtime.done()", "done"),
        ("await runtime.done()\nawait runtime.wait(seconds=5)", "waiting"),
        ("await runtime.wait(seconds=9)\nawait runtime.wait(seconds=5)", "waiting"),
    ],
)
async def test_the_last_intention_counts(tmp_path: Path, code: str, outcome: str) -> None:
    clock = FakeClock()
    reply = call_reply(f"from klbr import runtime\n{code}")
    async with open_lab(tmp_path, [reply], clock=clock) as lab:
        await lab.turn()
        assert lab.of("turn.completed")[0]["outcome"] == outcome
        armed = [one["wake_at_ms"] - clock.time_ms for one in lab.of("session.waiting")]
        assert armed == ([5_000] if outcome == "waiting" else [])


async def test_a_cell_may_speak_after_it_said_how_the_turn_ends(tmp_path: Path) -> None:
    code = DONE + "\nfrom klbr import local\nawait local.send('one more thing')"
    async with open_lab(tmp_path, [call_reply(code)]) as lab:
        await lab.turn()
        assert lab.said() == ["one more thing"]
        assert lab.of("turn.completed")[0]["outcome"] == "done"


async def test_calls_after_the_one_that_ends_the_turn_are_not_run(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply("x = 1", DONE, SPEAK.format("never"))]) as lab:
        await lab.turn()
        first, second, third = lab.of("cell.finished")
        assert first["ok"]
        assert second["ok"]
        assert third["error"] == "not run: the turn had ended"
        assert lab.said() == []
        assert lab.kinds()[-3:] == ["cell.finished", "cell.finished", "turn.completed"]


async def test_calls_that_cant_run_are_told_to_the_model(tmp_path: Path) -> None:
    wrong = call_reply("print(1)", name="shell")
    async with open_lab(tmp_path, [wrong, call_reply(DONE)]) as lab:
        await lab.turn()
        asked = lab.of("cell.requested")[0]
        assert asked["code"] is None
        assert asked["raw"] == '{"code": "print(1)"}'
        assert "there is no tool named 'shell'" in lab.messages()[-1]["content"]
        assert lab.kinds().index("cell.finished") == lab.kinds().index("cell.requested") + 1


async def test_call_ids_are_unique_in_their_attempt(tmp_path: Path) -> None:
    answers = [call_reply("1"), call_reply("2"), call_reply("3"), call_reply(DONE)]
    async with open_lab(tmp_path, answers) as lab:
        await lab.turn()
        ids = [one["call_id"] for one in lab.of("cell.requested")]
        assert ids == ["call_1", "call_1~2", "call_1~3", "call_1~4"]
        # The provider gets back its own.
        sent = [call["id"] for one in lab.messages() for call in one.get("tool_calls", ())]
        assert sent == ["call_1"] * 3


async def test_variables_stay_from_turn_to_turn(tmp_path: Path) -> None:
    answers = [call_reply("x = 41", DONE), call_reply("x + 1", DONE)]
    async with open_lab(tmp_path, answers) as lab:
        await lab.turn()
        await lab.turn()
        assert lab.of("cell.finished")[2]["value"] == "42"
        assert "kernel.reset" not in lab.kinds()


async def test_two_sessions_have_kernels_of_their_own_and_run_at_once(tmp_path: Path) -> None:
    meet = (
        "import asyncio, pathlib, os\nmine = pathlib.Path.cwd()\n(mine / 'here').touch()\n"
        "others = [p for p in mine.parent.iterdir() if p != mine]\n"
        "while not all((p / 'here').exists() for p in others) or not others:\n"
        "    await asyncio.sleep(0.01)\n"
        "    others = [p for p in mine.parent.iterdir() if p != mine]\n" + DONE
    )
    async with open_lab(tmp_path, [call_reply(meet)]) as lab:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab.turn, "hi", "one")
            nursery.start_soon(lab.turn, "hi", "two")
        for sid in ("one", "two"):
            assert lab.of("turn.completed", sid)[0]["outcome"] == "done"
            assert lab.of("cell.finished", sid)[0]["error"] is None


async def test_inputs_that_come_meanwhile_wait_for_the_next_attempt(tmp_path: Path) -> None:
    answers = [call_reply(SPEAK.format("first")), call_reply(SPEAK.format("second"))]
    async with open_lab(tmp_path, answers) as lab:
        await lab.admit("one")
        assert await lab.trigger()
        await lab.event("turn.started")
        seq = (await lab.admit("two")).seq
        await lab.idle()
        assert lab.said() == ["first", "second"]
        starts = lab.of("turn.started")
        assert [one["work_items"] for one in starts] == [["work-input-1"], ["work-input-2"]]
        assert starts[1]["causes"] == [{"type": "input_ready", "seq": seq}]
        assert len({one["attempt_id"] for one in starts}) == 2
        assert sum("two" in str(one["content"]) for one in lab.messages()) == 1


async def test_an_input_to_a_sleeping_agent_leaves_its_deadline(tmp_path: Path) -> None:
    clock = FakeClock()
    answers = [call_reply(WAIT.format(60, "tea")), text_reply("I hear you."), text_reply("Yes.")]
    async with open_lab(tmp_path, answers, clock=clock) as lab:
        await lab.turn()
        asleep = (await lab.entry()).state
        await lab.turn("are you there?")
        assert (await lab.entry()).state == asleep
        assert lab.kinds().count("session.waiting") == 1
        assert await lab.store.session_state(SID) == ("waiting", clock.time_ms + 60_000)


async def test_an_agent_that_is_done_gives_up_its_deadline(tmp_path: Path) -> None:
    answers = [call_reply(WAIT.format(60, "tea")), call_reply(DONE)]
    async with open_lab(tmp_path, answers) as lab:
        await lab.turn()
        await lab.turn("never mind")
        assert await lab.store.session_state(SID) == ("ready", None)


async def test_many_inputs_are_taken_a_hundred_at_a_time(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(DONE)]) as lab:
        for number in range(130):
            await lab.admit(f"number {number}.")
        assert await lab.trigger()
        await lab.idle()
        assert [len(one["work_items"]) for one in lab.of("turn.started")] == [100, 30]
        first = lab.messages(0)[1]["content"]
        assert all(f"number {number}." in first for number in range(100))


async def test_many_long_inputs_are_taken_a_quarter_mebibyte_at_a_time(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(DONE)]) as lab:
        for _ in range(5):
            await lab.admit("x" * 100_000)
        assert await lab.trigger()
        await lab.idle()
        assert [len(one["work_items"]) for one in lab.of("turn.started")] == [2, 2, 1]


async def test_maintenance_has_a_turn_of_its_own(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(DONE)]) as lab:
        await lab.admit("before")
        await lab.maintenance()
        await lab.admit("after")
        assert await lab.trigger()
        await lab.idle()
        items = [one["work_items"] for one in lab.of("turn.started")]
        assert sorted(items) == [["upkeep"], ["work-input-1", "work-input-3"]]


async def test_only_so_many_texts_are_said_in_a_turn(tmp_path: Path) -> None:
    code = (
        "from klbr import local, runtime\nfor n in range(3):\n    await local.send(str(n))\n"
        "await runtime.done()"
    )
    answers = [call_reply(code), call_reply(DONE)]
    async with open_lab(tmp_path, answers, settings="[send]\nper_turn = 2") as lab:
        await lab.turn()
        assert lab.said() == ["0", "1"]
        assert "has sent 2 texts already" in lab.of("cell.finished")[0]["error"]


async def test_a_wait_beyond_the_releases_bound_is_refused(tmp_path: Path) -> None:
    answers = [call_reply(WAIT.format(7200, "x")), call_reply(DONE)]
    async with open_lab(tmp_path, answers, settings="[wait]\nmax_seconds = 3600") as lab:
        await lab.turn()
        assert "at most 3600 s" in lab.of("cell.finished")[0]["error"]


async def test_lone_surrogates_end_nowhere(tmp_path: Path) -> None:
    speak = "from klbr import local, runtime\nprint('a\\ud800b')\n'\\udfff'"
    say = "from klbr import local, runtime\nawait local.send('x\\ud800y')"
    inside = "s = '\ud800'\nprint(len(s))"
    answers = [call_reply(speak, inside), call_reply(say), text_reply("half \ud83d done")]
    async with open_lab(tmp_path, answers, settings="nudge = false") as lab:
        await lab.turn()
        first, second, third = lab.of("cell.finished")
        assert first["error"] is None
        assert second["output"] == "1\n"
        assert lab.of("cell.requested")[1]["code"] == "s = '\ufffd'\nprint(len(s))"
        assert third["error"] is None
        assert lab.said() == ["x\ufffdy"]
        assert lab.of("scratchpad")[-1]["text"] == "half \ufffd done"
        assert lab.of("turn.completed")[0]["outcome"] == "replied"


async def test_code_that_is_too_long_is_not_run_in_part(tmp_path: Path) -> None:
    long = "open('ran', 'w')\n#" + "x" * 300_000 + "\n" + "open('ran-too', 'w')"
    async with open_lab(tmp_path, [call_reply(long, "1"), call_reply(DONE)]) as lab:
        await lab.turn()
        asked = lab.of("cell.requested")[0]
        assert asked["code"] is None
        assert len(asked["raw"]) <= 256 * 1024
        first, second = lab.of("cell.finished")[:2]
        assert "the code has 300041 bytes of at most 262144; nothing ran" in first["error"]
        assert second["value"] == "1"
        assert not (tmp_path / "workspaces" / SID / "ran").exists()


async def test_what_is_huge_stays_within_its_bounds(tmp_path: Path) -> None:
    code = "print('o' * 2_000_000)\n'v' * 2_000_000"
    answers = [
        call_reply(code, text="s" * 400_000),
        call_reply("raise ValueError('e' * 2_000_000)", DONE),
    ]
    async with open_lab(tmp_path, answers) as lab:
        await lab.turn("i" * 200_000)
        for event in lab.log():
            for value in event.payload.values():
                assert not isinstance(value, str) or len(value.encode()) <= 256 * 1024
        assert lab.of("cell.finished")[0]["truncated"]
        assert lab.of("turn.completed")[0]["outcome"] == "done"
        for number in range(2):
            size = sum(len(str(one.get("content"))) for one in lab.messages(number))
            assert size < 210_000


async def test_what_a_provider_wants_back_is_bounded(tmp_path: Path) -> None:
    nested: object = "deep"
    for _ in range(90):
        nested = [nested]
    call = call_fragment(DONE, provider_id="i" * 1000)
    strange = Scripted(
        (sse(chunk({**call, "extra_content": nested}), chunk(finish="tool_calls", usage=USAGE)),)
    )
    async with open_lab(tmp_path, [strange]) as lab:
        await lab.turn()
        assert lab.of("turn.completed")[0]["outcome"] == "done"
        assert "deep" not in str(lab.of("reply.received")[0]["opaque"])
        assert 1 <= len(lab.of("cell.requested")[0]["call_id"]) <= 200


async def test_steps_are_bounded(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply("1")], settings="[turn]\nsteps = 3") as lab:
        await lab.turn()
        failed = lab.of("turn.failed")
        assert [one["code"] for one in failed] == ["bound_steps"] * 2
        assert not failed[0]["retryable"]
        assert "turn.steps in behavior.toml" in failed[0]["message"]
        assert len(lab.provider.requests) == 6


async def test_tokens_are_bounded(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply("1")], settings="[turn]\ntokens = 20") as lab:
        await lab.turn()
        assert lab.of("turn.failed")[0]["code"] == "bound_tokens"
        assert "used 24 tokens of 20" in lab.of("turn.failed")[0]["message"]
        assert len(lab.provider.requests) == 4


async def test_seconds_are_bounded_while_the_model_thinks(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hang()], settings="[turn]\nseconds = 0.2") as lab:
        await lab.turn()
        assert [one["code"] for one in lab.of("turn.failed")] == ["bound_time"] * 2
        with trio.fail_after(5):
            await lab.provider.wait_disconnected(0)
            await lab.provider.wait_disconnected(1)


async def test_seconds_are_bounded_while_a_cell_runs(tmp_path: Path) -> None:
    stuck = "while True: pass"
    async with open_lab(tmp_path, [call_reply(stuck)], settings="[turn]\nseconds = 1") as lab:
        await lab.turn()
        assert lab.of("turn.failed")[0]["code"] == "bound_time"
        assert "ran longer than its limit" in lab.of("cell.finished")[0]["error"]


async def test_a_cell_has_its_limit(tmp_path: Path) -> None:
    stuck = "x = 7\nimport time\nwhile True: time.sleep(0.01)"
    answers = [call_reply(stuck), call_reply("x", DONE)]
    async with open_lab(tmp_path, answers, settings="[cell]\nseconds = 0.3") as lab:
        await lab.turn()
        first, second = lab.of("cell.finished")[:2]
        assert "longer than its limit of 0.3 s" in first["error"]
        assert second["value"] == "7", "the interrupt was enough, the kernel goes on"


async def test_a_context_that_is_too_long_is_halved_once(tmp_path: Path) -> None:
    too_long = refuse(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
    async with open_lab(tmp_path, [too_long]) as lab:
        await lab.turn("w" * 30_000)
        assert [one["code"] for one in lab.of("turn.failed")] == ["context_too_long"] * 2
        assert len(lab.provider.requests) == 4
        sizes = [sum(len(one["content"]) for one in lab.messages(n)) for n in range(4)]
        assert sizes[1] <= sizes[0] / 2
        assert sizes[3] < sizes[2] <= sizes[1], "what was learned is kept for the next turn"


async def test_a_context_that_fits_when_halved_goes_on(tmp_path: Path) -> None:
    too_long = refuse(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
    async with open_lab(tmp_path, [too_long, call_reply(SPEAK.format("got it"))]) as lab:
        await lab.turn("w" * 30_000)
        assert lab.said() == ["got it"]
        assert "characters left out" in lab.messages()[1]["content"]


async def test_a_failed_turn_is_told_and_repaired_once(tmp_path: Path) -> None:
    answers = [
        refuse(401, {"error": {"message": "no such key"}}),
        call_reply(SPEAK.format("sorry")),
    ]
    async with open_lab(tmp_path, answers) as lab:
        await lab.turn("compute")
        failed = lab.of("turn.failed")[0]
        assert failed["type"] == "turn_failed"
        assert failed["code"] == "provider_refused"
        assert not failed["retryable"]
        repair = lab.of("turn.started")[1]
        assert repair["causes"] == [{"type": "repair", "of": failed["attempt_id"]}]
        assert lab.said() == ["sorry"]
        told = lab.messages()[1]["content"]
        assert "compute" in told
        assert "the turn above failed (provider_refused)" in told
        item = await lab.store.get_work_item("work-input-1")
        assert item is not None
        assert item.status == Failed("provider_refused")


async def test_no_words_are_made_up_when_the_model_fails(tmp_path: Path) -> None:
    cut = drip(sse(chunk(call_fragment(SPEAK.format("half"))), done=False), after="reset")
    llm_settings = {"attempts": 1}
    async with open_lab(tmp_path, [cut]) as lab:
        lab.llm = client(lab.provider.url, **llm_settings)
        await lab.turn()
        assert lab.said() == []
        assert "cell.requested" not in lab.kinds()
        assert [one["code"] for one in lab.of("turn.failed")] == ["provider_unavailable"] * 2


async def test_an_input_is_pending_until_its_turn_ends(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hang()]) as lab:
        seq = (await lab.admit()).seq
        assert await lab.store.pending(SID, 5) == [seq]
        assert await lab.trigger()
        await lab.event("turn.started")
        assert await lab.store.pending(SID, 5) == [seq]
        await (await lab.entry()).abort_runner()
        assert await lab.store.pending(SID, 5) == [seq]
        item = await lab.store.get_work_item("work-input-1")
        assert item is not None
        assert item.status == Pending()


async def test_a_refused_prompt_that_cant_get_shorter_is_not_sent_again(tmp_path: Path) -> None:
    too_long = refuse(400, {"error": {"message": "x", "code": "context_length_exceeded"}})
    async with open_lab(tmp_path, [too_long]) as lab:
        await lab.turn()
        assert [one["code"] for one in lab.of("turn.failed")] == ["context_too_long"] * 2
        assert len(lab.provider.requests) == 2, "one for the turn and one for its repair"
