"""An HTTP proxy for one kernel: it resolves, checks, and connects to the address that it checked.

The kernel has no other way out. It speaks `CONNECT` and absolute-form requests; names are resolved
here, so that no answer can change between the check and the connection.
"""

from __future__ import annotations

import base64
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

import attrs
import trio

from klbr_trio.kernel.network.addresses import PORTS, is_allowed, is_public, literal

if TYPE_CHECKING:
    from klbr_trio.kernel.network.addresses import Address

logger = logging.getLogger("klbr_trio.kernel")

CONNECTIONS: Final = 64
"""At the same time; more wait to be accepted."""
_LONGEST_HEAD: Final = 32 * 1024
_HEAD_S: Final = 20.0
_CONNECT_S: Final = 20.0
_CHUNK: Final = 64 * 1024
_HOP_BY_HOP: Final = (b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive")

Resolve = Callable[[str, int], Awaitable[Sequence["Address"]]]
Connect = Callable[["Address", int], Awaitable[trio.SocketStream]]


class Blocked(Exception):
    """The kernel may not have that; the text says why."""

    def __init__(self, text: str, status: str = "403 Forbidden") -> None:
        super().__init__(text)
        self.status = status


@attrs.frozen(kw_only=True)
class Rules:
    """What one kernel's proxy lets through.

    Attributes:
        session: The session that is named in the log.
        domains: The only names, with what is below them; () for all.
        password: Asked for where others can reach the proxy, too.
    """

    session: str
    domains: tuple[str, ...] = ()
    password: str | None = None


@attrs.frozen
class Target:
    """Where a request wants to go, and what is to be sent there first."""

    host: str
    port: int
    first: bytes
    tunnel: bool


async def resolve(host: str, port: int) -> list[Address]:
    """The addresses of `host`."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [literal(str(address[0]).partition("%")[0]) for *_, address in found]
    return [address for address in addresses if address is not None]


async def connect(address: Address, port: int) -> trio.SocketStream:
    """A connection to exactly that address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        await sock.connect((str(address), port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)


@attrs.define(eq=False)
class Proxy:
    """Serves one kernel's connections."""

    _rules: Rules
    _resolve: Resolve = resolve
    _connect: Connect = connect
    _places: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(CONNECTIONS))

    async def serve(self, listener: socket.socket) -> None:
        """Accepts and serves until cancelled. Takes responsibility for closing `listener`."""
        listener.setblocking(False)  # noqa: FBT003
        async with trio.SocketListener(trio.socket.from_stdlib_socket(listener)) as accepting:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._places.acquire()
                    nursery.start_soon(self._serve, await accepting.accept())

    async def _serve(self, client: trio.SocketStream) -> None:
        try:
            async with client:
                await self._answer(client)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass  # either end has gone: that is how connections end
        finally:
            self._places.release()

    async def _answer(self, client: trio.SocketStream) -> None:
        try:
            with trio.fail_after(_HEAD_S):
                head, rest = await _read_head(client)
            target = parse(head, rest, password=self._rules.password)
            with trio.fail_after(_CONNECT_S):
                server = await self._open(target)
        except Blocked as blocked:
            logger.info("a kernel's connection is blocked: %s", blocked, extra=self._extra())
            await _refuse(client, blocked)
            return
        except trio.TooSlowError:
            await _refuse(client, Blocked("it took too long", "504 Gateway Timeout"))
            return
        async with server:
            if target.tunnel:
                await client.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await server.send_all(target.first)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pump, client, server)
                nursery.start_soon(_pump, server, client)

    def _extra(self) -> dict[str, object]:
        return {"action": "kernel_network", "session": self._rules.session}

    async def _open(self, target: Target) -> trio.SocketStream:
        """A connection to the target, at an address that was checked.

        Raises:
            Blocked: It may not be reached, or can't be.
        """
        name = f"{target.host[:200]}:{target.port}"
        if target.port not in PORTS:
            raise Blocked(f"{name}: only the ports {PORTS} can be reached")
        if not is_allowed(target.host, self._rules.domains):
            raise Blocked(f"{name} is not among the allowed domains")
        address = literal(target.host)
        try:
            found = [address] if address else await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise Blocked(f"{name} can't be resolved: {error}", "502 Bad Gateway") from error
        public = [each for each in found if is_public(each)]
        if not public:
            raise Blocked(f"{name} is no public address")
        logger.info("a kernel connects to %s (%s)", name, public[0], extra=self._extra())
        return await self._first_that_answers(name, public, target.port)

    async def _first_that_answers(
        self, name: str, addresses: Sequence[Address], port: int
    ) -> trio.SocketStream:
        problem: OSError | None = None
        for address in addresses:
            try:
                return await self._connect(address, port)
            except OSError as error:
                problem = error
        raise Blocked(f"{name} can't be reached: {problem}", "502 Bad Gateway")


async def _read_head(client: trio.SocketStream) -> tuple[bytes, bytes]:
    data = bytearray()
    while b"\r\n\r\n" not in data:
        if len(data) > _LONGEST_HEAD:
            raise Blocked("the request's head is too long", "431 Request Header Fields Too Large")
        more = await client.receive_some(_CHUNK)
        if not more:
            raise Blocked("the request is not complete", "400 Bad Request")
        data += more
    head, _, rest = bytes(data).partition(b"\r\n\r\n")
    return head, rest


def parse(head: bytes, rest: bytes, *, password: str | None) -> Target:
    """Where the request in `head` wants to go; `rest` is what came after it.

    Raises:
        Blocked: It is none that a proxy serves, or has a wrong password.
    """
    line, *fields = head.split(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        raise Blocked("this is a proxy; it got something else", "400 Bad Request")
    _check_password(fields, password)
    method, where, version = words
    if method == b"CONNECT":
        host, port = _authority(where.decode("latin-1"))
        return Target(host, port, rest, tunnel=True)
    url = _split(where)
    path = url.path or "/"
    path += f"?{url.query}" if url.query else ""
    kept = [field for field in fields if _name(field) not in _HOP_BY_HOP]
    # One request a connection: a second one could name another host.
    lines = [b" ".join((method, path.encode("latin-1"), version)), *kept, b"Connection: close"]
    host, port = _authority(url.netloc.rpartition("@")[2], default=80)
    return Target(host, port, b"\r\n".join(lines) + b"\r\n\r\n" + rest, tunnel=False)


def _split(where: bytes) -> SplitResult:
    try:
        url = urlsplit(where.decode("latin-1"))
    except ValueError as error:
        raise Blocked(f"that is no URL: {error}", "400 Bad Request") from error
    if url.scheme != "http" or not url.netloc:
        raise Blocked("only http:// URLs and CONNECT are served", "400 Bad Request")
    return url


def _name(field: bytes) -> bytes:
    return field.partition(b":")[0].strip().lower()


def _authority(text: str, *, default: int | None = None) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or default
    except ValueError as error:
        raise Blocked(f"that is no host: {error}", "400 Bad Request") from error
    if not host or not port or parts.path or parts.username:
        raise Blocked("that is no host and port", "400 Bad Request")
    return host, port


def _check_password(fields: Sequence[bytes], password: str | None) -> None:
    if password is None:
        return
    wanted = b"Basic " + base64.b64encode(f"klbr:{password}".encode())
    given = [f.partition(b":")[2].strip() for f in fields if _name(f) == b"proxy-authorization"]
    if len(given) != 1 or not hmac.compare_digest(given[0], wanted):
        raise Blocked("this proxy is another session's", "407 Proxy Authentication Required")


async def _refuse(client: trio.SocketStream, blocked: Blocked) -> None:
    body = f"blocked by klbr: {blocked}\n".encode(errors="replace")
    head = (
        f"HTTP/1.1 {blocked.status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    await client.send_all(head.encode() + body)


async def _pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    """Passes on what comes until the source has ended, then says so."""
    while data := await source.receive_some(_CHUNK):
        await sink.send_all(data)
    await sink.send_eof()
