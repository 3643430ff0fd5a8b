from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from klbr_trio.cli.exits import Exit, Problem
from klbr_trio.cli.place import TcpPlace, UnixPlace, find_places, named_place
from klbr_trio.cli.settings import resolve
from klbr_trio.daemon.announcement import Announcement, announced
from klbr_trio.errors import ConfigError
from klbr_trio.store.lock import hold

if TYPE_CHECKING:
    from pathlib import Path

    from klbr_trio.cli.place import Place

TOKEN = "0123456789abcdef0123456789abcdef"


def places(state: Path, **flags: object) -> list[Place]:
    return find_places(resolve({"state": str(state), **flags}, {}))


def says(state: Path, pid: int) -> Announcement:
    return Announcement(
        pid=pid,
        url="http://127.0.0.1:4711",
        socket=str(state / "klbr.sock"),
        started_ms=1,
        version="1",
    )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    (path / "token").write_text(TOKEN)
    (path / "token").chmod(0o600)
    return path


def test_without_a_service_there_is_no_place(state: Path, tmp_path: Path) -> None:
    for folder in (state, tmp_path / "missing"):
        with pytest.raises(Problem) as caught:
            places(folder)
        assert caught.value.code is Exit.UNREACHABLE


def test_what_a_killed_service_left_behind_is_not_believed(state: Path) -> None:
    with announced(state / "service.json", says(state, os.getpid())):
        with pytest.raises(Problem) as caught:
            places(state)
    assert caught.value.code is Exit.UNREACHABLE


def test_the_socket_comes_first_and_the_token_goes_with_it(state: Path) -> None:
    with hold(state / "lock"), announced(state / "service.json", says(state, os.getpid())):
        assert places(state) == [
            UnixPlace(state / "klbr.sock", TOKEN),
            TcpPlace("127.0.0.1", 4711, tls=False, token=TOKEN),
        ]


def test_an_announcement_of_another_process_gets_no_token(state: Path) -> None:
    with hold(state / "lock"), announced(state / "service.json", says(state, os.getpid() + 1)):
        with pytest.raises(Problem) as caught:
            places(state)
    assert caught.value.code is Exit.TRY_AGAIN


def test_a_service_that_is_not_ready_is_to_be_asked_again(state: Path) -> None:
    with hold(state / "lock"):
        with pytest.raises(Problem) as caught:
            places(state)
    assert caught.value.code is Exit.TRY_AGAIN


def test_a_token_that_others_can_read_is_not_used(state: Path) -> None:
    (state / "token").chmod(0o644)
    with hold(state / "lock"), announced(state / "service.json", says(state, os.getpid())):
        with pytest.raises(ConfigError, match="open to other users"):
            places(state)


def test_a_named_url_never_gets_the_stored_token(state: Path) -> None:
    assert places(state, url="http://127.0.0.1:4711") == [
        TcpPlace("127.0.0.1", 4711, tls=False, token=None)
    ]
    named = places(state, url="http://127.0.0.1:4711", token_file=str(state / "token"))
    assert named == [TcpPlace("127.0.0.1", 4711, tls=False, token=TOKEN)]
    with pytest.raises(ConfigError, match="there is no"):
        places(state, url="http://127.0.0.1:4711", token_file=str(state / "none"))


@pytest.mark.parametrize(
    "url",
    ["ws://127.evil.test:1", "http://localhost.evil.test", "http://10.0.0.1:1", "http://0.0.0.0:1"],
)
def test_the_token_crosses_no_network_in_clear(url: str) -> None:
    assert named_place(url, None).token is None
    with pytest.raises(ConfigError, match="unencrypted"):
        named_place(url, TOKEN)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://127.0.0.1:8765", "127.0.0.1:8765"),
        ("ws://localhost:8765/", "localhost:8765"),
        ("http://[::1]:80", "[::1]"),
        ("https://agent.example.org", "agent.example.org"),
        ("wss://agent.example.org:8443", "agent.example.org:8443"),
    ],
)
def test_a_place_goes_by_the_name_that_a_host_header_has(url: str, name: str) -> None:
    assert named_place(url, TOKEN).name == name


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8765", "ftp://h", "http://", "http://h:x", "http://h/path", "http://h?token=x"],
)
def test_what_is_no_url_of_a_service_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        named_place(url, None)


def test_a_url_has_no_user() -> None:
    with pytest.raises(ConfigError, match="--token-file"):
        named_place("http://me:secret@127.0.0.1:1", None)
