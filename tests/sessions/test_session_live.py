from __future__ import annotations

from typing import TYPE_CHECKING

from fakes.provider import USAGE, call_reply, chunk, drip, sse, text_reply
from session_lab import DONE, SID, SPEAK, open_lab

from klbr_trio.wire.server import LiveChunk, LiveDiscard

if TYPE_CHECKING:
    from pathlib import Path

    from klbr_trio.wire.server import LiveMessage


async def test_each_lane_is_streamed_before_the_event_that_makes_it_moot(tmp_path: Path) -> None:
    seen: list[str] = []
    code = "print('printed')\n" + SPEAK.format("said")
    async with open_lab(
        tmp_path, [text_reply("visible thought", reasoning="hidden thought"), call_reply(code)]
    ) as lab:

        def look(message: LiveMessage) -> None:
            assert isinstance(message, LiveChunk)
            assert (message.call_id is not None) == (message.lane == "output")
            seen.append(f"{message.lane} {message.step} {message.delta}")

        def commit(_: object) -> None:
            seen.append(f"commit {lab.kinds()[-1]}")

        await lab.admit()
        with lab.registry.live.look(SID, look), lab.store.watch(commit):
            assert await lab.trigger()
            await lab.idle()
        text = "\n".join(seen)
        assert text.index("scratchpad 1") < text.index("commit scratchpad")
        assert text.index("reasoning 1 hidden thought") < text.index("commit scratchpad")
        assert text.index("output 2 printed") < text.index("commit local.sent")
        assert text.index("commit local.sent") < text.index("commit turn.completed")
        assert lab.live.text("scratchpad") == "visible thought"
        assert lab.live.text("reasoning") == "hidden thought"
        assert lab.live.text("output") == "printed\n"
        attempt = lab.of("turn.started")[0]["attempt_id"]
        assert {(one.session_id, one.attempt_id) for one in lab.live.messages} == {(SID, attempt)}


async def test_what_was_streamed_of_an_answer_that_broke_off_is_discarded(tmp_path: Path) -> None:
    broken = drip(sse(chunk({"content": "half an ans"}), done=False), after="reset")
    async with open_lab(tmp_path, [broken, call_reply(DONE, text="whole")]) as lab:
        await lab.turn()
        kinds = [type(one) for one in lab.live.messages]
        assert kinds.count(LiveDiscard) == 1
        discard = lab.live.messages[kinds.index(LiveDiscard)]
        assert (discard.session_id, discard.step) == (SID, 1)
        before = lab.live.messages[: kinds.index(LiveDiscard)]
        after = lab.live.messages[kinds.index(LiveDiscard) + 1 :]
        assert all(isinstance(one, LiveChunk) and "half" in one.delta for one in before)
        assert [one.delta for one in after if isinstance(one, LiveChunk)] == ["whole"]
        assert lab.of("scratchpad")[0]["text"] == "whole"


async def test_a_burst_is_gathered_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    words = [f"w{n} " for n in range(400)]
    pieces = [sse(chunk({"content": word}), done=False) for word in words]
    answer = drip(*pieces, sse(chunk(finish="stop", usage=USAGE)))
    async with open_lab(tmp_path, [answer], settings="nudge = false") as lab:
        await lab.turn()
        assert lab.live.text("scratchpad") == "".join(words)
        assert len(lab.live.messages) < len(words), "some came together"


async def test_a_turn_that_runs_out_of_time_discards_what_it_streamed(tmp_path: Path) -> None:
    slow = drip(sse(chunk({"content": "so far"}), done=False), after="hang")
    async with open_lab(tmp_path, [slow], settings="[turn]\nseconds = 0.5") as lab:
        await lab.turn()
        assert lab.of("turn.failed")[0]["code"] == "bound_time"
        assert isinstance(lab.live.messages[0], LiveChunk)
        assert isinstance(lab.live.messages[1], LiveDiscard)


async def test_who_has_left_is_told_nothing(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [call_reply(DONE, text="thought")]) as lab:
        told: list[LiveMessage] = []
        with lab.registry.live.look("another", told.append):
            with lab.registry.live.look(SID, told.append):
                pass
            await lab.turn()
        assert told == []
