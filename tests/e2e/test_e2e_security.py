"""The attacks known from reports, over real sockets, against the real process."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from e2e_house import CEILING_S, DEMO, House, klbr, open_house, wait_until

from klbr_trio.daemon.folder import prepare
from klbr_trio.daemon.keys import first_keys
from klbr_trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.xdist_group("security")

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
PATHS = ("/", "/metrics")
UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
           f"Sec-WebSocket-Key: {KEY}")  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Generator[House]:
    """A service that logs everything, which the module's tests attack one after the other."""
    with open_house(tmp_path_factory.mktemp("guarded")) as one:
        one.start(*DEMO, "--log-level", "debug")
        yield one


def address(house: House) -> tuple[str, int]:
    host, _, port = str(house.service["url"]).removeprefix("http://").partition(":")
    return host, int(port)


def request(house: House, path: str = "/", *lines: str, host: str | None = None) -> bytes:
    at = "{}:{}".format(*address(house))
    return "\r\n".join([f"GET {path} HTTP/1.1", f"Host: {host or at}", *lines, "", ""]).encode()


def ask(house: House, data: bytes) -> bytes:
    """What the service answers, to the end of the connection, which it has to close."""
    heard = b""
    with closing(socket.create_connection(address(house), timeout=CEILING_S)) as client:
        client.sendall(data)
        try:
            while piece := client.recv(65_536):
                heard += piece
        except ConnectionResetError:
            pass
    return heard


def status(reply: bytes) -> int:
    head, _, _ = reply.partition(b"\r\n\r\n")
    lines = head.decode("ascii").split("\r\n")
    assert "X-Content-Type-Options: nosniff" in lines
    assert "Cache-Control: no-store" in lines
    assert b"access-control" not in head.lower()
    assert b"klbr" not in reply, "who has no rights is told no names"
    return int(lines[0].split(" ")[1])


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


def is_alive(house: House) -> bool:
    reply = ask(house, request(house, "/healthz"))
    return reply.startswith(b"HTTP/1.1 200 ") and reply.endswith(b"\r\n\r\nok\n")


class Socket:
    """An open WebSocket, frames as bytes."""

    def __init__(self, house: House, *lines: str, token: str | None = None) -> None:
        self.raw = socket.create_connection(address(house), timeout=CEILING_S)
        head = request(house, "/", bearer(token or house.token), *UPGRADE, *lines)
        self.raw.sendall(head)
        self._buffer = b""
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        self.head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        assert b" 101 " in self.head, self.head

    def _more(self) -> None:
        data = self.raw.recv(65_536)
        if not data:
            raise EOFError
        self._buffer += data

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def frame(self) -> tuple[int, bytes]:
        first, size = self._take(2)
        if size >= 126:
            size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
        return first, self._take(size)

    def say(self, text: str) -> None:
        self.raw.sendall(text_frame(text.encode()))

    def hear(self) -> dict[str, Any]:
        while True:
            first, payload = self.frame()
            if first == 0x81:
                found: dict[str, Any] = json.loads(payload)
                return found
            assert first != 0x88, payload

    def ask(self, kind: str, **fields: object) -> dict[str, Any]:
        self.say(json.dumps({"type": kind, **fields}))
        return self.hear()

    def close_code(self) -> int | None:
        """What it is closed with; None for a cut. What comes before is dropped."""
        try:
            while True:
                first, payload = self.frame()
                if first == 0x88:
                    return int.from_bytes(payload[:2], "big")
        except (EOFError, ConnectionError):
            return None

    def close(self) -> None:
        self.raw.close()


def text_frame(payload: bytes, first: int = 0x81) -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 65_536:
        head = bytes((first, 0xFE)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, 0xFF)) + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload


def test_without_a_token_nothing_opens(guarded: House) -> None:
    for path in PATHS:
        for lines in ((), UPGRADE):
            assert status(ask(guarded, request(guarded, path, *lines))) == 401
    assert is_alive(guarded)
    assert guarded.klbr("status", "--json").json["sessions"] == []


def test_nothing_that_is_near_the_token_opens(guarded: House) -> None:
    good = guarded.token
    for line in (
        "Authorization: Bearer",
        "Authorization: Bearer ",
        bearer(good[:-1]),
        bearer(good + "x"),
        bearer(good.upper() if good != good.upper() else good.lower()),
        f"Authorization: Basic {good}",
        f"{bearer(good)}\r\n{bearer(good)}",
        bearer("' OR '1'='1"),
        f"Cookie: token={good}",
    ):
        assert status(ask(guarded, request(guarded, "/metrics", line))) == 401, line
    assert status(ask(guarded, request(guarded, "/metrics", bearer("x" * 100_000)))) == 400
    assert status(ask(guarded, request(guarded, f"/?token={good}", *UPGRADE))) == 401
    assert status(ask(guarded, request(guarded, f"/metrics?access_token={good}"))) == 401
    assert is_alive(guarded)


def test_pages_of_other_origins_are_refused(guarded: House) -> None:
    host, port = address(guarded)
    for origin in (
        "https://evil.example", "null", "", f"http://{host}:{port}.evil.example",
        f"http://localhost.evil:{port}", f"http://{host}:{port + 1}", f"https://{host}:{port}",
        f"HTTP://{host}:{port}", f"http://{host}:{port}/", f"http://{host}",
        f"http://{host}:{port}\r\nOrigin: http://{host}:{port}",
    ):  # fmt: skip
        for path, lines in (("/", UPGRADE), ("/healthz", ()), ("/metrics", ())):
            head = request(guarded, path, f"Origin: {origin}", bearer(guarded.token), *lines)
            assert status(ask(guarded, head)) == 403, origin
    own = Socket(guarded, f"Origin: http://{host}:{port}")
    assert own.ask("ping")["type"] == "pong"
    own.close()


def test_names_that_are_not_ours_are_refused(guarded: House) -> None:
    host, port = address(guarded)
    for name in (
        f"evil.example:{port}", f"localhost.evil.com:{port}", f"127.evil.com:{port}",
        f"0.0.0.0:{port}", f"[::ffff:127.0.0.1]:{port}", host, f"{host}.:{port}", f"127.1:{port}",
        f"2130706433:{port}", f"0x7f.1:{port}", f"127.0.0.1.nip.io:{port}", f"user@{host}:{port}",
        "localhost",
    ):  # fmt: skip
        for path in ("/", "/healthz"):
            head = request(guarded, path, bearer(guarded.token), *UPGRADE, host=name)
            assert status(ask(guarded, head)) == 421, name
    at = f"{host}:{port}"
    twice = request(guarded, "/healthz", f"Host: {at}", host="evil.example")
    assert status(ask(guarded, twice)) == 400
    absolute = request(guarded, f"http://{at}/healthz", host="evil.example")
    assert status(ask(guarded, absolute)) == 400
    assert status(ask(guarded, b"GET /healthz HTTP/1.0\r\n\r\n")) == 421


def test_forms_preflights_and_other_paths_get_nothing(guarded: House) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        body = b'{"type":"stop","session_id":"s"}'
        head = request(guarded, "/", f"Content-Type: {kind}", f"Content-Length: {len(body)}")
        assert status(ask(guarded, head.replace(b"GET", b"POST", 1) + body)) == 405
    preflight = request(guarded, "/", "Access-Control-Request-Method: POST", bearer(guarded.token))
    assert status(ask(guarded, preflight.replace(b"GET", b"OPTIONS", 1))) == 405
    for path in ("/../../etc/passwd", "/..%2f..%2fetc/passwd", "/token", "//", "/%2e%2e/token",
                 "/healthz/", "/HEALTHZ"):  # fmt: skip
        assert status(ask(guarded, request(guarded, path, bearer(guarded.token)))) == 404


def test_addresses_beyond_the_loopback_need_tls_and_a_token(tmp_path: Path) -> None:
    for options, variables in ((("--listen", "[::]:0"), {}), ((), {"KLBR_LISTEN": "0.0.0.0:0"})):
        refused = klbr("serve", "--state", str(tmp_path / "state"), *options, **variables)
        assert refused.code == 78
        assert "not a loopback address" in refused.only_line


def test_ids_lead_nowhere_and_fields_give_no_rights(guarded: House) -> None:
    client = Socket(guarded)
    before = sorted(str(path) for path in guarded.state.parent.rglob("*"))
    for name in ("../x", "..%2f", "/etc/passwd", "a\0b", "C:\\x", "x" * 5000, "", ".hidden", "a/b"):
        for kind, fields in (
            ("send_input", {"source": "x", "text": "t"}), ("subscribe", {}), ("stop", {}),
            ("history", {"before_seq": 1, "limit": 1}), ("reset_kernel", {}),
        ):  # fmt: skip
            assert client.ask(kind, session_id=name, **fields)["code"] == "invalid_session_id"
    extra = {"model_url": "http://169.254.169.254/", "role": "admin", "behavior": "/tmp",
             "kernel": "/bin/sh", "scopes": ["*"]}  # fmt: skip
    assert client.ask("ping", **extra)["type"] == "pong"
    assert client.ask("config", **extra)["code"] == "bad_request"
    assert sorted(str(path) for path in guarded.state.parent.rglob("*")) == before
    client.close()


def test_no_compression_and_no_reserved_bits(guarded: House) -> None:
    client = Socket(guarded, "Sec-WebSocket-Extensions: permessage-deflate")
    assert b"xtensions" not in client.head
    client.raw.sendall(text_frame(b"\xaaV*-\x06\x00", 0xC1))
    assert client.close_code() in {1002, None}
    client.close()
    coded = request(guarded, "/healthz", "Content-Encoding: gzip", "Content-Length: 0")
    assert status(ask(guarded, coded)) == 415


def test_what_a_stranger_sends_is_one_json_line_and_cut(guarded: House) -> None:
    nasty = "/" + "a" * 300 + '%0d%0a{"level":"CRITICAL"}' + "b" * 12_000
    ask(guarded, request(guarded, nasty, "User-Agent: \x1b[2J\x1b]52;c;eA==\x07", "Origin: null"))
    ask(guarded, request(guarded, nasty, "User-Agent: " + "u" * 900))
    client = Socket(guarded)
    client.say('{"type":"\\u001b[31m\\r\\n{\\"level\\":\\"CRITICAL\\"}","session_id":"s"}')
    assert client.hear()["code"] == "bad_request"
    client.close()
    text = guarded.log.read_text()
    assert {line["level"] for line in guarded.logged} <= {"DEBUG", "INFO", "WARNING"}
    assert "\x1b" not in text
    assert "a" * 257 not in text
    assert "b" * 20 not in text
    assert "u" * 20 not in text


def test_secrets_and_words_are_in_no_log(guarded: House) -> None:
    marker = "marker-6021-said-by-the-user"
    client = Socket(guarded)
    client.say(json.dumps({"type": "send_input", "session_id": "logs", "source": marker}))
    assert client.hear()["code"] == "bad_request"
    client.say(f'{{"type": {marker}')
    assert client.hear()["code"] == "bad_request"
    fields = {"session_id": "logs", "source": marker, "text": f"what is 1/0 {marker}"}
    assert client.ask("send_input", **fields)["type"] == "ack"
    wait_until(lambda: "turn.completed" in guarded.kinds("logs"))
    page = request(guarded, f"/?token={guarded.token}&q={marker}", bearer(guarded.token))
    assert b" 426 " in ask(guarded, page)
    client.close()
    for secret in (marker, guarded.token):
        assert secret not in guarded.log.read_text()
    assert guarded.token.encode() not in (guarded.state / "klbr.sqlite").read_bytes()


def test_links_that_were_planted_are_refused_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for name in ("klbr.sqlite-wal", "lock", "klbr.sock", "token", "service.json", "read-tokens",
                 "releases", "workspaces", "klbr.sqlite"):  # fmt: skip
        state = tmp_path / name
        state.mkdir(mode=0o700)
        (state / name).symlink_to(target)
        with pytest.raises(ConfigError, match="symbolic link"):
            first_keys(prepare(state))
        assert not target.exists()
    state = tmp_path / "klbr.sqlite"
    refused = klbr("serve", "--state", str(state), "--listen", "127.0.0.1:0", *DEMO)
    assert refused.code == 78
    assert "symbolic link" in refused.only_line
    assert not target.exists()


def test_files_that_were_open_are_closed(house: House) -> None:
    house.start(*DEMO)
    assert house.klbr("send", "s", "what is 1+1").code == 0
    house.kill()
    for path in house.state.glob("klbr.sqlite*"):
        path.chmod(0o644)
    before = os.umask(0o000)
    try:
        house.start(*DEMO)
    finally:
        os.umask(before)
    open_ones = [
        path for path in (house.state, *house.state.rglob("*")) if path.lstat().st_mode & 0o077
    ]
    assert open_ones == []
    assert house.stop() == 0


def resident_mib(house: House) -> float:
    for line in Path(f"/proc/{house.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError


def send_all(house: House, data: bytes, *, socket_open: bool, times: int = 1) -> None:
    """Send for as long as the service takes it, and read nothing."""
    client = Socket(house).raw if socket_open else socket.create_connection(address(house))
    with closing(client):
        client.settimeout(CEILING_S)
        try:
            for _ in range(times):
                client.sendall(data)
        except OSError:
            pass


def test_floods_cost_little_and_disturb_nobody(guarded: House) -> None:
    good = Socket(guarded)
    assert good.ask("subscribe", session_id="calm")["type"] == "sync_started"
    assert good.hear()["type"] == "sync_completed"
    huge = 64 * 1024 * 1024
    deep = b'{"type":"ping","timestamp":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    digits = b'{"type":"ping","timestamp":' + b"9" * 5000 + b"}"
    many = text_frame(b'{"type":"ping"}') * 10_000
    ignored = text_frame(b'{"type":"list_sessions"}') * 1_000
    floods = (
        (b"\x81\xff" + huge.to_bytes(8, "big") + b"\0" * 4 + b"x" * 65_536, True, 200),
        (text_frame(b"", 0x01) + text_frame(b"", 0x00) * 50_000, True, 20),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200_000, False, 1),
        (b"GET /" + b"a" * 20_000, False, 1),
        (text_frame(deep), True, 1),
        (text_frame(digits), True, 1),
        (many, True, 1),
        (ignored, True, 20),
    )
    before = resident_mib(guarded)
    idle = [socket.create_connection(address(guarded)) for _ in range(300)]
    threads = [
        threading.Thread(
            target=send_all, args=(guarded, data), kwargs={"socket_open": opens, "times": times}
        )
        for data, opens, times in floods
    ]
    for thread in threads:
        thread.start()
    pinged = 0
    while any(thread.is_alive() for thread in threads) or pinged < 20:
        assert good.ask("ping", timestamp=pinged) == {"type": "pong", "timestamp": pinged}
        pinged += 1
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert is_alive(guarded)
    for client in idle:
        client.close()
    grown = resident_mib(guarded) - before
    assert grown < 30
    wait_until(lambda: gauge(guarded, "klbr_connections") <= 2, "the end of the flood")
    done = guarded.klbr("send", "calm", "what is 40+2", "--no-wait")
    assert done.code == 0
    while (heard := good.hear()).get("record", {}).get("kind") != "local.sent":
        assert heard["type"] in {"event", "live_chunk"}
    good.close()


def gauge(house: House, name: str) -> float:
    reply = ask(house, request(house, "/metrics", bearer(house.token))).decode()
    return next(float(line.split()[1]) for line in reply.splitlines() if line.startswith(name))


def test_guesses_are_slowed_and_the_right_token_is_not(guarded: House) -> None:
    """Last, since it leaves guesses behind."""
    good = Socket(guarded)
    host, port = address(guarded)
    extra = (f"X-Forwarded-For: {host}", "X-Real-Ip: 10.0.0.1", f"Origin: http://{host}:{port}")
    seen: list[int] = []

    def guess(number: int) -> None:
        lines = (bearer(f"{number:032}"), *(extra if number % 2 else ()))
        seen.append(status(ask(guarded, request(guarded, "/metrics", *lines))))

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(80)]
    for thread in threads:
        thread.start()
    assert good.ask("ping")["type"] == "pong"
    another = Socket(guarded)
    assert another.ask("ping")["type"] == "pong"
    for thread in threads:
        thread.join()
    assert set(seen) == {401, 429}
    assert seen.count(401) >= 20, "the first ones are answered"
    good.close()
    another.close()


def test_stalled_clients_do_not_hold_up_the_end(house: House) -> None:
    house.start(*DEMO)
    stalled = [Socket(house) for _ in range(20)]
    for one in stalled:
        one.ask("subscribe", session_id="s")
        one.raw.sendall(text_frame(b'{"type":"list_sessions"}') * 2_000)
    unfinished = [socket.create_connection(address(house)) for _ in range(20)]
    for number, half in enumerate(unfinished):
        half.sendall(request(house, "/", bearer(house.token), *UPGRADE)[: 10 + 5 * number])
    pieces = Socket(house)
    pieces.raw.sendall(text_frame(b"never to be ended", 0x01))
    assert house.klbr("send", "s", "what is 1+1", "--no-wait").code == 0
    assert house.stop() == 0
    assert house.findings() == []
    for one in (*stalled, pieces):
        one.close()
    for half in unfinished:
        half.close()
