"""What a client waits for: acks, a long replay, and events to many followers.

`python tests/benchmarks/bench_service.py` prints the table. Each server is a process of
its own; the clients are bare sockets in this one, so that what is measured is the
server. Beside ours, in the same round: a bare commit of the same statements, a flood by
the WebSocket library's own `send_message`, and `websockets.broadcast`. Figures are
medians of interleaved rounds; ratios inside a run are good to a tenth.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

import trio
import trio_websocket
import websockets
import websockets.asyncio.server

from klbr_trio import SessionRegistry, Store, WorkerConfig, serve_listener
from klbr_trio.store import Input
from klbr_trio.store.admission import admit
from klbr_trio.store.opening import open_writing
from klbr_trio.store.points import CommitPoint
from klbr_trio.store.tx import Tx

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

ROOT: Final = Path(__file__).parents[2]
ROUNDS: Final = 3
ACKS: Final = 400
REPLAYED: Final = 100_000
FOLLOWERS: Final = 100
FANNED: Final = 2000
WRITERS: Final = 64

ACK_RATIO: Final = 4.0
REPLAY_RATIO: Final = 5.0
FAN_OUT_RATIO: Final = 0.8

_TEXT: Final = "a message of ordinary length, as people send them " * 4
_HANDSHAKE: Final = (
    "GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Ceiling(TypedDict):
    """What a figure stands beside, measured in the same run."""

    name: str
    value: float
    unit: str


class Figure(TypedDict):
    """One line of the table."""

    name: str
    value: float
    unit: str
    ceiling: Ceiling | None
    target: str | None


# The servers, each in a process of its own; they say their port and obey lines.


async def be_the_service(folder: Path) -> None:
    """Our service; `fill SESSION COUNT` writes notes and says when they are stored."""
    async with (
        Store.open(folder / "klbr.sqlite") as store,
        SessionRegistry.open(store, WorkerConfig.source_tree(ROOT)) as registry,
        trio.open_nursery() as nursery,
    ):
        address: tuple[str, int] = await nursery.start(partial(serve_listener, registry=registry))
        _say(address[1])
        while line := (await trio.to_thread.run_sync(sys.stdin.readline)).split():
            _, session_id, count = line
            await _fill(store, session_id, int(count))
            _say("stored")
        nursery.cancel_scope.cancel()


async def _fill(store: Store, session_id: str, count: int) -> None:
    await store.ensure_session(session_id)

    async def write(share: int) -> None:
        for _ in range(share):
            await store.append(session_id, "scratchpad", {"text": _TEXT})

    async with trio.open_nursery() as nursery:
        for number in range(WRITERS):
            nursery.start_soon(write, count // WRITERS + (number < count % WRITERS))


async def be_a_flood(frame_size: int) -> None:
    """The library's own way: one `send_message` after the other, as many as it is asked for."""
    text = "x" * frame_size

    async def serve(stream: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:
            request = await trio_websocket.wrap_server_stream(nursery, stream)
            client = await request.accept()
            with contextlib.suppress(trio_websocket.ConnectionClosed):
                while True:
                    for _ in range(int(await client.get_message())):
                        await client.send_message(text)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    _say(listeners[0].socket.getsockname()[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        await trio.to_thread.run_sync(sys.stdin.readline)
        nursery.cancel_scope.cancel()


async def be_a_broadcaster(frame_size: int) -> None:
    """`websockets.broadcast` to everyone, as many frames as it is asked for."""
    text = "x" * frame_size
    everyone: set[websockets.asyncio.server.ServerConnection] = set()

    async def serve(client: websockets.asyncio.server.ServerConnection) -> None:
        everyone.add(client)
        await client.wait_closed()

    async with websockets.asyncio.server.serve(
        serve, "127.0.0.1", 0, compression=None, ping_interval=None
    ) as server:
        _say(next(iter(server.sockets)).getsockname()[1])
        while line := (await asyncio.to_thread(sys.stdin.readline)).split():
            for _ in range(int(line[2])):
                websockets.broadcast(everyone, text)
                await asyncio.sleep(0)
            _say("stored")


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


# The clients' side


class Server:
    """A server's process, as the clients see it."""

    def __init__(self, *role: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self.answer())

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def answer(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        """Have it do something; it answers when it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def connect(self) -> socket.socket:
        """An open WebSocket, as a bare socket."""
        client = socket.create_connection(("127.0.0.1", self.port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(_HANDSHAKE.format(port=self.port).encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        if b" 101 " not in head:
            client.close()
            raise ConnectionRefusedError(head.decode())
        return client

    def close(self) -> None:
        """It ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def server(*role: str) -> Generator[Server]:
    """A server in the given role until the block ends."""
    with closing(Server(*role)) as found:
        yield found


def send(client: socket.socket, text: str) -> None:
    """One masked text frame."""
    data = text.encode()
    head = (
        struct.pack("!BB", 0x81, 0x80 | len(data))
        if len(data) < 126
        else (struct.pack("!BBH", 0x81, 0x80 | 126, len(data)))
    )
    client.sendall(head + b"\0\0\0\0" + data)


def say(client: socket.socket, kind: str, **fields: object) -> None:
    """One message."""
    send(client, json.dumps({"type": kind, **fields}))


def hear_until(client: socket.socket, word: bytes) -> int:
    """Read until the word has come; how many bytes that were."""
    size, tail = 0, b""
    while word not in tail:
        data = client.recv(1 << 20)
        assert data, "the server has gone"
        size += len(data)
        tail = tail[-len(word) :] + data
    return size


def bare_acks(folder: Path) -> float:
    """The median of a bare commit of an admission, in ms."""
    conn, _ = open_writing(folder / "bare.sqlite", time.monotonic_ns(), busy_s=5)
    times = []
    with closing(conn):
        for number in range(ACKS):
            sent = Input("bare", "bench", _TEXT, f"{time.monotonic_ns()}-{number}")
            began = time.perf_counter()
            conn.execute("BEGIN IMMEDIATE")
            admit(Tx(conn, 1, 1, CommitPoint.ADMIT), sent)
            conn.execute("COMMIT")
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def acks(ours: Server) -> tuple[float, float]:
    """Median and 99th percentile of what one client waits for an ack, in ms."""
    times = []
    with closing(ours.connect()) as client:
        for number in range(ACKS):
            key = f"{time.monotonic_ns()}-{number}"
            began = time.perf_counter()
            say(client, "send_input", session_id="acks", source="bench", text=_TEXT,
                client_request_id=key)  # fmt: skip
            hear_until(client, b'"ack"')
            times.append(time.perf_counter() - began)
    times.sort()
    return statistics.median(times) * 1000, times[int(len(times) * 0.99)] * 1000


def replay(ours: Server) -> tuple[float, float]:
    """Megabytes and events a second of a replay of the whole long session."""
    with closing(ours.connect()) as client:
        began = time.perf_counter()
        say(client, "subscribe", session_id="long", after_seq=1)
        size = hear_until(client, b"sync_completed")
        took = time.perf_counter() - began
    return size / took / 1e6, REPLAYED / took


def flood(theirs: Server, frame_size: int) -> float:
    """Megabytes a second of as many frames of the same size by `send_message`."""
    count = REPLAYED // 4
    with closing(theirs.connect()) as client:
        began = time.perf_counter()
        send(client, str(count))
        left = count * (frame_size + 4)
        while left > 0:
            left -= len(client.recv(1 << 20))
        took = time.perf_counter() - began
    return count * (frame_size + 4) / took / 1e6


def fan_out(some: Server, *, session_id: str, frame_size: int) -> float:
    """Events a second that reach followers, all together."""
    selector = selectors.DefaultSelector()
    clients = [some.connect() for _ in range(FOLLOWERS)]
    for client in clients:
        if session_id:
            say(client, "subscribe", session_id=session_id, limit=0)
            hear_until(client, b"sync_completed")
        selector.register(client, selectors.EVENT_READ, [FANNED * frame_size])
    time.sleep(0.2)
    began = time.perf_counter()
    some.tell(f"fill {session_id or '-'} {FANNED}")
    left = FOLLOWERS
    while left:
        for key, _ in selector.select():
            had = key.data[0]
            key.data[0] -= len(key.fileobj.recv(1 << 18))  # type: ignore[union-attr]
            left -= had > 0 >= key.data[0]
    took = time.perf_counter() - began
    some.answer()
    for client in clients:
        client.close()
    return FOLLOWERS * FANNED / took


def run() -> list[Figure]:
    """The table."""
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ours = stack.enter_context(server("service", folder))
        ours.tell(f"fill long {REPLAYED}")
        ours.answer()
        size = _frame_size(ours)
        floods = stack.enter_context(server("flood", str(size - 4)))
        casts = stack.enter_context(server("broadcast", str(size - 4)))
        for turn in range(ROUNDS):
            note("bare", bare_acks(Path(folder)))
            for name, value in zip(("ack", "p99"), acks(ours), strict=True):
                note(name, value)
            for name, value in zip(("replay", "events"), replay(ours), strict=True):
                note(name, value)
            note("flood", flood(floods, size - 4))
            note("ours", fan_out(ours, session_id=f"fan-{turn}", frame_size=size - 12))
            note("broadcast", fan_out(casts, session_id="", frame_size=size))
    return _figures(found)


def _frame_size(ours: Server) -> int:
    """The size of one event's frame of the long session."""
    with closing(ours.connect()) as client:
        say(client, "history", session_id="long", before_seq=90_001, limit=1000)
        return hear_until(client, b"sync_completed") // 1000


def _figures(found: dict[str, list[float]]) -> list[Figure]:
    middle = {name: statistics.median(values) for name, values in found.items()}

    def beside(name: str, what: str, unit: str) -> Ceiling:
        return Ceiling(name=name, value=round(middle[what], 2), unit=unit)

    def figure(
        name: str, value: float, unit: str, *, by: Ceiling | None = None, target: str | None = None
    ) -> Figure:
        return Figure(name=name, value=round(value, 2), unit=unit, ceiling=by, target=target)

    def ratio(ours: str, theirs: str) -> float:
        return statistics.median(
            one / other for one, other in zip(found[ours], found[theirs], strict=True)
        )

    return [
        figure("ack, one client, p50", middle["ack"], "ms", by=beside("bare commit", "bare", "ms")),
        figure("ack, one client, p99", middle["p99"], "ms"),
        figure("ack p50 / bare commit", ratio("ack", "bare"), "", target=f"<= {ACK_RATIO:g}"),
        figure(f"replay of {REPLAYED:,} events", middle["events"], "events/s"),
        figure(
            f"replay of {REPLAYED:,} events",
            middle["replay"],
            "MB/s",
            by=beside("send_message flood", "flood", "MB/s"),
        ),
        figure(
            "replay / send_message flood",
            ratio("replay", "flood"),
            "",
            target=f">= {REPLAY_RATIO:g}",
        ),
        figure(
            f"events to {FOLLOWERS} followers",
            middle["ours"],
            "deliveries/s",
            by=beside("websockets.broadcast", "broadcast", "deliveries/s"),
        ),
        figure(
            "fan-out / websockets.broadcast",
            ratio("ours", "broadcast"),
            "",
            target=f">= {FAN_OUT_RATIO:g}",
        ),
    ]


def main(arguments: Sequence[str]) -> None:
    """Play a server's role, or measure and print the table."""
    match arguments:
        case ["service", folder]:
            trio.run(be_the_service, Path(folder))
        case ["flood", size]:
            trio.run(be_a_flood, int(size))
        case ["broadcast", size]:
            asyncio.run(be_a_broadcaster(int(size)))
        case _:
            for figure in run():
                ceiling, target = figure["ceiling"], figure["target"]
                beside = f"{ceiling['name']}: {ceiling['value']:,.2f}" if ceiling else ""
                sys.stdout.write(
                    f"{figure['name']:36} {figure['value']:14,.2f} {figure['unit']:14}"
                    f"{beside:40} {target or ''}".rstrip()
                    + "\n"
                )


if __name__ == "__main__":
    main(sys.argv[1:])
