"""A provider that plays a script: a real HTTP/1.1 server on a real socket.

```python
async with open_provider([call_reply("print(1)"), text_reply("done")]) as provider:
    config = ModelConfig(provider.url, "a-model")
    ...
    assert provider.requests[0].body["messages"][0]["role"] == "system"
```

The nth request gets the nth answer, the last one repeats. An answer may also be a function from the
request to an answer. Every answer closes its connection, so nothing leaks from one to the next.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Literal, TypeAlias

import attrs
import trio

Piece: TypeAlias = bytes | trio.Event
"""Bytes to send on their own, or something to wait for before the next ones."""

USAGE: Final = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
_SSE: Final = {"content-type": "text/event-stream"}
_RESET_GRACE_S: Final = 0.05  # lets the peer read what it was sent before the reset
_MAX_HEAD: Final = 64 * 1024


@attrs.frozen
class Scripted:
    """One answer."""

    pieces: tuple[Piece, ...] = ()
    status: int | None = 200
    """None sends no head at all, not even a status line."""

    headers: Mapping[str, str] = attrs.field(factory=lambda: dict(_SSE))
    after: Literal["close", "reset", "hang"] = "close"
    """What becomes of the connection: a proper end, a reset, or silence until the client leaves."""

    raw: bool = False
    """Whether the pieces go out as they are, without chunked framing."""


@attrs.define(eq=False)
class Request:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""

    body: Any
    """The JSON of the body; None without one."""

    left: trio.Event = attrs.field(factory=trio.Event)
    """Set when the client closed the connection before the answer was over."""

    over: trio.Event = attrs.field(factory=trio.Event)
    """Set when nothing more is sent, whoever ended it."""


Answers: TypeAlias = Sequence[Scripted | Callable[[Request], Scripted]]


@attrs.define(eq=False)
class ScriptedProvider:
    """The server's side of a test."""

    origin: str
    answers: Answers
    requests: list[Request] = attrs.field(factory=list)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def url(self) -> str:
        """The API's base."""
        return self.origin + "/v1"

    async def wait_requests(self, count: int) -> None:
        """Returns when that many requests have come."""
        while len(self.requests) < count:
            await self._news.wait()

    async def wait_disconnected(self, number: int = 0) -> None:
        """Returns when the client has left that request (from 0) before its answer was over."""
        await self.wait_requests(number + 1)
        await self.requests[number].left.wait()

    def take(self, request: Request) -> Scripted:
        """Notes a request and chooses its answer."""
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        self._news.set()
        self._news = trio.Event()
        return answer if isinstance(answer, Scripted) else answer(request)


@asynccontextmanager
async def open_provider(answers: Answers) -> AsyncGenerator[ScriptedProvider]:
    """A provider that listens on a free port of 127.0.0.1 until the block is left."""
    async with trio.open_nursery() as nursery:
        (listener, *_) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        host, port = listener.socket.getsockname()[:2]
        provider = ScriptedProvider(f"http://{host}:{port}", answers)
        nursery.start_soon(trio.serve_listeners, partial(_serve, provider), [listener])
        yield provider
        nursery.cancel_scope.cancel()


@contextmanager
def refused_url() -> Generator[str]:
    """The base of an API at a port where nobody listens, kept free of others."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: connecting is refused
        yield f"http://127.0.0.1:{held.getsockname()[1]}/v1"


def chunk(
    delta: Mapping[str, object] | None = None,
    *,
    finish: str | None = None,
    usage: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """One chunk of a streamed completion."""
    choice = {"index": 0, "delta": dict(delta or {}), "finish_reason": finish}
    body: dict[str, object] = {"id": "c", "object": "chat.completion.chunk", "choices": [choice]}
    if usage is not None:
        body["usage"] = dict(usage)
    return body


def sse(*bodies: object, done: bool = True) -> bytes:
    """These values as events, `[DONE]` behind them."""
    events = [f"data: {json.dumps(body)}\n\n" for body in bodies]
    return "".join([*events, "data: [DONE]\n\n" if done else ""]).encode()


def call_fragment(
    code: str, *, provider_id: str = "call_1", name: str = "python", index: int = 0
) -> dict[str, object]:
    """A delta with one whole call."""
    function = {"name": name, "arguments": json.dumps({"code": code})}
    call = {"index": index, "id": provider_id, "type": "function", "function": function}
    return {"tool_calls": [call]}


def text_reply(text: str, *, reasoning: str = "", finish: str = "stop") -> Scripted:
    """A reply in words, each in a chunk of its own."""
    thought = [chunk({"reasoning_content": reasoning})] if reasoning else []
    words = [chunk({"content": word}) for word in _words(text)]
    return Scripted(tuple(_each(*thought, *words, chunk(finish=finish, usage=USAGE))))


def call_reply(*codes: str, text: str = "", name: str = "python") -> Scripted:
    """A reply that calls the tool once for each code, after some words."""
    words = [chunk({"content": word}) for word in _words(text)]
    calls = [
        chunk(call_fragment(code, provider_id=f"call_{number}", name=name, index=number - 1))
        for number, code in enumerate(codes, 1)
    ]
    return Scripted(tuple(_each(*words, *calls, chunk(finish="tool_calls", usage=USAGE))))


def refuse(status: int, body: object = "", *, headers: Mapping[str, str] | None = None) -> Scripted:
    """An answer that is no success; `body` is text as it is, anything else JSON."""
    content = body if isinstance(body, str) else json.dumps(body)
    kind = "text/plain" if isinstance(body, str) else "application/json"
    return Scripted(
        (content.encode(),), status=status, headers={"content-type": kind, **(headers or {})}
    )


def hang() -> Scripted:
    """Takes the request and never answers."""
    return Scripted(status=None, after="hang")


def drip(*pieces: Piece, after: Literal["close", "reset", "hang"] = "close") -> Scripted:
    """An event stream in these pieces; an event among them holds the rest back until it is set."""
    return Scripted(pieces, after=after)


def _words(text: str) -> list[str]:
    return (
        [word + " " for word in text.split(" ")[:-1]] + [text.rsplit(" ", maxsplit=1)[-1]]
        if text
        else []
    )


def _each(*bodies: object) -> list[bytes]:
    return [*(sse(body, done=False) for body in bodies), sse()]


async def _serve(provider: ScriptedProvider, stream: trio.SocketStream) -> None:
    async with stream:
        try:
            request = await _read_request(stream)
        except (ValueError, trio.BrokenResourceError):
            return
        answer = provider.take(request)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, stream, request, nursery.cancel_scope)
                try:
                    await _answer(stream, answer)
                except trio.BrokenResourceError:
                    request.left.set()
                nursery.cancel_scope.cancel()
        finally:
            request.over.set()


async def _watch(stream: trio.SocketStream, request: Request, answering: trio.CancelScope) -> None:
    """Notices that the client leaves."""
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass
    request.left.set()
    answering.cancel()


async def _read_request(stream: trio.SocketStream) -> Request:
    held = bytearray()
    while b"\r\n\r\n" not in held:
        held += await _some(stream)
        if len(held) > _MAX_HEAD:
            raise ValueError("the head is too long")
    head, _, body = bytes(held).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    length = int(headers.get("content-length", "0"))
    while len(body) < length:
        body += await _some(stream)
    return Request(method, path, headers, json.loads(body) if body else None)


async def _some(stream: trio.SocketStream) -> bytes:
    data = await stream.receive_some()
    if not data:
        raise ValueError("the client left in the middle of its request")
    return bytes(data)


async def _answer(stream: trio.SocketStream, answer: Scripted) -> None:
    if answer.status is not None:
        await stream.send_all(_head(answer))
    for piece in answer.pieces:
        if isinstance(piece, trio.Event):
            await piece.wait()
        elif piece:
            await stream.send_all(piece if answer.raw else b"%x\r\n%b\r\n" % (len(piece), piece))
    if answer.after == "hang":
        await trio.sleep_forever()
    elif answer.after == "reset":
        await trio.sleep(_RESET_GRACE_S)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif answer.status is not None and not answer.raw:
        await stream.send_all(b"0\r\n\r\n")


def _head(answer: Scripted) -> bytes:
    assert answer.status is not None
    try:
        reason = HTTPStatus(answer.status).phrase
    except ValueError:
        reason = "Unknown"
    headers = {"connection": "close", **answer.headers}
    if not answer.raw:
        headers["transfer-encoding"] = "chunked"
    lines = [f"HTTP/1.1 {answer.status} {reason}", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
