"""The scripted provider's HTTP server, on a free port of the loopback."""

from __future__ import annotations

import hmac
import json
import secrets
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import h11
import trio

from klbr_trio.daemon.demo.conversation import read
from klbr_trio.daemon.demo.script import Answer, answer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

MODEL: Final = "demo"
_REQUEST_BYTES: Final = 16 * 1024 * 1024
_WORD_S: Final = 0.01
"""Between two words: slow enough to be seen, quick enough not to bore."""


@attrs.frozen
class DemoServer:
    """Where the scripted provider is.

    Attributes:
        key: What a client must send as its bearer token.
    """

    url: str
    key: str = attrs.field(repr=False)


@asynccontextmanager
async def open_demo_provider() -> AsyncGenerator[DemoServer]:
    """A scripted provider that answers until the block is left."""
    key = secrets.token_hex(16)
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        host, port = listener.socket.getsockname()[:2]
        await nursery.start(trio.serve_listeners, partial(_serve, key), [listener])
        yield DemoServer(f"http://{host}:{port}/v1", key)
        nursery.cancel_scope.cancel()


async def _serve(key: str, stream: trio.SocketStream) -> None:
    """Answer one request; whatever is wrong with it ends with its connection."""
    async with stream:
        exchange = _Exchange(stream)
        try:
            request, body = await exchange.request()
            await _answer(exchange, key, request, body)
        except (h11.ProtocolError, trio.BrokenResourceError, _TooLong):
            return


async def _answer(exchange: _Exchange, key: str, request: h11.Request, body: bytes) -> None:
    path = request.target.split(b"?")[0]
    if not hmac.compare_digest(_authorization(request), f"Bearer {key}".encode()):
        await exchange.refuse(401, "the key is not this provider's")
    elif path != b"/v1/chat/completions" or request.method != b"POST":
        await exchange.refuse(404, "only POST /v1/chat/completions is answered here")
    else:
        messages = _messages(body)
        if messages is None:
            await exchange.refuse(400, "messages must be a list of objects")
        else:
            await exchange.stream(answer(read(messages)))


def _authorization(request: h11.Request) -> bytes:
    return next((bytes(value) for name, value in request.headers if name == b"authorization"), b"")


def _messages(body: bytes) -> list[Mapping[str, Any]] | None:
    try:
        messages = json.loads(body)["messages"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    well_formed = isinstance(messages, list) and all(isinstance(one, dict) for one in messages)
    return messages if well_formed else None


class _TooLong(Exception):
    """The request is longer than any prompt of ours."""


@attrs.define(eq=False)
class _Exchange:
    """One request and its answer."""

    _stream: trio.SocketStream
    _http: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.SERVER))

    async def request(self) -> tuple[h11.Request, bytes]:
        """The request with its body."""
        request = await self._next()
        if not isinstance(request, h11.Request):
            raise h11.RemoteProtocolError("no request came")
        body = bytearray()
        while isinstance(event := await self._next(), h11.Data):
            body += event.data
            if len(body) > _REQUEST_BYTES:
                raise _TooLong
        return request, bytes(body)

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(bytes(await self._stream.receive_some(65_536)))
        return event

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await self._stream.send_all(data)

    async def refuse(self, status: int, message: str) -> None:
        """Answer with an error as providers do."""
        body = json.dumps({"error": {"message": message}}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        await self._send(h11.Response(status_code=status, headers=[*headers, _CLOSE]))
        await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def stream(self, reply: Answer) -> None:
        """Answer with an event stream, word by word."""
        headers = [("content-type", "text/event-stream"), _CLOSE]
        await self._send(h11.Response(status_code=200, headers=headers))
        for event in _events(reply):
            await self._send(h11.Data(data=f"data: {event}\n\n".encode()))
            await trio.sleep(_WORD_S)
        await self._send(h11.EndOfMessage())


_CLOSE: Final = ("connection", "close")


def _events(reply: Answer) -> Iterator[str]:
    for word in _words(reply.reasoning):
        yield _chunk({"reasoning_content": word})
    for word in _words(reply.text):
        yield _chunk({"content": word})
    if reply.code is not None:
        function = {"name": "python", "arguments": json.dumps({"code": reply.code})}
        call = {"index": 0, "id": f"call_{secrets.token_hex(6)}", "type": "function"}
        yield _chunk({"tool_calls": [{**call, "function": function}]})
    yield _chunk({}, finish="tool_calls" if reply.code is not None else "stop")
    yield "[DONE]"


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split()]


def _chunk(delta: Mapping[str, object], *, finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps(
        {"id": "demo", "object": "chat.completion.chunk", "model": MODEL, "choices": [choice]}
    )
