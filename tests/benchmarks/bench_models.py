"""Chunks a second through the whole pipeline, beside httpx + httpx-sse + json in the same run.

`python tests/benchmarks/bench_models.py` prints the table. The server is a process of its own, so
that both readers compete with the same writer; figures are medians of interleaved rounds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypedDict

import httpx
import httpx_sse
import trio

from klbr_trio.models import LlmClient, ModelConfig, ModelRequest, ModelsConfig, User
from klbr_trio.models.stream.answer import Answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

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
    bare, whole, alone = [], [], []
    with serving(body) as url:
        for _ in range(ROUNDS):
            bare.append(rate(read_bare, url))
            whole.append(rate(read_whole, url))
            alone.append(pipeline_rate(body))
    with serving(body[:300].partition(b"\n\n")[0] + b"\n\ndata: [DONE]\n\n") as url:
        step = step_ms(url)
    ratio = statistics.median(ours / theirs for ours, theirs in zip(whole, bare, strict=True))
    ceiling = statistics.median(bare)
    return [
        Figure(name="chunks, httpx + httpx-sse + json", value=ceiling, unit="1/s", ceiling=None, target=None),
        Figure(name="chunks, whole pipeline", value=statistics.median(whole), unit="1/s", ceiling=ceiling, target=None),
        Figure(name="chunks, pipeline without I/O", value=statistics.median(alone), unit="1/s", ceiling=None, target=None),
        Figure(name="whole pipeline / bare", value=ratio, unit="ratio", ceiling=1.0, target=TARGET),
        Figure(name="one step with one chunk", value=step, unit="ms", ceiling=None, target=None),
    ]  # fmt: skip


if __name__ == "__main__":
    for figure in run():
        sys.stdout.write(f"{figure['name']:36} {figure['value']:12.2f} {figure['unit']}\n")
