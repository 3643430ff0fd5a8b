"""The port under load: a thousand connections, two hundred that send, a hundred that follow.

`python tests/benchmarks/bench_port.py` prints the table. The service and its peer are
processes of their own; the clients are bare sockets in this one. Every input has to be
acknowledged once and every event has to reach every follower in order, those that read
nothing for a while too; if one is missing there is no table.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from bench_service import Ceiling, Figure, Server, acks, hear_until, say, server

if TYPE_CHECKING:
    from collections.abc import Generator

CONNECTIONS: Final = 1000
SENDERS: Final = 200
INPUTS: Final = 20
FOLLOWERS: Final = 100
DEAF: Final = 10
EVENTS: Final = 2000

MEMORY_RATIO: Final = 4.0
DEAF_RATIO: Final = 0.7

_TEXT: Final = "a message of ordinary length, as people send them " * 4


def resident_kib(one: Server) -> float:
    """What the server's process has in memory."""
    text = Path(f"/proc/{one.pid}/status").read_text()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS"))


@attrs.define(eq=False)
class Frames:
    """Takes a server's bytes apart."""

    _buffer: bytes = b""

    def of(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes."""
        self._buffer += data
        found, at = [], 0
        while (end := self._end(at)) is not None:
            found.append(self._buffer[end[0] : end[1]])
            at = end[1]
        self._buffer = self._buffer[at:]
        return found

    def _end(self, at: int) -> tuple[int, int] | None:
        have = len(self._buffer) - at
        if have < 2:
            return None
        size, head = self._buffer[at + 1], 2
        if size >= 126:
            head += 2 if size == 126 else 8
            size = int.from_bytes(self._buffer[at + 2 : at + head], "big")
        return None if have < head + size else (at + head, at + head + size)


@attrs.define(eq=False)
class Sender:
    """Sends one input after the other, each once the one before is acknowledged."""

    client: socket.socket
    session_id: str
    seqs: list[int] = attrs.field(factory=list)
    waits: list[float] = attrs.field(factory=list)
    _frames: Frames = attrs.field(factory=Frames)
    _began: float = 0.0

    def send(self) -> None:
        self._began = time.perf_counter()
        say(self.client, "send_input", session_id=self.session_id, source="bench", text=_TEXT,
            client_request_id=f"{len(self.seqs)}")  # fmt: skip

    def hear(self) -> bool:
        """Take what has come; whether all inputs are acknowledged."""
        data = self.client.recv(1 << 16)
        assert data, "the service has hung up on a sender"
        for payload in self._frames.of(data):
            frame = json.loads(payload)
            if frame["type"] == "ack":
                assert not frame["duplicate"]
                self.waits.append(time.perf_counter() - self._began)
                self.seqs.append(frame["seq"])
                if len(self.seqs) < INPUTS:
                    self.send()
        return len(self.seqs) == INPUTS


@contextlib.contextmanager
def crowd(one: Server, count: int) -> Generator[list[socket.socket]]:
    """So many open WebSockets."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(_let_in(one))) for _ in range(count)]


def _let_in(one: Server) -> socket.socket:
    """An open WebSocket, once those of an earlier crowd have gone."""
    ends = time.monotonic() + 60
    while True:
        try:
            return one.connect()
        except ConnectionRefusedError:
            assert time.monotonic() < ends, "nobody is let in"
            time.sleep(0.05)


def memory_of_idle(one: Server) -> float:
    """KiB for each of many connections that say nothing."""
    with crowd(one, 50):
        pass  # what the first connections load is not theirs alone
    before = resident_kib(one)
    with crowd(one, CONNECTIONS):
        time.sleep(0.5)
        return (resident_kib(one) - before) / CONNECTIONS


def admissions(one: Server, turn: int) -> tuple[list[float], float]:
    """Waits for acks and acks a second, with everybody connected and some sending."""
    with crowd(one, CONNECTIONS) as clients, selectors.DefaultSelector() as selector:
        senders = [
            Sender(client, f"load-{turn}-{number}")
            for number, client in enumerate(clients[:SENDERS])
        ]
        for sender in senders:
            selector.register(sender.client, selectors.EVENT_READ, sender)
        began = time.perf_counter()
        for sender in senders:
            sender.send()
        left = len(senders)
        while left:
            for key, _ in selector.select():
                if key.data.hear():
                    selector.unregister(key.fileobj)
                    left -= 1
        took = time.perf_counter() - began
        for sender in senders:
            assert sender.seqs == list(range(1, INPUTS + 1)), "an input was lost or reordered"
        for client in clients[SENDERS :: CONNECTIONS // 50]:
            say(client, "ping")
            hear_until(client, b'"pong"')
    waits = sorted(wait for sender in senders for wait in sender.waits)
    return waits, len(waits) / took


def follow(one: Server, session_id: str, deaf: int) -> float:
    """Events a second that reach those who read, while `deaf` of the followers do not."""
    with crowd(one, FOLLOWERS) as clients, selectors.DefaultSelector() as selector:
        for client in clients:
            say(client, "subscribe", session_id=session_id, limit=0)
            hear_until(client, b"sync_completed")
        for client in clients[deaf:]:
            selector.register(client, selectors.EVENT_READ, (Frames(), []))
        began = time.perf_counter()
        one.tell(f"fill {session_id} {EVENTS}")
        left = FOLLOWERS - deaf
        while left:
            for key, _ in selector.select():
                if _took_all(key.fileobj, *key.data):  # type: ignore[arg-type]
                    selector.unregister(key.fileobj)
                    left -= 1
        took = time.perf_counter() - began
        assert one.answer() == "stored"
        for client in clients[:deaf]:
            frames, seqs = Frames(), []  # type: ignore[var-annotated]
            while not _took_all(client, frames, seqs):
                pass
    return (FOLLOWERS - deaf) * EVENTS / took


def _took_all(client: socket.socket, frames: Frames, seqs: list[int]) -> bool:
    data = client.recv(1 << 18)
    assert data, "the service has hung up on a follower"
    # The seq stands early in the frame; parsing them all would measure the parser.
    seqs.extend(
        int(payload[payload.index(b'"seq":') + 6 :].partition(b",")[0])
        for payload in frames.of(data)
    )
    if len(seqs) < EVENTS:
        return False
    assert seqs == list(range(1, EVENTS + 1)), "an event was lost or reordered"
    return True


def run() -> list[Figure]:
    """The table."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ours = stack.enter_context(server("service", folder))
        peer = stack.enter_context(server("broadcast", "400"))
        memory, theirs = memory_of_idle(ours), memory_of_idle(peer)
        alone, _ = acks(ours)
        rounds = [admissions(ours, turn) for turn in range(2)]
        waits = sorted(wait for found, _ in rounds for wait in found)
        rate = statistics.median(rate for _, rate in rounds)
        pairs = [
            (follow(ours, f"all-{turn}", 0), follow(ours, f"deaf-{turn}", DEAF))
            for turn in range(2)
        ]
    everyone = statistics.median(one for one, _ in pairs)
    despite = statistics.median(other for _, other in pairs)

    def figure(
        name: str, value: float, unit: str, *, by: Ceiling | None = None, target: str | None = None
    ) -> Figure:
        return Figure(name=name, value=round(value, 2), unit=unit, ceiling=by, target=target)

    one_client = Ceiling(name="one client alone", value=round(alone, 2), unit="ms")
    idle = Ceiling(name="websockets", value=round(theirs, 2), unit="KiB")
    reading = Ceiling(name="all of them read", value=round(everyone), unit="deliveries/s")
    return [
        figure(f"memory of {CONNECTIONS:,} idle connections, each", memory, "KiB", by=idle),
        figure("memory / websockets", memory / theirs, "", target=f"<= {MEMORY_RATIO:g}"),
        figure(f"ack, {SENDERS} of {CONNECTIONS:,} send, p50", waits[len(waits) // 2] * 1e3, "ms",
               by=one_client),
        figure("ack, the same, p99", waits[int(len(waits) * 0.99)] * 1e3, "ms"),
        figure("acks, the same", rate, "acks/s"),
        figure(f"events to {FOLLOWERS} followers, {DEAF} deaf", despite, "deliveries/s", by=reading),
        figure("deaf / all of them read", despite / everyone, "", target=f">= {DEAF_RATIO:g}"),
    ]  # fmt: skip


def main() -> None:
    """Measure and print the table."""
    for found in run():
        ceiling, target = found["ceiling"], found["target"]
        beside = f"{ceiling['name']}: {ceiling['value']:,.2f}" if ceiling else ""
        line = f"{found['name']:44} {found['value']:12,.2f} {found['unit']:14}{beside:36} "
        sys.stdout.write(f"{line}{target or ''}".rstrip() + "\n")


if __name__ == "__main__":
    main()
