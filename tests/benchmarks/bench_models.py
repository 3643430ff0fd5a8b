"""Chunks a second through the pipeline and to a subscribed client, beside httpx + httpx-sse + json.

`python tests/benchmarks/bench_models.py` prints the table. The server is a process of its own, so
that all readers compete with the same writer, and so is the service's client; figures are medians
of interleaved rounds. Stamps are of the one monotonic clock that all processes share.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

import httpx
import httpx_sse
import trio

from klbr_trio import Release, SessionRegistry, Store, WorkerConfig, serve_listener
from klbr_trio.models import LlmClient, ModelConfig, ModelRequest, ModelsConfig, User
from klbr_trio.models.stream.answer import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

CHUNKS: Final = 20_000
ROUNDS: Final = 5
TARGET: Final = 0.5
_WORD: Final = "some word "
_SERVER: Final = """
import socket, sys
body, head = sys.stdin.buffer.read(), b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\nconnection: close\\r\\n\\r\\n"
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    peer, _ = listener.accept()
    request = b""
    while b"\\r\\n\\r\\n" not in request:
        request += peer.recv(65536)
    head_of_it, _, rest = request.partition(b"\\r\\n\\r\\n")
    length = head_of_it.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0]
    while len(rest) < int(length or b"0"):
        rest += peer.recv(65536)
    peer.sendall(head + body)
    peer.close()
"""

STAMPED: Final = 400
PACE_S: Final = 0.005
ADDED_MS: Final = 1.0
_PACED: Final = """
import json, socket, sys, time
count, pace = int(sys.argv[1]), float(sys.argv[2])
head = b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\nconnection: close\\r\\n\\r\\n"
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request = b""
    while b"\\r\\n\\r\\n" not in request:
        request += peer.recv(65536)
    head_of_it, _, rest = request.partition(b"\\r\\n\\r\\n")
    length = head_of_it.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0]
    while len(rest) < int(length or b"0"):
        rest += peer.recv(65536)
    peer.sendall(head)
    due = time.monotonic()
    for number in range(count + 1):
        due += pace
        time.sleep(max(0, due - time.monotonic()))
        last = number == count
        choice = {"index": 0, "delta": {} if last else {"content": f"{time.monotonic_ns()} "}, "finish_reason": "stop" if last else None}
        peer.sendall(f"data: {json.dumps({'choices': [choice]})}\\n\\n".encode())
    peer.sendall(b"data: [DONE]\\n\\n")
    peer.close()
"""
_CLIENT: Final = """
import json, socket, struct, sys, time
host, port = sys.argv[1].split("/")[2].split(":")
peer = socket.create_connection((host, int(port)))
held = bytearray()

def say(**fields):
    data = json.dumps(fields).encode()
    head = struct.pack("!BB4x", 0x81, 0x80 + len(data)) if len(data) < 126 else struct.pack("!BBH4x", 0x81, 0xFE, len(data))
    peer.sendall(head + data)

def take(count):
    while len(held) < count:
        more = peer.recv(1 << 20)
        assert more, "the service has left"
        held.extend(more)
    data = bytes(held[:count])
    del held[:count]
    return data

def hear():
    while True:
        kind, size = take(2)
        if size > 125:
            size = int.from_bytes(take(2 if size == 126 else 8), "big")
        data = take(size)
        if kind & 15 == 1:
            return json.loads(data)

peer.sendall(
    f"GET / HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
    "Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n".encode()
)
while b"\\r\\n\\r\\n" not in held:
    held.extend(peer.recv(1 << 16))
del held[: held.index(b"\\r\\n\\r\\n") + 4]
say(type="subscribe", session_id="s")
while hear()["type"] != "sync_completed":
    pass
begun, last, chars, late = 0, 0, 0, []
say(type="send_input", session_id="s", source="b", text="go")
while True:
    frame = hear()
    if frame["type"] == "live_chunk":
        last = time.monotonic_ns()
        chars += len(frame["delta"])
        late += [last - int(stamp) for stamp in frame["delta"].split() if stamp.isdigit()]
    elif frame["type"] == "event" and frame["record"]["kind"] == "turn.started":
        begun = time.monotonic_ns()
    elif frame["type"] == "event" and frame["record"]["kind"] == "reply.received":
        break
    assert frame["type"] != "live_gap", frame
print(json.dumps({"begun": begun, "last": last, "chars": chars, "late": late}))
"""


class Figure(TypedDict):
    """One line of the table."""

    name: str
    value: float
    unit: str
    ceiling: float | None
    target: float | None


def stream() -> bytes:
    """An answer of chunks of about 270 bytes each."""
    choice = {"index": 0, "delta": {"content": _WORD}, "logprobs": None, "finish_reason": None}
    chunk = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "a-model-with-a-name",
        "system_fingerprint": "fp_0123456789",
        "choices": [choice],
    }
    line = f"data: {json.dumps(chunk)}\n\n"
    end = {**chunk, "choices": [{**choice, "delta": {}, "finish_reason": "stop"}]}
    return (line * CHUNKS + f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n").encode()


@contextmanager
def pacing() -> Generator[str]:
    """The base URL of a server that sends stamps, one at a time and at an even pace."""
    command = [sys.executable, "-c", _PACED, str(STAMPED), str(PACE_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        finally:
            server.kill()


class Seen(TypedDict):
    """What the service's client saw of one answer; times in nanoseconds."""

    begun: int
    last: int
    chars: int
    late: list[int]


@asynccontextmanager
async def a_service(url: str, folder: Path) -> AsyncGenerator[str]:
    """The socket's address of a service with a model at that URL."""
    behavior = folder / "behavior"
    behavior.mkdir()
    (behavior / "behavior.toml").write_text('name = "b"\nnudge = false\n')
    (behavior / "prompt.md").write_text("Answer.\n")
    release = Release.publish(behavior, folder / "releases")
    llm = LlmClient(ModelsConfig(ModelConfig(url, "a-model")))
    kernels = WorkerConfig.source_tree(Path(__file__).parents[2])
    async with (
        Store.open(folder / "klbr.sqlite") as store,
        SessionRegistry.open(store, kernels) as registry,
        trio.open_nursery() as nursery,
    ):
        start = partial(serve_listener, registry=registry, llm=llm, release=release)
        host, port = await nursery.start(start)
        yield f"ws://{host}:{port}/"
        await registry.shutdown_all()


async def through_the_service(url: str) -> Seen:
    """One answer, from the provider to a client in another process that follows the session."""
    with tempfile.TemporaryDirectory() as folder:
        async with a_service(url, Path(folder)) as address:
            command = [sys.executable, "-c", _CLIENT, address]
            done = await trio.run_process(command, capture_stdout=True)
    seen: Seen = json.loads(done.stdout)
    return seen


def service_rate(url: str) -> float:
    """Chunks a second that reach the client, from the turn's start to the last frame."""
    seen: Seen = trio.run(through_the_service, url)
    assert seen["chars"] == CHUNKS * len(_WORD), "nothing may be missing"
    return CHUNKS / ((seen["last"] - seen["begun"]) / 1e9)


async def bare_lateness(url: str) -> list[int]:
    """How late each stamp is for httpx + httpx-sse + json, in nanoseconds."""
    late = []
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        async with httpx_sse.aconnect_sse(http, "POST", url + "/chat/completions") as source:
            async for event in source.aiter_sse():
                if event.data == "[DONE]":
                    break
                word = json.loads(event.data)["choices"][0]["delta"].get("content", "")
                late += [time.monotonic_ns() - int(stamp) for stamp in word.split()]
    return late


def lateness_ms() -> tuple[float, float]:
    """The median lateness of a paced chunk: bare, and for the service's client."""
    with pacing() as url:
        bare = trio.run(bare_lateness, url)
        ours: Seen = trio.run(through_the_service, url)
    assert len(bare) == len(ours["late"]) == STAMPED
    return statistics.median(bare) / 1e6, statistics.median(ours["late"]) / 1e6


@contextmanager
def serving(body: bytes) -> Generator[str]:
    """The base URL of a server that answers every request with `body`."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(body)
        server.stdin.close()
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        finally:
            server.kill()


async def read_bare(url: str) -> int:
    """httpx, httpx-sse and json, and nothing else."""
    words = 0
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        async with httpx_sse.aconnect_sse(http, "POST", url + "/chat/completions") as source:
            async for event in source.aiter_sse():
                if event.data == "[DONE]":
                    break
                words += len(json.loads(event.data)["choices"][0]["delta"].get("content", ""))
    return words


async def read_whole(url: str) -> int:
    """The client, with all that it checks."""
    words = 0

    def count(_: str, delta: str) -> None:
        nonlocal words
        words += len(delta)

    llm = LlmClient(ModelsConfig(ModelConfig(url, "a-model")))
    await llm.complete(ModelRequest((User("x"),)), on_delta=count, on_discard=lambda: None)
    return words


def rate(read: Callable[[str], Awaitable[int]], url: str) -> float:
    """Chunks a second of one reading."""

    async def main() -> int:
        return await read(url)

    started = time.perf_counter()
    words = trio.run(main)
    assert words == CHUNKS * len(_WORD)
    return CHUNKS / (time.perf_counter() - started)


def pipeline_rate(body: bytes) -> float:
    """Chunks a second of the pipeline alone, without any I/O."""
    answer = Answer(ModelConfig("http://x", "a-model"))
    started = time.perf_counter()
    for at in range(0, len(body), 65536):
        answer.feed(body[at : at + 65536])
    answer.end()
    assert len(answer.reply().text) == CHUNKS * len(_WORD)
    return CHUNKS / (time.perf_counter() - started)


def step_ms(url: str) -> float:
    """What a step costs beside its chunks: a client, a connection, a request."""

    async def main() -> float:
        took = []
        for _ in range(30):
            started = time.perf_counter()
            await read_whole_short(url)
            took.append(time.perf_counter() - started)
        return statistics.median(took) * 1000

    return trio.run(main)


async def read_whole_short(url: str) -> None:
    llm = LlmClient(ModelsConfig(ModelConfig(url, "a-model")))
    await llm.complete(
        ModelRequest((User("x"),)), on_delta=lambda _, __: None, on_discard=lambda: None
    )


def run() -> list[Figure]:
    """Measures; both readers in turn, so that the machine's moods hit both."""
    body = stream()
    bare, whole, alone, served = [], [], [], []
    with serving(body) as url:
        for _ in range(ROUNDS):
            bare.append(rate(read_bare, url))
            whole.append(rate(read_whole, url))
            alone.append(pipeline_rate(body))
            served.append(service_rate(url))
    with serving(body[:300].partition(b"\n\n")[0] + b"\n\ndata: [DONE]\n\n") as url:
        step = step_ms(url)
    ratio = statistics.median(ours / theirs for ours, theirs in zip(whole, bare, strict=True))
    to_client = statistics.median(ours / theirs for ours, theirs in zip(served, bare, strict=True))
    late = [lateness_ms() for _ in range(ROUNDS)]
    bare_late = statistics.median(bare for bare, _ in late)
    added = statistics.median(ours - bare for bare, ours in late)
    ceiling = statistics.median(bare)
    return [
        Figure(name="chunks, httpx + httpx-sse + json", value=ceiling, unit="1/s", ceiling=None, target=None),
        Figure(name="chunks, whole pipeline", value=statistics.median(whole), unit="1/s", ceiling=ceiling, target=None),
        Figure(name="chunks, pipeline without I/O", value=statistics.median(alone), unit="1/s", ceiling=None, target=None),
        Figure(name="whole pipeline / bare", value=ratio, unit="ratio", ceiling=1.0, target=TARGET),
        Figure(name="chunks, to a subscribed client", value=statistics.median(served), unit="1/s", ceiling=ceiling, target=None),
        Figure(name="to a subscribed client / bare", value=to_client, unit="ratio", ceiling=1.0, target=TARGET),
        Figure(name="a chunk's lateness at 200/s, bare", value=bare_late, unit="ms", ceiling=None, target=None),
        Figure(name="what the service adds to it", value=added, unit="ms", ceiling=bare_late, target=ADDED_MS),
        Figure(name="one step with one chunk", value=step, unit="ms", ceiling=None, target=None),
    ]  # fmt: skip


if __name__ == "__main__":
    for figure in run():
        sys.stdout.write(f"{figure['name']:36} {figure['value']:12.2f} {figure['unit']}\n")
