"""A whole service on a free port over a real store, and clients that speak to it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio
import trio_websocket
from port_house import KEY, RawClient

from klbr_trio import (
    LlmClient,
    ModelConfig,
    ModelsConfig,
    Release,
    SessionRegistry,
    Store,
    WorkerConfig,
    check,
    serve_listener,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence

    from klbr_trio.service.rights import KeyRing

ROOT: Final = Path(__file__).parents[2]
CEILING: Final = 20.0
"""Longer than anything that works takes."""

FRAME: Final = 1024 * 1024

Message = dict[str, Any]


@cache
def behaviour(folder: Path) -> Release:
    """The behaviour that ships, published into `folder`."""
    return Release.publish(ROOT / "behavior", folder)


def model_at(url: str) -> LlmClient:
    return LlmClient(ModelsConfig(llm=ModelConfig(url, "a-model")))


@attrs.define(eq=False)
class Caller:
    """One client: says messages, hears messages, within a ceiling."""

    socket: trio_websocket.WebSocketConnection

    async def say(self, kind: str, **fields: object) -> None:
        await self.say_text(json.dumps({"type": kind, **fields}))

    async def say_text(self, text: str) -> None:
        with trio.fail_after(CEILING):
            await self.socket.send_message(text)

    async def say_bytes(self, data: bytes) -> None:
        with trio.fail_after(CEILING):
            await self.socket.send_message(data)

    async def hear(self) -> Message:
        """The next message, whatever it is."""
        with trio.fail_after(CEILING):
            text = await self.socket.get_message()
        assert isinstance(text, str)
        assert len(text.encode()) <= FRAME
        found: Message = json.loads(text)
        assert isinstance(found, dict)
        assert None not in found.values(), "what has no value is left out"
        return found

    async def hear_or_end(self) -> Message | None:
        """The next message, or None when the connection has ended."""
        try:
            return await self.hear()
        except trio_websocket.ConnectionClosed:
            return None

    async def ask(self, kind: str, **fields: object) -> Message:
        """Say something, and the next message that comes."""
        await self.say(kind, **fields)
        return await self.hear()

    async def hear_until(self, wanted: Callable[[Message], bool]) -> list[Message]:
        """Everything up to and with the first message that is wanted."""
        heard: list[Message] = []
        while not heard or not wanted(heard[-1]):
            heard.append(await self.hear())
        return heard

    async def hear_type(self, *types: str) -> Message:
        """The next message of these types; others before it are dropped."""
        return (await self.hear_until(lambda message: message["type"] in types))[-1]

    async def hear_event(self, kind: str) -> Message:
        """The record of the next event of that kind; what comes before it is dropped."""
        heard = await self.hear_until(
            lambda message: message["type"] == "event" and message["record"]["kind"] == kind
        )
        record: Message = heard[-1]["record"]
        return record

    async def input(self, session_id: str, text: str = "hello", **fields: object) -> Message:
        """Send an input and take its answer; a refusal for want of a model behind it too."""
        message = {"session_id": session_id, "source": "tests", "text": text, **fields}
        return await self.ask("send_input", **message)

    async def replay(self, kind: str, session_id: str, **fields: object) -> Range:
        """Ask for a window, a catch-up or history, and take it to its end."""
        started = await self.ask(kind, session_id=session_id, **fields)
        return await self.rest_of_range(started)

    async def rest_of_range(self, started: Message) -> Range:
        assert started["type"] == "sync_started", started
        records = []
        while (message := await self.hear())["type"] == "event":
            records.append(message["record"])
        assert message["type"] == "sync_completed", message
        assert message["session_id"] == started["session_id"]
        assert message["to_seq"] == started["to_seq"]
        assert [record["seq"] for record in records] == list(
            range(started["from_seq"], started["to_seq"] + 1)
        )
        return Range(started, tuple(records), message)

    async def goodbye(self) -> int:
        """What the server closes with; messages before it are dropped."""
        with trio.fail_after(CEILING):
            with contextlib.suppress(trio_websocket.ConnectionClosed):
                while True:
                    await self.socket.get_message()
        assert self.socket.closed is not None
        return int(self.socket.closed.code)


@attrs.frozen
class Range:
    """A replay as it came."""

    started: Message
    records: tuple[Message, ...]
    completed: Message

    @property
    def seqs(self) -> tuple[int, int]:
        return self.started["from_seq"], self.started["to_seq"]


@attrs.define(eq=False)
class Service:
    """A service as its tests see it; `scope` cancels `serve_listener` alone."""

    address: tuple[str, int]
    store: Store
    registry: SessionRegistry
    release: Release
    scope: trio.CancelScope
    over: trio.Event

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.address[1]}/"

    @contextlib.asynccontextmanager
    async def caller(self, token: str | None = None) -> AsyncGenerator[Caller]:
        """A client that is connected until the block ends."""
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        async with trio.open_nursery() as nursery:
            with trio.fail_after(CEILING):
                socket = await trio_websocket.connect_websocket_url(
                    nursery,
                    self.url,
                    max_message_size=2 * FRAME,
                    message_queue_size=64,
                    extra_headers=headers,
                )
            try:
                yield Caller(socket)
            finally:
                with trio.move_on_after(2, shield=True):
                    await socket.aclose()
                # A goodbye that the server began leaves the library's socket open.
                await trio.aclose_forcefully(socket._stream)
                nursery.cancel_scope.cancel()

    @contextlib.asynccontextmanager
    async def raw(self, *, receive_buffer: int | None = None) -> AsyncGenerator[RawClient]:
        """A client that reads only when it is told to."""
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_buffer)
        await sock.connect(("127.0.0.1", self.address[1]))
        client = RawClient(trio.SocketStream(sock))
        lines = [
            "GET / HTTP/1.1",
            f"Host: 127.0.0.1:{self.address[1]}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {KEY}",
        ]
        try:
            await client.send("\r\n".join([*lines, "", ""]).encode())
            assert (await client.head()).status == 101
            yield client
        finally:
            await trio.aclose_forcefully(client.stream)

    async def get(self, path: str, *, token: str | None = None) -> tuple[int, str]:
        """The status and the body of a plain request."""
        extra = "" if token is None else f"Authorization: Bearer {token}\r\n"
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.address[1]}\r\n{extra}\r\n"
        data = b""
        with trio.fail_after(CEILING):
            async with await trio.open_tcp_stream(*self.address) as stream:
                await stream.send_all(request.encode())
                async for piece in stream:
                    data += piece
        head, _, body = data.decode().partition("\r\n\r\n")
        return int(head.split(" ")[1]), body

    async def notes(self, session_id: str, count: int, *, text: str = "note") -> None:
        """So many notes more in the session's log; many are written side by side."""
        await self.store.ensure_session(session_id)

        async def write(numbers: range) -> None:
            for number in numbers:
                await self.store.append(session_id, "scratchpad", {"text": f"{text} {number}"})

        writers = max(1, count // 20)
        async with trio.open_nursery() as nursery:
            for first in range(writers):
                nursery.start_soon(write, range(first, count, writers))


@contextlib.asynccontextmanager
async def open_service(
    path: Path,
    *,
    llm: LlmClient | None = None,
    auth: str | Sequence[str] | KeyRing | None = None,
    drain_seconds: float = 0,
    store: Store | None = None,
    busy_s: float = 5,
    is_sound: bool = True,
) -> AsyncGenerator[Service]:
    """A service whose state is in the folder `path`, until the block ends.

    Afterwards it is cancelled, has to end, and leaves a sound store if it opened it.
    """
    release = behaviour(path / "releases")
    if store is None:
        async with Store.open(path / "klbr.sqlite", busy_s=busy_s) as opened:
            async with open_service(
                path, llm=llm, auth=auth, drain_seconds=drain_seconds, store=opened
            ) as service:
                yield service
            if is_sound:
                assert await check(opened) == []
        return
    async with SessionRegistry.open(store, WorkerConfig.source_tree(ROOT)) as registry:
        async with trio.open_nursery() as nursery:
            scope, over = trio.CancelScope(), trio.Event()

            async def serve(task_status: trio.TaskStatus[tuple[str, int]]) -> None:
                with scope:
                    await serve_listener(
                        registry=registry,
                        llm=llm,
                        release=release,
                        auth=auth,
                        drain_seconds=drain_seconds,
                        task_status=task_status,
                    )
                over.set()

            address: tuple[str, int] = await nursery.start(serve)
            yield Service(address, store, registry, release, scope, over)
            scope.cancel()


async def until(condition: Callable[[], bool], *, store: Store, session_id: str) -> None:
    """Return when the condition holds; it is asked after each commit of the session."""
    with trio.fail_after(CEILING):
        while True:
            ticket = store.ticket(session_id)
            if condition():
                return
            await ticket.wait()


@contextlib.contextmanager
def nobody_writes(path: Path) -> Generator[None]:
    """Inside the block another connection holds the store's write lock."""
    with contextlib.closing(sqlite3.connect(path / "klbr.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
