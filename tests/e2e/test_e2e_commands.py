"""Every client command and exit code, against one running service."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from e2e_house import House, klbr, read_line, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_send_prints_the_answer_and_gives_a_receipt(demo: House) -> None:
    done = demo.klbr("send", "greet", "hello")
    assert done.code == 0
    assert done.out.startswith("Hello! I am klbr's demonstration")
    assert re.fullmatch(r"klbr: stored as 1 in greet \(key cli-[0-9a-f]{16}\)", done.only_line)


def test_text_comes_from_stdin_too(demo: House) -> None:
    assert demo.klbr("send", "piped", stdin="what is 6*7\n").out == "6*7 = 42\n"
    assert demo.klbr("send", "piped", "-", stdin="what is 7*8").out == "7*8 = 56\n"
    texts = [e["payload"]["text"] for e in demo.events("piped") if e["kind"] == "input.admitted"]
    assert texts == ["what is 6*7", "what is 7*8"]


def test_a_key_is_stored_once_and_answers_again(demo: House) -> None:
    first = demo.klbr("send", "keyed", "what is 1+1", "--key", "k", "--json")
    again = demo.klbr("send", "keyed", "what is 1+1", "--key", "k", "--json")
    assert first.code == again.code == 0
    assert first.json == {
        "session_id": "keyed",
        "seq": 1,
        "client_request_id": "k",
        "duplicate": False,
        "outcome": "completed",
        "speech": ["1+1 = 2"],
    }
    assert again.json == {**first.json, "duplicate": True}
    assert demo.kinds("keyed").count("input.admitted") == 1
    other = demo.klbr("send", "keyed", "something else", "--key", "k")
    assert other.code == 4
    assert "source key reused with different content" in other.only_line


def test_no_wait_returns_with_the_receipt(demo: House) -> None:
    done = demo.klbr("send", "quick", "hello", "--no-wait", "--json")
    assert done.code == 0
    assert done.json.keys() == {"session_id", "seq", "client_request_id", "duplicate"}
    wait_until(lambda: demo.said("quick"))


def test_status_of_one_and_of_all(demo: House) -> None:
    demo.klbr("send", "sleeper", "wake me in 2 hours to look out")
    one = demo.klbr("status", "sleeper", "--json").json
    assert one["state"] == "waiting"
    assert one["reason"] == "look out"
    everyone = demo.klbr("status", "--json").json["sessions"]
    assert one in everyone
    assert "waiting, wakes at" in demo.klbr("status").out
    assert "look out" in demo.klbr("status", "sleeper").out


def test_stop_and_reset(demo: House) -> None:
    demo.klbr("send", "stopper", "hello")
    stopped = demo.klbr("stop", "stopper", "--json")
    assert (stopped.code, stopped.json["success"]) == (0, True)
    refused = demo.klbr("send", "stopper", "hello")
    assert refused.code == 1
    assert "cannot admit input" in refused.only_line
    assert demo.klbr("reset", "stopper").code == 0
    assert demo.klbr("send", "stopper", "hello").code == 0


def test_a_stop_ends_a_waiting_send(demo: House) -> None:
    waiting = demo.begin("send", "interrupted", "count to 900 slowly")
    wait_until(lambda: "cell.requested" in demo.kinds("interrupted"))
    assert demo.klbr("stop", "interrupted").code == 0
    _, err = waiting.communicate(timeout=30)
    assert waiting.returncode == 5
    assert "was stopped before it answered" in err


@pytest.mark.parametrize("command", ["status", "history", "stop", "reset"])
def test_unknown_sessions_are_not_found(demo: House, command: str) -> None:
    done = demo.klbr(command, "nobody")
    assert done.code == 3
    assert "no session 'nobody'" in done.only_line


@pytest.mark.parametrize(
    "args",
    [
        ["send"],
        ["send", "-bad-id-", "x"],
        ["send", "../x", "hello"],
        ["send", "s", ""],
        ["send", "s", "hello", "--key", "x" * 129],
        ["send", "s", "hello", "--source", "a\nb"],
        ["send", "s", "hello", "--no-such-option"],
        ["status", "s", "--wat"],
        ["history", "s", "--limit", "0"],
        ["no-such-command"],
        ["watch"],
    ],
)
def test_wrong_usage(demo: House, args: list[str]) -> None:
    done = demo.klbr(*args)
    assert done.code == 2
    assert done.only_line.startswith("klbr: ")


def test_stdin_that_is_no_text_is_wrong_usage(demo: House) -> None:
    assert demo.klbr("send", "s", stdin=b"\xff\xfe").code == 2
    argv = [*map(os.fsencode, (sys.executable, "-m", "klbr_trio", "send", "s")), b"\xff"]
    done = subprocess.run(argv, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"not UTF-8" in done.stderr


def test_a_text_that_is_too_large_is_refused(demo: House) -> None:
    done = demo.klbr("send", "s", stdin="x" * 300_000)
    assert done.code == 2
    assert "at most 262144" in done.only_line


def test_history_is_what_happened_and_comes_in_pages(demo: House) -> None:
    demo.klbr("send", "past", "hello")
    demo.klbr("send", "past", "what is 2+2")
    events = demo.events("past")
    assert demo.klbr("history", "past", "--all", "--json").json["events"] == events
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    last = demo.klbr("history", "past", "--limit", "5", "--json").json
    assert last == {"session_id": "past", "events": events[-5:]}
    middle = demo.klbr("history", "past", "--before", "9", "--limit", "3", "--json").json
    assert middle["events"] == events[5:8]
    nothing = demo.klbr("history", "past", "--before", "1", "--json").json
    assert nothing["events"] == []
    lines = demo.klbr("history", "past").out
    assert "#1 input.admitted  from cli: hello" in lines
    assert "#8 turn.completed  done" in lines


def test_watch_shows_lanes_and_records_as_they_come(demo: House) -> None:
    watching = demo.begin("watch", "seen", "--json", "--last", "0")
    first = [json.loads(read_line(watching.stdout)) for _ in range(2)]
    assert [frame["type"] for frame in first] == ["sync_started", "sync_completed"]
    demo.klbr("send", "seen", "count to 3")
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1].get("record", {}).get("kind") != "turn.completed":
        seen.append(json.loads(read_line(watching.stdout)))
    lanes = {frame["lane"] for frame in seen if frame["type"] == "live_chunk"}
    assert lanes == {"reasoning", "scratchpad", "output", "speech"}
    assert [f["record"] for f in seen if f["type"] == "event"] == demo.events("seen")
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=30)
    assert watching.returncode == 130


@pytest.mark.parametrize("command", [["watch", "piper"], ["history", "piper", "--all"]])
def test_a_closed_pipe_ends_it_cleanly(demo: House, command: list[str]) -> None:
    demo.klbr("send", "piper", "hello")
    showing = demo.begin(*command)
    assert read_line(showing.stdout).startswith("#1 input.admitted")
    assert showing.stdout is not None
    showing.stdout.close()
    assert showing.wait(30) == 0
    assert showing.stderr is not None
    assert showing.stderr.read() == ""


def test_interrupting_a_send_leaves_its_input(demo: House) -> None:
    sending = demo.begin("send", "patient", "count to 100 slowly")
    receipt = read_line(sending.stderr)
    assert "stored as 1" in receipt
    sending.send_signal(signal.SIGINT)
    _, err = sending.communicate(timeout=30)
    assert sending.returncode == 130
    assert err == "klbr: interrupted; the input stays stored as 1\n"
    assert demo.klbr("status", "patient", "--json").json["pending"] == 1
    demo.klbr("stop", "patient")


def test_the_token_is_needed_and_named(demo: House, tmp_path: Path) -> None:
    url = demo.service["url"]
    assert klbr("status", "--url", url).code == 6
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 64)
    wrong.chmod(0o600)
    assert klbr("status", "--url", url, "--token-file", str(wrong)).code == 6
    right = klbr("status", "--json", "--url", url, "--token-file", str(demo.state / "token"))
    assert right.code == 0
    by_variables = klbr("status", "--json", KLBR_URL=url, KLBR_TOKEN_FILE=str(demo.state / "token"))
    assert by_variables.out == right.out
    wrong.chmod(0o644)
    assert klbr("status", "--url", url, "--token-file", str(wrong)).code == 78


def test_the_address_is_used_when_the_socket_is_gone(demo: House) -> None:
    socket = demo.state / "klbr.sock"
    aside = demo.state / "aside"
    socket.rename(aside)
    try:
        assert demo.klbr("status").code == 0
    finally:
        aside.rename(socket)


def test_token_config_and_publish_need_no_service(demo: House, tmp_path: Path) -> None:
    assert demo.klbr("token", "show").out.strip() == demo.token
    assert demo.klbr("token", "show", "--json").json == {"token": demo.token}
    none = klbr("token", "show", "--state", str(tmp_path / "none"))
    assert none.code == 3
    shown = klbr("config", "--json", KLBR_STATE=str(tmp_path), OPENAI_API_KEY="secret-key").json
    assert shown["settings"]["state"] == {"value": str(tmp_path), "source": "KLBR_STATE"}
    assert shown["settings"]["api_key"] == {"value": "(set)", "source": "OPENAI_API_KEY"}
    assert shown["limits"]["text_bytes"] == 262144
    assert "secret-key" not in json.dumps(shown)
    published = demo.klbr("release", "publish", "--json").json
    assert (demo.state / "releases" / published["digest"] / "prompt.md").is_file()
    assert demo.klbr("release", "publish", str(tmp_path / "none")).code == 78


def test_verify_finds_a_sound_store_beside_the_service(demo: House, tmp_path: Path) -> None:
    assert demo.klbr("verify", "--json").json == {
        "state": str(demo.state), "sound": True, "findings": [],
    }  # fmt: skip
    assert klbr("verify", "--state", str(tmp_path)).code == 3


def test_escape_sequences_do_not_reach_a_terminal(demo: House) -> None:
    hostile = "count to 2 \x1b[2J\x1b]0;owned\x07\u009b31m\rover"
    demo.klbr("send", "hostile", stdin=hostile)
    for options, drives in (
        (["history", "hostile"], False),
        (["history", "hostile", "--raw"], True),
    ):
        out = through_a_terminal(demo, *options)
        assert ("\x1b" in out) is drives
        assert ("\u009b" in out) is drives
        assert ("\\x1b[2J" in out) is not drives
    stored = demo.events("hostile")[0]["payload"]["text"]
    assert stored == hostile


def through_a_terminal(house: House, *args: str) -> str:
    """What a command writes to a terminal; lone carriage returns and escapes included."""
    master, slave = os.openpty()
    running = house.begin(*args, stdout=slave, stderr=slave)
    os.close(slave)
    written = bytearray()
    while True:
        try:
            data = os.read(master, 65_536)
        except OSError:  # how a terminal says that nobody writes any more
            break
        if not data:
            break
        written += data
    os.close(master)
    assert running.wait(30) == 0
    return written.decode().replace("\r\n", "\n")
