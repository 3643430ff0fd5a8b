"""The port behind TLS: the same promises, over real certificates and sockets."""

from __future__ import annotations

import json
import ssl
import subprocess
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio_websocket
from port_house import CEILING, GOOD, House, answer, echo

from klbr_trio import SessionRegistry, Store, WorkerConfig, serve_listener
from klbr_trio.daemon.exposure import check_exposure, exposure, tls_context
from klbr_trio.daemon.settings import ServiceSettings
from klbr_trio.errors import ConfigError
from klbr_trio.service.port.accept import OnSocket, Port, serve_encrypted_port
from klbr_trio.service.port.gate import Policy, bound_hosts
from klbr_trio.service.port.limits import PortLimits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

ROOT = Path(__file__).parents[2]
QUICK = PortLimits(head_seconds=1, linger_seconds=0.2, close_seconds=0.5, stall_seconds=1)


@attrs.frozen
class Papers:
    cert: Path
    key: Path

    @property
    def server(self) -> ssl.SSLContext:
        context = tls_context(
            ServiceSettings(state=self.cert, tls_cert=self.cert, tls_key=self.key)
        )
        assert context is not None
        return context

    @property
    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.cert)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder = tmp_path_factory.mktemp("tls")
    found = Papers(folder / "cert.pem", folder / "key.pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    subprocess.run(
        [*command.split(), "-subj", "/CN=localhost", "-keyout", found.key, "-out", found.cert,
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    found.key.chmod(0o600)
    return found


@asynccontextmanager
async def open_tls_house(
    papers: Papers, on_socket: OnSocket = echo, *, limits: PortLimits | None = None
) -> AsyncGenerator[House]:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listeners[0].socket.getsockname()
    policy = Policy(hosts=bound_hosts([address], tls=True), tokens=(GOOD,))
    port = Port(policy=policy, limits=limits or PortLimits())
    async with trio.open_nursery() as relays, trio.open_nursery() as listening:
        async with trio.open_nursery() as handlers:
            await listening.start(
                partial(
                    serve_encrypted_port,
                    listeners,
                    context=papers.server,
                    relay_nursery=relays,
                    handler_nursery=handlers,
                    port=port,
                    on_socket=on_socket,
                    on_http=answer,
                )
            )
            yield House(address, port, handlers)
            handlers.cancel_scope.cancel()
        listening.cancel_scope.cancel()
        relays.cancel_scope.cancel()


Encrypted = trio.SSLStream[trio.SocketStream]


@asynccontextmanager
async def encrypted(house: House, papers: Papers) -> AsyncGenerator[Encrypted]:
    stream = await trio.open_ssl_over_tcp_stream(
        *house.address, ssl_context=papers.client, https_compatible=True
    )
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


async def ask(house: House, papers: Papers, request: bytes) -> bytes:
    data = b""
    with trio.fail_after(CEILING):
        async with encrypted(house, papers) as stream:
            await stream.send_all(request)
            async for piece in stream:
                data += piece
    return data


@asynccontextmanager
async def socket(
    url: str, papers: Papers, token: str = GOOD
) -> AsyncGenerator[trio_websocket.WebSocketConnection]:
    async with trio_websocket.open_websocket_url(
        url, papers.client, extra_headers=[(b"authorization", f"Bearer {token}".encode())]
    ) as found:
        yield found


async def test_requests_and_sockets_are_answered_as_in_the_clear(papers: Papers) -> None:
    async with open_tls_house(papers) as house:
        healthy = await ask(house, papers, house.request("/healthz", token=None))
        assert healthy.startswith(b"HTTP/1.1 200 OK\r\n")
        assert healthy.endswith(b"\r\n\r\nok\n")
        stranger = await ask(house, papers, house.request("/metrics", token=None))
        assert stranger.startswith(b"HTTP/1.1 401 ")
        rebound = await ask(house, papers, house.request("/", host="evil.example"))
        assert rebound.startswith(b"HTTP/1.1 421 ")
        async with socket(f"wss://{house.host}/", papers) as client:
            for text in ("hello", "x" * 300_000, "again"):
                with trio.fail_after(CEILING):
                    await client.send_message(text)
                    assert await client.get_message() == text
        await house.at_rest()


async def test_a_reply_arrives_while_its_request_is_still_sent(papers: Papers) -> None:
    async with open_tls_house(papers) as house:
        head = house.request("/", method="POST", extra=("Content-Length: 60000",))
        assert (await ask(house, papers, head + b"x" * 60_000)).startswith(b"HTTP/1.1 405 ")


async def test_what_speaks_no_tls_is_hung_up_on(papers: Papers) -> None:
    async with open_tls_house(papers, limits=QUICK) as house:
        for data in (house.request("/healthz"), b"\x16\x03\x01\xff\xff" + b"x" * 300, b""):
            async with house.connect() as client:
                await client.send(data)
                await client.ended()
        assert (await ask(house, papers, house.request("/healthz"))).endswith(b"ok\n")
        await house.at_rest()
        assert house.port.lobby.waiting == 0


async def test_a_silent_handshake_is_given_up_and_locks_nobody_out(papers: Papers) -> None:
    limits = attrs.evolve(QUICK, unfinished_heads=3, head_seconds=CEILING * 2)
    async with open_tls_house(papers, limits=limits) as house, trio.open_nursery() as nursery:
        cut = trio.Event()

        async def be_silent() -> None:
            async with house.connect() as client:
                await client.ended()
                cut.set()

        for _ in range(6):
            nursery.start_soon(be_silent)
        with trio.fail_after(CEILING):
            await cut.wait()
        assert (await ask(house, papers, house.request("/healthz"))).endswith(b"ok\n")
        nursery.cancel_scope.cancel()


async def test_who_goes_without_a_word_is_noticed(papers: Papers) -> None:
    async with open_tls_house(papers, limits=QUICK) as house:
        for _ in range(5):
            async with encrypted(house, papers) as stream:
                await stream.send_all(house.request(upgrade=True))
                assert b" 101 " in await stream.receive_some(65_536)
                await trio.aclose_forcefully(stream.transport_stream)
        await house.at_rest()


async def test_a_client_that_reads_nothing_is_cut(papers: Papers) -> None:
    async with open_tls_house(papers, limits=QUICK) as house:
        async with encrypted(house, papers) as stream:
            await stream.send_all(house.request(upgrade=True))
            assert b" 101 " in await stream.receive_some(65_536)
            with trio.fail_after(CEILING), pytest.raises(trio.BrokenResourceError):
                await flood(stream)
        await house.at_rest()


async def flood(stream: Encrypted) -> None:
    while True:
        await stream.send_all(_text(b"x" * 60_000))


def _text(payload: bytes) -> bytes:
    return b"\x81\xfe" + len(payload).to_bytes(2, "big") + b"\0" * 4 + payload


async def test_the_end_is_told_inside_of_tls(papers: Papers) -> None:
    async with open_tls_house(papers) as house, encrypted(house, papers) as stream:
        await stream.send_all(house.request(upgrade=True) + _text(b"x" * 200))
        heard = b""
        with trio.fail_after(CEILING):
            while len(heard) < 200:
                heard += await stream.receive_some(65_536)
            house.handlers.cancel_scope.cancel()
            assert (await stream.receive_some(65_536))[2:4] == (1012).to_bytes(2, "big")


async def test_a_whole_service_behind_tls(papers: Papers, tmp_path: Path) -> None:
    async with (
        Store.open(tmp_path / "klbr.sqlite") as store,
        SessionRegistry.open(store, WorkerConfig.source_tree(ROOT)) as registry,
        trio.open_nursery() as nursery,
    ):
        host, port = await nursery.start(
            partial(
                serve_listener,
                registry=registry,
                auth=GOOD,
                tls=papers.server,
                names=("agents.example",),
            )
        )
        async with socket(f"wss://localhost:{port}/", papers) as client:
            with trio.fail_after(CEILING):
                said = {"type": "send_input", "session_id": "s", "source": "t", "text": "hi"}
                await client.send_message(json.dumps(said))
                assert json.loads(await client.get_message())["type"] == "ack"
        house = House((host, port), Port(policy=Policy(hosts=frozenset(), tokens=None)), nursery)
        known = await ask(house, papers, house.request("/readyz", host=f"agents.example:{port}"))
        assert known.startswith(b"HTTP/1.1 200 ")
        page = house.request("/readyz", extra=(f"Origin: http://127.0.0.1:{port}",))
        assert (await ask(house, papers, page)).startswith(b"HTTP/1.1 403 ")
        nursery.cancel_scope.cancel()


def test_hosts_leave_out_the_port_that_tls_implies() -> None:
    assert "127.0.0.1" in bound_hosts([("127.0.0.1", 443)], tls=True)
    assert "127.0.0.1:80" in bound_hosts([("127.0.0.1", 80)], tls=True)
    assert "a.example:9" in bound_hosts([("0.0.0.0", 9)], names=["a.example"], tls=True)
    assert not any("0.0.0.0" in host for host in bound_hosts([("0.0.0.0", 9)], tls=True))


def test_keys_and_certificates_that_can_not_be(papers: Papers, tmp_path: Path) -> None:
    def settings(cert: Path | None, key: Path | None) -> ServiceSettings:
        return ServiceSettings(state=tmp_path, tls_cert=cert, tls_key=key)

    known = tmp_path / "known.pem"
    known.write_bytes(papers.key.read_bytes())
    known.chmod(0o644)
    junk = tmp_path / "junk.pem"
    junk.write_text("nothing")
    junk.chmod(0o600)
    for cert, key, words in (
        (papers.cert, None, "go together"),
        (None, papers.key, "go together"),
        (papers.cert, known, "open to other users"),
        (papers.cert, tmp_path / "missing", "can't be read"),
        (papers.cert, junk, "can't be used"),
        (junk, papers.key, "can't be used"),
    ):
        with pytest.raises(ConfigError, match=words):
            tls_context(settings(cert, key))
    assert tls_context(settings(None, None)) is None


def test_exposure_is_said_and_has_its_conditions(papers: Papers, tmp_path: Path) -> None:
    here = ServiceSettings(state=tmp_path)
    there = attrs.evolve(here, host="0.0.0.0")
    safe = attrs.evolve(there, tls_cert=papers.cert, tls_key=papers.key)
    check_exposure(here)
    check_exposure(safe)
    assert exposure(here) is None
    assert "whoever has the token" in str(exposure(safe))
    with pytest.raises(ConfigError, match="unencrypted"):
        check_exposure(there)
    with pytest.raises(ConfigError, match="no_auth"):
        check_exposure(attrs.evolve(safe, no_auth=True))
