"""Who else may be at an address, and what they are given: nothing."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest
import trio
import trio_websocket
from e2e_house import DEMO, House, klbr

from klbr_trio.daemon.announcement import Announcement, announced

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

TOKEN = "0123456789abcdef0123456789abcdef"


class Stranger:
    """Listens on a port, keeps what it hears, and answers with what it was given."""

    def __init__(self, answer: bytes) -> None:
        self.heard = bytearray()
        self._answer = answer
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer:
                self.heard += peer.recv(65_536)
                peer.sendall(self._answer)

    def leave(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def stranger() -> Generator[Stranger]:
    one = Stranger(b"SSH-2.0-nothing\r\n\r\n")
    yield one
    one.leave()


def test_a_stranger_on_the_port_gets_no_token(stranger: Stranger, tmp_path: Path) -> None:
    """A killed service's announcement points to a port that somebody else has taken."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "token").write_text(TOKEN)
    (state / "token").chmod(0o600)
    (state / "lock").write_text('{"pid": 1}')
    announcement = Announcement(
        pid=os.getpid(),
        url=stranger.url,
        socket=str(state / "klbr.sock"),
        started_ms=1,
        version="1",
    )
    with announced(state / "service.json", announcement):
        done = klbr("send", "s", "hello", "--state", str(state))
    assert done.code == 7
    assert bytes(stranger.heard) == b""


def test_what_speaks_no_websocket_is_unreachable(stranger: Stranger) -> None:
    done = klbr("status", "--url", stranger.url)
    assert done.code == 7
    assert "speaks no WebSocket" in done.only_line
    assert b"uthorization" not in stranger.heard


def test_nobody_there_is_unreachable(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        done = klbr("status", "--url", url)
    assert done.code == 7
    assert "can't be reached" in done.only_line
    assert klbr("status", "--state", str(tmp_path)).code == 7


async def test_other_programs_speak_to_it_by_url_and_token(demo: House) -> None:
    url = demo.service["url"].replace("http", "ws")
    headers = [(b"authorization", f"Bearer {demo.token}".encode())]
    async with trio_websocket.open_websocket_url(
        url, subprotocols=["klbr.v2"], extra_headers=headers
    ) as socket_:
        await socket_.send_message('{"type":"ping","timestamp":7}')
        assert await socket_.get_message() == '{"type":"pong","timestamp":7}'
    with pytest.raises(trio_websocket.HandshakeError):
        async with trio_websocket.open_websocket_url(url):
            pass


def test_a_long_path_has_a_socket_too(tmp_path: Path) -> None:
    house = House(tmp_path / ("long" * 40) / "state")
    house.state.parent.mkdir()
    try:
        house.start(*DEMO)
        assert house.klbr("send", "s", "what is 3*3").out == "3*3 = 9\n"
        assert house.stop() == 0
    finally:
        if house.process is not None:
            house.process.kill()


async def test_readiness_is_told_over_http(demo: House) -> None:
    address = demo.service["url"].removeprefix("http://")
    host, _, port = address.partition(":")
    for path, expected in (("/healthz", b" 200 "), ("/readyz", b" 200 "), ("/metrics", b" 401 ")):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
            assert expected in await stream.receive_some(65_536)
