"""The port from outside: requests, refusals, caps, and what one client can't do to others."""

from __future__ import annotations

import logging
import os
import resource
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from port_house import (
    CEILING,
    CONTINUATION,
    GOOD,
    TEXT,
    RawClient,
    client_frame,
    echo,
    open_house,
)

from klbr_trio.service.port.accept import PortStatistics
from klbr_trio.service.port.frames import frame
from klbr_trio.service.port.limits import PortLimits
from klbr_trio.service.port.reply import Response

if TYPE_CHECKING:
    from klbr_trio.service.port.connection import Connection

AT_ONCE = 1.0


async def test_plain_requests_and_sockets_share_the_port() -> None:
    async with open_house() as house:
        reply = await house.ask(house.request("/healthz", token=None))
        assert (reply.status, reply.body) == (200, b"ok\n")
        assert reply.headers == {
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Length": "3",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
        }
        assert (await house.ask(house.request("/readyz", token=None))).body == b"this is /readyz\n"
        assert (await house.ask(house.request("/metrics"))).body == b"this is /metrics\n"
        async with house.socket() as client:
            await client.say("hello")
            assert await client.text() == "hello"


async def test_what_http_answers_is_passed_on_whole() -> None:
    body = b"x" * 100_000

    def busy(path: str) -> Response:
        return Response(503, body, content_type="text/plain; version=0.0.4", headers=(("A", path),))

    async with open_house(on_http=busy) as house:
        reply = await house.ask(house.request("/readyz"))
        assert (reply.status, reply.body, reply.headers["A"]) == (503, body, "/readyz")
        assert reply.headers["Content-Type"] == "text/plain; version=0.0.4"


async def test_every_refusal_is_one_line_and_closes_at_once() -> None:
    async with open_house() as house:
        for request, status in (
            (house.request("/healthz", host="evil.example"), 421),
            (house.request("/healthz", extra=("Origin: https://evil.example",)), 403),
            (house.request("/nowhere"), 404),
            (house.request("/metrics", method="DELETE"), 405),
            (house.request("/metrics", token=None), 401),
            (house.request("/metrics", token="wrong"), 401),
            (house.request("/"), 426),
            (house.request("/metrics", extra=("Content-Encoding: gzip",)), 415),
            (house.request(extra=("X: \xff",)), 400),
        ):
            with trio.fail_after(AT_ONCE):
                reply = await house.ask(request)
            assert reply.status == status
            assert reply.body.count(b"\n") == 1
            assert reply.headers["X-Content-Type-Options"] == "nosniff"
            assert reply.headers["Cache-Control"] == "no-store"
            assert not [name for name in reply.headers if name.startswith("Access-Control")]
            for secret in (GOOD.encode(), b"Traceback", b"klbr_trio", b".py"):
                assert secret not in reply.body
        await house.at_rest()


async def test_without_the_token_nothing_opens_and_nobody_is_told_more() -> None:
    met: list[Connection] = []

    async def meet(connection: Connection) -> None:
        met.append(connection)

    async with open_house(meet) as house:
        for upgrade in (False, True):
            for path in ("/", "/metrics"):
                reply = await house.ask(house.request(path, token=None, upgrade=upgrade))
                assert reply.status == 401
                assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert (await house.ask(house.request("/healthz", token=None))).body == b"ok\n"
        assert (await house.ask(house.request(f"/?token={GOOD}", token=None))).status == 401
        evil = ("Origin: https://evil.example",)
        assert (await house.ask(house.request(upgrade=True, extra=evil))).status == 403
        assert (await house.ask(house.request(upgrade=True, version="1.0"))).status == 400
        assert met == []


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
async def test_a_forms_post_is_refused_while_its_body_still_comes(kind: str) -> None:
    async with open_house() as house, house.connect() as client:
        extra = (f"Content-Type: {kind}", "Content-Length: 300000")
        await client.send(house.request(method="POST", extra=extra) + b"x" * 200_000)
        assert (await client.reply()).status == 405


async def test_a_preflight_gets_no_permission() -> None:
    async with open_house() as house:
        for origin in ("https://evil.example", f"http://{house.host}"):
            extra = (f"Origin: {origin}", "Access-Control-Request-Method: POST")
            reply = await house.ask(house.request("/metrics", method="OPTIONS", extra=extra))
            assert reply.status in {403, 405}
            assert "access-control" not in " ".join(reply.headers).lower()


async def test_a_wrong_token_in_a_subprotocol_is_told_inside_the_socket() -> None:
    async with open_house() as house, house.connect() as client:
        extra = ("Sec-WebSocket-Protocol: klbr.v2, klbr.token.wrong",)
        await client.send(house.request(token=None, upgrade=True, extra=extra))
        head = await client.head()
        assert head.status == 101
        assert head.headers["Sec-WebSocket-Protocol"] == "klbr.v2"
        assert await client.close_code() == 4401


async def test_the_right_token_in_a_subprotocol_opens() -> None:
    async with open_house() as house, house.connect() as client:
        extra = (f"Sec-WebSocket-Protocol: klbr.v2, klbr.token.{GOOD}",)
        await client.send(house.request(token=None, upgrade=True, extra=extra))
        head = await client.head()
        assert head.headers["Sec-WebSocket-Protocol"] == "klbr.v2"
        assert GOOD not in str(head.headers)
        await client.say("in")
        assert await client.text() == "in"


async def test_no_compression_is_agreed_on() -> None:
    async with open_house() as house, house.connect() as client:
        extra = ("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",)
        await client.send(house.request(upgrade=True, extra=extra))
        head = await client.head()
        assert head.status == 101
        assert "Sec-WebSocket-Extensions" not in head.headers
        await client.send(client_frame(TEXT, b"\xf2\x48\x05\x00", rsv=4))
        assert await client.close_code() == 1002


async def test_a_policy_replaced_while_serving_judges_the_next_request() -> None:
    async with open_house() as house, house.socket() as before:
        await before.say("open")
        assert await before.text() == "open"
        house.port.policy = attrs.evolve(house.port.policy, tokens=("rotated",))
        assert (await house.ask(house.request("/metrics"))).status == 401
        assert (await house.ask(house.request("/metrics", token="rotated"))).status == 200
        await before.say("still open")
        assert await before.text() == "still open"


async def test_a_draining_port_refuses_sockets_and_still_answers() -> None:
    async with open_house() as house, house.socket() as before:
        house.port.is_draining = True
        reply = await house.ask(house.request(upgrade=True))
        assert reply.status == 503
        assert await house.is_alive()
        await before.say("still open")
        assert await before.text() == "still open"


async def test_sockets_beyond_the_cap_are_503_and_a_place_becomes_free_again() -> None:
    async with open_house(limits=PortLimits(sockets=2)) as house:
        async with house.socket(), house.socket() as second:
            assert (await house.ask(house.request(upgrade=True))).status == 503
            assert await house.is_alive()
            await trio.aclose_forcefully(second.stream)
            await house.at_rest(connections=1)
            async with house.socket() as third:
                await third.say("in")
                assert await third.text() == "in"
        await house.at_rest()
        assert house.port.statistics() == PortStatistics(
            connections=0, unfinished_heads=0, sockets=0
        )


async def test_a_head_that_does_not_come_is_given_up() -> None:
    async with open_house(limits=PortLimits(head_seconds=0.2)) as house:
        async with house.connect() as silent, house.connect() as slow:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_dribble, slow)
                for client in (silent, slow):
                    assert (await client.reply()).status == 408
                nursery.cancel_scope.cancel()
        await house.at_rest()


async def _dribble(client: RawClient) -> None:
    for byte in b"GET / HTTP/1.1\r\n" * 1000:
        await client.send(bytes((byte,)))
        await trio.sleep(0.02)


async def test_silent_connections_lock_nobody_out() -> None:
    limits = PortLimits(unfinished_heads=10, linger_seconds=0.1, head_seconds=60)
    async with open_house(limits=limits) as house, trio.open_nursery() as nursery:
        crowd = [await trio.open_tcp_stream(*house.address) for _ in range(60)]
        with trio.fail_after(CEILING):
            assert await house.is_alive()
            async with house.socket() as client:
                await client.say("in")
                assert await client.text() == "in"
        assert house.port.lobby.waiting <= 10
        await house.at_rest(connections=10)
        for stream in crowd:
            nursery.start_soon(trio.aclose_forcefully, stream)
        await house.at_rest()


@pytest.mark.parametrize(
    "bug", [KeyError("a bug"), trio.BrokenResourceError("a bug"), UnicodeError("a bug")]
)
async def test_a_failing_handler_ends_its_own_connection_alone(
    bug: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def fragile(connection: Connection) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            while True:
                if await connection.receive() == "break":
                    raise bug
                await connection.send_frames([frame("fine")])

    async with open_house(fragile) as house, house.socket() as good:
        async with house.socket() as bad:
            await bad.say("break")
            assert await bad.close_code() == 1011
        await house.at_rest(connections=1)
        await good.say("well?")
        assert await good.text() == "fine"
        assert await house.is_alive()
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "its handler failed" in record.getMessage()
    assert "a bug" in caplog.text


async def test_a_failing_answer_is_500_with_an_id_that_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(path: str) -> Response:
        raise ZeroDivisionError(path)

    async with open_house(on_http=broken) as house:
        reply = await house.ask(house.request("/readyz"))
        assert reply.status == 500
        assert b"ZeroDivisionError" not in reply.body
        number = "".join(filter(str.isdigit, reply.body.decode()))
        assert f"connection {number}:" in caplog.text
        assert await house.is_alive()


async def test_logs_have_neither_queries_nor_tokens_nor_control_characters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_house() as house:
        await house.ask(house.request(f"/?token={GOOD}", token=None))
        await house.ask(house.request("/" + "x" * 10_000))
        await house.ask(house.request(token="SECRET-GUESS"))
        await house.ask(house.request("/nowhere", extra=("User-Agent: \x1b[2J",)))
        async with house.socket("Sec-WebSocket-Protocol: klbr.v2") as client:
            await client.say("MARKED TEXT")
            assert await client.text() == "MARKED TEXT"
        await house.at_rest()
    assert caplog.records
    for record in caplog.records:
        line = record.getMessage()
        assert len(line) < 1000
        assert line.isprintable()
        for marker in (GOOD, "token=", "SECRET-GUESS", "MARKED TEXT"):
            assert marker not in line


async def test_many_wrong_tokens_are_slowed_and_the_right_one_is_not() -> None:
    async with open_house() as house, house.socket() as client:
        wrong = house.request("/metrics", token="wrong")
        for _ in range(20):
            assert (await house.ask(wrong)).status == 401
        started = trio.current_time()
        assert (await house.ask(wrong)).status == 401
        assert trio.current_time() - started >= 0.2
        statuses: list[int] = []

        async def guess() -> None:
            statuses.append((await house.ask(wrong)).status)

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(guess)
            started = trio.current_time()
            assert (await house.ask(house.request("/metrics"))).status == 200
            await client.say("open")
            assert await client.text() == "open"
            assert trio.current_time() - started < 0.5
        assert set(statuses) == {401, 429}


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", id="tls hello"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="http2 preface"),
        pytest.param(b"\0" * 1000 + b"\r\n\r\n", id="zeros"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n", id="1000 headers"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", id="20 kB head"),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + b"x" * 100_000,
            id="100 kB token",
        ),
    ],
)
async def test_what_is_no_request_is_400(sent: bytes) -> None:
    async with open_house() as house:
        assert (await house.ask(sent)).status == 400
        assert await house.is_alive()


@pytest.mark.parametrize(
    "header",
    [
        "Host: \xff",
        "Connection: Upgrade\xff",
        "Sec-WebSocket-Protocol: klbr.v2\xff",
        "Sec-WebSocket-Extensions: \xff",
        "X-Anything: \xff",
    ],
)
async def test_a_foreign_byte_in_a_header_ends_that_request_alone(header: str) -> None:
    async with open_house() as house, house.socket() as good:
        assert (await house.ask(house.request(upgrade=True, extra=(header,)))).status == 400
        reply = await house.ask(house.request(upgrade=True, host="xn--a"))
        assert reply.status == 421
        await good.say("well?")
        assert await good.text() == "well?"


async def test_a_reset_at_any_moment_ends_that_connection_alone() -> None:
    async with open_house() as house, house.socket() as good:
        full = house.request(upgrade=True) + client_frame(TEXT, b"x" * 300)
        for size in range(0, len(full), 7):
            sock = socket.create_connection(house.address)
            sock.sendall(full[:size])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            await trio.lowlevel.checkpoint()
        await house.at_rest(connections=1)
        await good.say("well?")
        assert await good.text() == "well?"


async def test_small_frames_of_one_client_do_not_hold_up_another() -> None:
    """A flood of pongs and empty fragments, which cost the parser most per byte."""
    async with open_house() as house, house.socket() as flood, house.socket() as good:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_flood, flood)
            worst = 0.0
            for _ in range(40):
                started = trio.current_time()
                await good.say("ping")
                assert await good.text() == "ping"
                worst = max(worst, trio.current_time() - started)
            nursery.cancel_scope.cancel()
        assert worst < 0.1


async def _flood(client: RawClient) -> None:
    pongs = client_frame(0xA) * 10_000
    message = client_frame(TEXT, fin=False) + client_frame(CONTINUATION, fin=False) * 2_000
    while True:
        await client.send(pongs + message + client_frame(CONTINUATION))


async def test_a_flood_of_bytes_is_not_kept() -> None:
    async with open_house() as house:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(5):
            async with house.socket() as client:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_pour, client, client_frame(TEXT, b"x" * 60_000_000))
                    assert await client.close_code() == 1009
                    nursery.cancel_scope.cancel()
        await house.at_rest()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        # The client's own 60 MB are in this process too; the server would add five times as much.
        assert grown < 200_000


async def _pour(client: RawClient, data: bytes) -> None:
    try:
        await client.send(data)
    except trio.BrokenResourceError:
        return


async def test_sockets_carry_small_frames_at_once() -> None:
    found: list[int] = []

    async def look(connection: Connection) -> None:
        await echo(connection)

    async with open_house(look) as house, house.socket() as client:
        await client.say("x")
        assert await client.text() == "x"
        for stream in _server_sockets(house.address):
            found.append(stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            stream.close()
    assert found
    assert all(found)


def _server_sockets(address: tuple[str, int]) -> list[socket.socket]:
    """Copies of this process's sockets that were accepted at `address`."""
    sockets = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            sock = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue
        try:
            accepted = sock.getsockname() == address and bool(sock.getpeername())
        except OSError:
            accepted = False
        if accepted:
            sockets.append(sock)
        else:
            sock.close()
    return sockets
