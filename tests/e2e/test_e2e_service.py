"""The service as a process: start, refusal to start, signals, kills and restarts."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

from e2e_house import DEMO, House, environment, klbr, open_house, read_line, wait_until

from klbr_trio.cli.demo.family import alive
from klbr_trio.store.lock import holder


def listening(pid: int) -> list[str]:
    """The local addresses, in hex, at which a process listens over TCP."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue
        found = re.fullmatch(r"socket:\[(\d+)\]", target)
        if found:
            inodes.add(found[1])
    addresses = []
    for name in ("tcp", "tcp6"):
        table = Path(f"/proc/{pid}/net/{name}")
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                addresses.append(fields[1].split(":")[0])
    return addresses


def test_it_says_where_it_is_and_is_this_users_alone(house: House) -> None:
    before = os.umask(0o022)
    try:
        house.start(*DEMO)
    finally:
        os.umask(before)
    assert house.klbr("send", "s", "count to 2").code == 0
    service = house.service
    assert set(service) == {"pid", "url", "socket", "started_ms", "version"}
    assert service["socket"] == str(house.state / "klbr.sock")
    found = holder(house.state / "lock")
    assert found is not None
    assert found.pid == service["pid"] == house.pid
    assert set(listening(house.pid)) == {"0100007F"}
    modes = {path: path.lstat().st_mode for path in [house.state, *house.state.rglob("*")]}
    assert [p for p, mode in modes.items() if stat.S_IMODE(mode) & 0o077] == []
    assert house.stop() == 0
    assert not (house.state / "service.json").exists()
    assert not (house.state / "klbr.sock").exists()
    assert house.findings() == []


def test_without_arguments_it_serves_what_the_environment_says(house: House) -> None:
    environ = {"KLBR_STATE": str(house.state), "KLBR_LISTEN": "127.0.0.1:0"}
    house.process = subprocess.Popen(
        [sys.executable, "-m", "klbr_trio"],
        stderr=subprocess.DEVNULL,
        env=environment(**environ, KLBR_PROVIDER="demo"),
    )
    house.ready()
    assert house.klbr("send", "s", "what is 2*3").out == "2*3 = 6\n"
    assert house.stop() == 0


# What it refuses to start on


def refused(house: House, *options: str, listen: str = "127.0.0.1:0", **environ: str) -> str:
    """The one line that a service says that does not start."""
    done = klbr("serve", "--state", str(house.state), "--listen", listen, *options, **environ)
    assert done.code == 78, done
    assert done.out == ""
    assert not (house.state / "service.json").exists()
    return done.only_line


def test_it_refuses_settings_that_can_not_be(house: House) -> None:
    assert "not a loopback address" in refused(house, listen="0.0.0.0:8765")
    assert "a model's name" in refused(house, "--model", "m")
    assert not house.state.exists(), "what is wrong is said before anything is made"


def test_it_refuses_a_model_url_that_is_none(house: House) -> None:
    assert "url" in refused(house, "--model", "m", "--model-url", "nonsense")


def test_it_refuses_a_bad_behavior(house: House, tmp_path: Path) -> None:
    folder = tmp_path / "behavior"
    folder.mkdir()
    (folder / "behavior.toml").write_text("turn.stepps = 3")
    (folder / "prompt.md").write_text("x")
    assert "stepps" in refused(house, "--behavior", str(folder))


def test_it_refuses_a_port_in_use(house: House) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(house, listen=f"127.0.0.1:{port}")
    assert f"can't listen on 127.0.0.1:{port}" in line
    assert not (house.state / "klbr.sock").exists()


def test_it_refuses_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with open_house(tmp_path / "file") as house:
        done = klbr("serve", "--state", str(house.state))
    assert done.code == 78
    assert "can't be made" in done.only_line


def test_it_refuses_a_foreign_database(house: House) -> None:
    house.state.mkdir(mode=0o700)
    database = house.state / "klbr.sqlite"
    with sqlite3.connect(database) as conn:
        conn.execute("CREATE TABLE theirs (x)")
    conn.close()
    before = database.read_bytes()
    assert "another program" in refused(house)
    assert database.read_bytes() == before


def test_it_refuses_a_token_that_others_know(house: House) -> None:
    house.state.mkdir(mode=0o700)
    (house.state / "token").write_text("0" * 64)
    (house.state / "token").chmod(0o644)
    assert "open to other users" in refused(house)


def test_it_refuses_a_newer_store_and_a_settings_file_with_a_slip(house: House) -> None:
    house.start()
    assert house.stop() == 0
    with sqlite3.connect(house.state / "klbr.sqlite") as conn:
        conn.execute("PRAGMA user_version = 1000")
    conn.close()
    assert "newer version" in refused(house)
    (house.state / "klbr.toml").write_text("lisen = 'x'")
    assert "'lisen' is no setting" in refused(house)


def test_a_second_service_on_the_same_folder_is_to_try_again(house: House) -> None:
    house.start()
    done = klbr("serve", "--state", str(house.state), "--listen", "127.0.0.1:0")
    assert done.code == 75
    assert f"process {house.pid}" in done.only_line
    assert house.klbr("status").code == 0, "the first one goes on"


def test_a_service_whose_store_breaks_ends_and_says_so(house: House) -> None:
    house.start()
    assert house.klbr("send", "s", "hello").code == 78
    for name in ("klbr.sqlite", "klbr.sqlite-wal"):
        path = house.state / name
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(100)
            file.write(b"\xa5" * (size - 100))
    sending = house.begin("send", "s", "hello")
    assert house.ended() == 1
    sending.kill()
    sending.communicate()
    assert "corrupt" in house.log.read_text()
    assert not (house.state / "service.json").exists()


# Ends


def test_a_signal_at_any_time_of_its_start_ends_it_in_order(house: House) -> None:
    house.launch()
    wait_until(lambda: (house.state / "lock").exists() or house.state.exists())
    house.signal(signal.SIGTERM)
    assert house.ended() == 0
    assert not (house.state / "service.json").exists()


def test_an_interrupt_ends_it_and_its_kernels_and_the_turn_goes_on_later(house: House) -> None:
    house.start(*DEMO)
    assert house.klbr("send", "s", "count to 14 slowly", "--no-wait").code == 0
    workers = wait_until(house.workers)
    house.signal(signal.SIGINT)
    assert house.ended() == 0
    wait_until(lambda: not alive(workers), "the end of the kernels")
    interrupted = house.events("s")[-1]
    assert (interrupted["kind"], interrupted["payload"]["why"]) == ("turn.interrupted", "shutdown")
    house.start(*DEMO)
    wait_until(lambda: "turn.completed" in house.kinds("s"))
    assert len(house.said("s")) == 1
    assert house.stop() == 0
    assert house.findings() == []


def test_a_second_signal_stops_at_once(house: House) -> None:
    house.start(*DEMO, "--drain-seconds", "50")
    house.klbr("send", "s", "count to 900 slowly", "--no-wait")
    workers = wait_until(house.workers)
    house.signal(signal.SIGTERM)
    wait_until(lambda: not (house.state / "service.json").exists())
    house.signal(signal.SIGINT)
    assert house.ended() == 130
    wait_until(lambda: not alive(workers), "the end of the kernels")
    assert house.klbr("status").code == 7
    house.start()
    assert house.kinds("s")[-1] == "turn.interrupted"


# Kills


def test_a_killed_service_loses_nothing_and_waiting_clients_go_on(house: House) -> None:
    house.start(*DEMO)
    watching = house.begin("watch", "s", "--json", "--last", "1000")
    sending = house.begin("send", "s", "count to 15 slowly", "--key", "k")
    assert "stored as 1" in read_line(sending.stderr)
    workers = wait_until(house.workers)
    house.kill()
    wait_until(lambda: not alive(workers), "the end of the kernels")
    assert (house.state / "service.json").exists(), "it had no time to take it away"
    assert house.klbr("status").code == 7
    assert "connection is lost" in read_line(sending.stderr)
    house.start(*DEMO)
    out, err = sending.communicate(timeout=50)
    assert sending.returncode == 0, err
    assert out == f"I counted in Python: {', '.join(map(str, range(1, 16)))}.\n"
    again = house.klbr("send", "s", "count to 15 slowly", "--key", "k", "--json").json
    assert (again["seq"], again["duplicate"], again["outcome"]) == (1, True, "completed")
    events = house.events("s")
    seen: list[object] = []
    while len(seen) < len(events):
        frame = json.loads(read_line(watching.stdout))
        if frame["type"] == "event":
            seen.append(frame["record"])
    assert seen == events, "each event once, in order, across the restart"
    watching.kill()
    watching.communicate()
    assert house.stop() == 0
    assert house.findings() == []


def test_a_wake_that_comes_due_while_it_is_down_fires_once_at_the_start(house: House) -> None:
    house.start(*DEMO)
    assert house.klbr("send", "s", "wake me in 1 second to stretch").code == 0
    house.kill()
    wake_at_ms = next(e for e in house.events("s") if e["kind"] == "session.waiting")["payload"][
        "wake_at_ms"
    ]
    house.start(*DEMO)
    wait_until(lambda: house.said("s")[-1] == "It is time: stretch.")
    woken = [event for event in house.events("s") if event["kind"] == "session.woken"]
    assert len(woken) == 1
    assert woken[0]["created_ms"] >= wake_at_ms
    house.kill()
    house.start(*DEMO)
    assert [e["kind"] for e in house.events("s")].count("session.woken") == 1


# Logs


def test_the_log_is_json_lines_and_says_what_answers(house: House) -> None:
    house.start(*DEMO)
    assert house.stop() == 0
    lines = house.logged
    assert any("DEMO" in line["message"] for line in lines)
    ready = next(line for line in lines if line["message"] == "ready")
    assert ready["model"] == "demo"
    assert ready["url"].startswith("http://127.0.0.1:")


def test_who_starts_it_by_hand_is_told_what_it_is(house: House) -> None:
    master, slave = os.openpty()
    argv = [sys.executable, "-m", "klbr_trio", "serve", "--state", str(house.state)]
    house.process = subprocess.Popen(
        [*argv, "--listen", "127.0.0.1:0", *DEMO, "--log-level", "error"],
        stderr=slave,
        env=environment(),
    )
    os.close(slave)
    house.ready()
    house.signal(signal.SIGINT)
    assert house.ended() == 0
    told = os.read(master, 65_536).decode()
    os.close(master)
    for words in ("serving on http://127.0.0.1:", "DEMO", "no language model", "stopping in good"):
        assert words in told
    assert "\x1b" not in told
