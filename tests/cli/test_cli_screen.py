from __future__ import annotations

import json
from typing import Any

import pytest

from klbr_trio.cli.output import Output
from klbr_trio.cli.records import moment, record_text, span
from klbr_trio.cli.screen import Screen


def record(kind: str, **payload: Any) -> dict[str, Any]:
    return {"seq": 7, "session_id": "s", "kind": kind, "payload": payload, "created_ms": 1}


def event(kind: str, **payload: Any) -> dict[str, Any]:
    return {"type": "event", "record": record(kind, attempt_id="a", step=1, **payload)}


def chunk(lane: str, delta: str, **more: Any) -> dict[str, Any]:
    values = {"session_id": "s", "attempt_id": "a", "step": 1, **more}
    return {"type": "live_chunk", "lane": lane, "delta": delta, **values}


FINISHED = {
    "call_id": "c", "ok": True, "output": "1\n2\n", "value": None, "error": None, "duration_ms": 5,
}  # fmt: skip


def shown(capsys: pytest.CaptureFixture[str], *frames: dict[str, Any], **output: bool) -> str:
    screen = Screen(Output(**output))
    for frame in frames:
        screen.frame(frame)
    return capsys.readouterr().out


def test_a_lane_is_named_once_and_ends_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(
        capsys,
        chunk("reasoning", "I "),
        chunk("reasoning", "think"),
        chunk("scratchpad", "note"),
        chunk("output", "1\n", call_id="c"),
        chunk("speech", "hi", call_id="c"),
        event("turn.completed", outcome="done"),
    )
    assert out.splitlines() == [
        "reasoning> I think",
        "scratchpad> note",
        "output> 1",
        "speech> hi",
        "#7 turn.completed  done",
    ]


def test_what_was_shown_live_is_not_shown_again(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(
        capsys,
        chunk("scratchpad", "note"),
        event("scratchpad", text="note"),
        chunk("output", "1\n2\n", call_id="c"),
        chunk("speech", "hi", call_id="c"),
        event("local.sent", text="hi", call_id="c"),
        event("cell.finished", **FINISHED),
    )
    assert out.count("note") == out.count("hi") == out.count("2\n") == 1
    assert "#7 cell.finished  ok" in out


def test_a_replayed_record_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(
        capsys,
        event("scratchpad", text="note"),
        event("local.sent", text="hi", call_id="c"),
        event("cell.finished", **FINISHED),
    )
    assert "note" in out
    assert "hi" in out
    assert "    1\n    2" in out


def test_after_a_gap_records_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(
        capsys,
        chunk("scratchpad", "no"),
        {"type": "live_gap", "session_id": "s", "dropped": 3},
        event("scratchpad", text="note"),
    )
    assert "3 pieces" in out
    assert "note" in out


def test_what_was_withdrawn_does_not_count_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(
        capsys,
        chunk("scratchpad", "first try"),
        {"type": "live_discard", "session_id": "s", "attempt_id": "a", "step": 1},
        event("scratchpad", text="second try"),
    )
    assert "does not count" in out
    assert "second try" in out


@pytest.mark.parametrize("raw", [False, True])
def test_texts_drive_nothing_unless_they_are_wanted_raw(
    capsys: pytest.CaptureFixture[str], raw: bool
) -> None:
    out = shown(capsys, chunk("output", "\x1b["), chunk("output", "2J"), raw=raw)
    assert ("\x1b[2J" in out) is raw
    assert ("\\x1b[2J" in out) is not raw


def test_json_is_the_frames_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    frames = [chunk("output", "\x1b[2J\u009b"), event("turn.completed", outcome="done")]
    out = shown(capsys, *frames, as_json=True)
    assert [json.loads(line) for line in out.splitlines()] == frames
    assert "\x1b" not in out
    assert "\u009b" not in out


def test_kinds_that_nobody_knows_are_shown_as_they_are() -> None:
    assert record_text(record("weather.seen", sky="blue")) == '#7 weather.seen  {"sky":"blue"}'
    odd = record("turn.started", causes=[{"type": "whim"}], release=None, model=None)
    assert '{"type":"whim"}' in record_text(odd)
    assert record_text(record("turn.started", causes="later")) == (
        '#7 turn.started  {"causes":"later"}'
    )


def test_times_that_no_calendar_has_are_numbers() -> None:
    assert moment(2**53).endswith(" ms")
    assert [span(ms) for ms in (0, 61_000, 180_000, 10**10)] == [
        "0.0 s", "61.0 s", "3.0 min", "115.7 d",
    ]  # fmt: skip
