"""What a kernel reaches of the network: nothing, public addresses by the proxy, or everything."""

from __future__ import annotations

import base64
import ipaddress
import logging
import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from kernel_lab import CEILING_S, SANDBOXES, Lab, config_of, make_spec, open_lab

from klbr_trio.kernel import Network
from klbr_trio.kernel.network.addresses import Address, is_allowed, is_public
from klbr_trio.kernel.network.proxy import Blocked, Proxy, Rules, parse, resolve
from klbr_trio.kernel.sandbox import Level

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

PUBLIC_ADDRESS = ipaddress.ip_address("93.184.216.34")


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1",
        "169.254.169.254", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8",
        "64:ff9b::7f00:1", "64:ff9b::808:808", "2002:7f00:1::", "2001:0:4136:e378::1", "2001:db8::1",
    ],
)  # fmt: skip
def test_what_is_no_public_address(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["8.8.8.8", "93.184.216.34", "2606:4700:4700::1111"])
def test_what_is_a_public_address(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


def test_domains_are_names_and_what_is_below_them() -> None:
    assert is_allowed("anything.example", ())
    assert is_allowed("pypi.org", ("pypi.org",))
    assert is_allowed("Files.PyPI.org.", ("pypi.org",))
    assert not is_allowed("evilpypi.org", ("pypi.org",))
    assert not is_allowed("pypi.org.evil.example", ("pypi.org",))


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"hello", "400"),
        (b"GET / HTTP/1.1", "400"),
        (b"GET file:///etc/passwd HTTP/1.1", "400"),
        (b"GET https://a.example/ HTTP/1.1", "400"),
        (b"CONNECT a.example HTTP/1.1", "400"),
        (b"CONNECT a.example:x HTTP/1.1", "400"),
        (b"CONNECT a.example:99999 HTTP/1.1", "400"),
        (b"CONNECT [::1:443 HTTP/1.1", "400"),
        (b"GET http://[bad/ HTTP/1.1", "400"),
        (b"CONNECT a.example:443 HTTP/2", "400"),
    ],
)
def test_what_is_no_request_of_a_proxy(head: bytes, status: str) -> None:
    with pytest.raises(Blocked) as caught:
        parse(head, b"", password=None)
    assert caught.value.status.startswith(status)


def test_a_request_is_passed_on_without_what_was_for_the_proxy() -> None:
    head = (
        b"GET http://u:p@a.example:80/x?y=1 HTTP/1.1\r\nHost: a.example\r\n"
        b"Proxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\nConnection: keep-alive"
    )
    target = parse(head, b"body", password=None)
    assert (target.host, target.port, target.tunnel) == ("a.example", 80, False)
    assert target.first == (
        b"GET /x?y=1 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\nbody"
    )


def test_a_password_is_asked_for_where_there_is_one() -> None:
    given = base64.b64encode(b"klbr:right")
    head = b"CONNECT a.example:443 HTTP/1.1"
    right = parse(head + b"\r\nProxy-Authorization: Basic " + given, b"", password="right")
    assert right.host == "a.example"
    for wrong in (b"", b"\r\nProxy-Authorization: Basic " + base64.b64encode(b"klbr:wrong")):
        with pytest.raises(Blocked, match="another session's"):
            parse(head + wrong, b"", password="right")


@asynccontextmanager
async def a_proxy(
    rules: Rules, names: dict[str, list[str]], port: int = 0
) -> AsyncGenerator[tuple[int, list[Address]]]:
    """A proxy whose names are `names`, and whose public addresses are all at `port` of this host."""
    reached: list[Address] = []

    async def look_up(host: str, _port: int) -> Sequence[Address]:
        await trio.lowlevel.checkpoint()
        if host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [ipaddress.ip_address(text) for text in names[host]]

    async def reach(address: Address, _port: int) -> trio.SocketStream:
        reached.append(address)
        return await trio.open_tcp_stream("127.0.0.1", port)

    listener = socket.create_server(("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Proxy(rules, look_up, reach).serve, listener)
        yield listener.getsockname()[1], reached
        nursery.cancel_scope.cancel()


async def ask(port: int, request: bytes) -> bytes:
    with trio.fail_after(CEILING_S):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(request)
            answer = b""
            while data := await stream.receive_some():
                answer += data
            return answer


async def echo_once(stream: trio.SocketStream) -> None:
    data = await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok:" + data)


async def test_a_public_name_is_reached_at_the_address_that_was_checked(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    servers = await nursery.start(trio.serve_tcp, echo_once, 0)
    behind = servers[0].socket.getsockname()[1]
    names = {"public.example": ["10.0.0.1", str(PUBLIC_ADDRESS)]}
    async with a_proxy(Rules(session="s-1"), names, behind) as (port, reached):
        answer = await ask(port, b"GET http://public.example/x HTTP/1.1\r\n\r\n")
        assert answer.endswith(b"ok:GET /x HTTP/1.1\r\nConnection: close\r\n\r\n")
        answer = await ask(port, b"CONNECT public.example:443 HTTP/1.1\r\n\r\nhello")
        assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\n")
        assert answer.endswith(b"ok:hello")
        assert reached == [PUBLIC_ADDRESS] * 2
    told = [record for record in caplog.records if "public.example" in record.getMessage()]
    assert [getattr(record, "session", None) for record in told] == ["s-1"] * 2
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "where",
    [
        "rebound.example:80", "127.0.0.1:80", "2130706433:80", "0x7f.1:80", "[::1]:80",
        "169.254.169.254:80", "[::ffff:127.0.0.1]:80", "0.0.0.0:80", "public.example:22",
        "public.example:8765", "not-listed.example:80", "unknown.example:80",
    ],
)  # fmt: skip
async def test_nothing_else_is_reached(where: str) -> None:
    names = {"rebound.example": ["127.0.0.1"], "public.example": [str(PUBLIC_ADDRESS)]}
    names |= {"not-listed.example": [str(PUBLIC_ADDRESS)]}
    listed = ("rebound.example", "public.example", "unknown.example")
    domains = listed if "example" in where else ()
    async with a_proxy(Rules(session="s", domains=domains), names) as (port, reached):
        answer = await ask(port, f"CONNECT {where} HTTP/1.1\r\n\r\n".encode())
        assert b"blocked by klbr" in answer
        assert answer[:12] in (b"HTTP/1.1 403", b"HTTP/1.1 502")
        assert reached == []


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "localhost", "127.1"])
async def test_every_way_to_write_loopback_resolves_to_loopback(host: str) -> None:
    assert not any(is_public(address) for address in await resolve(host, 80))


@asynccontextmanager
async def networked(
    folder: Path, level: Level, network: Network, domains: tuple[str, ...] = ()
) -> AsyncGenerator[Lab]:
    config = attrs.evolve(config_of(level), network=network, domains=domains)
    async with open_lab(make_spec(folder), config) as lab:
        yield lab


FETCH = """
import urllib.request, urllib.error
def fetch(url):
    try:
        return urllib.request.urlopen(url, timeout=10).read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError as error:
        return repr(error)
"""


@pytest.mark.parametrize("level", SANDBOXES, ids=lambda level: level.value)
async def test_a_cell_reaches_the_proxy_and_no_private_address(
    tmp_path: Path, level: Level
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with networked(tmp_path, level, Network.PUBLIC) as lab:
            await lab.value(FETCH + "import os; os.environ['no_proxy'] = ''")
            for url in (
                f"http://127.0.0.1:{port}/",
                "http://localhost/",
                "http://169.254.169.254/",
            ):
                assert "blocked by klbr: " in (await lab.value(f"fetch({url!r})") or ""), url
            refused = await lab.error(
                f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
            )
            assert "Error" in refused


async def test_a_cell_without_a_network_is_told_so(tmp_path: Path) -> None:
    async with networked(tmp_path, Level.FULL, Network.OFF) as lab:
        for code in (
            "import urllib.request; urllib.request.urlopen('http://example.com')",
            "import socket; socket.create_connection(('192.0.2.1', 80))",
        ):
            assert "Hint: this kernel reaches nothing outside" in await lab.error(code)


async def test_a_kernels_proxy_is_nobody_elses(tmp_path: Path) -> None:
    """Behind Landlock the proxy listens on the host's loopback, where a password keeps it."""
    async with networked(tmp_path, Level.REDUCED, Network.PUBLIC) as lab:
        url = await lab.value("import os; os.environ['http_proxy']")
        assert url is not None
        port = int(url.strip("'").rpartition(":")[2])
        answer = await ask(port, b"CONNECT 8.8.8.8:443 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 407 ")


async def test_a_cell_has_a_loopback_of_its_own(tmp_path: Path) -> None:
    code = (
        "import socket, threading\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "threading.Thread(target=lambda: server.accept()[0].sendall(b'mine')).start()\n"
        "socket.create_connection(server.getsockname()).recv(9)"
    )
    async with networked(tmp_path, Level.FULL, Network.OFF) as lab:
        assert await lab.value(code) == "b'mine'"


@pytest.mark.parametrize("level", SANDBOXES, ids=lambda level: level.value)
async def test_an_open_network_is_the_machines(tmp_path: Path, level: Level) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with networked(tmp_path, level, Network.OPEN) as lab:
            code = (
                f"import socket; socket.create_connection(('127.0.0.1', {port}), 5) and 'reached'"
            )
            assert await lab.value(code) == "'reached'"


@pytest.mark.parametrize("level", SANDBOXES, ids=lambda level: level.value)
async def test_a_kernel_with_a_network_leaves_nothing_open(tmp_path: Path, level: Level) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # no other thread is needed
    async with networked(tmp_path, level, Network.PUBLIC) as lab:
        assert await lab.value("1 + 1") == "2"
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
