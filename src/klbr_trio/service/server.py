"""The service: the port, the driver, recovery and the clients, over one registry."""

from __future__ import annotations

import contextlib
import logging
import ssl
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import attrs
import trio

from klbr_trio.config import LISTEN_HOST
from klbr_trio.errors import ConfigError, StoreBroken
from klbr_trio.service.client import serve_client
from klbr_trio.service.faults import first_of
from klbr_trio.service.floor import Shared
from klbr_trio.service.metrics import metrics
from klbr_trio.service.port.accept import Port, serve_encrypted_port, serve_port
from klbr_trio.service.port.connection import Connection
from klbr_trio.service.port.gate import Policy, bound_hosts, own_origins
from klbr_trio.service.port.reply import Response
from klbr_trio.service.records import Records
from klbr_trio.service.rights import KeyRing, Tokens
from klbr_trio.sessions.driver import drive
from klbr_trio.sessions.groups import ServiceTaskGroup
from klbr_trio.sessions.recovery import recover
from klbr_trio.sessions.registry import CLIENTS_GRACE_S, SessionRegistry
from klbr_trio.sessions.runner import Agent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from klbr_trio.models import LlmClient
    from klbr_trio.release import Release

_LOG: Final = logging.getLogger("klbr_trio.service")

DRAIN_EXTRA_S: Final = 5.0
"""What a cancelled service gets, besides the drain's grace, to end in good order."""

LAST_WORDS_S: Final = CLIENTS_GRACE_S / 2
"""What clients get to hear what was committed before they are told goodbye."""

FORCE_S: Final = CLIENTS_GRACE_S * 0.9
"""When, after they were asked to leave, the clients that are still there are cut by force."""


async def serve_listener(  # noqa: PLR0913 - the service's settings, fixed by its public signature
    *,
    host: str = LISTEN_HOST,
    port: int = 0,
    registry: SessionRegistry,
    llm: LlmClient | None = None,
    release: Release | None = None,
    soul: str | None = None,
    auth: str | Sequence[str] | KeyRing | None = None,
    drain_seconds: float = 0,
    extra_listeners: Sequence[trio.SocketListener] = (),
    tls: ssl.SSLContext | None = None,
    names: Sequence[str] = (),
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """The service answers on `host` and `port` until it is cancelled or shut down.

    It starts driver and recovery in the registry, and answers before recovery is done.
    Cancelled, it drains under a shield of `drain_seconds` and five seconds more, then
    the cancel goes on. When the registry is shut down it returns. Either way the
    registry is shut down for good.

    Args:
        host: The address to bind.
        port: 0 takes a free one.
        registry: The sessions.
        llm: The model; None: inputs are stored and nothing answers them.
        release: The release of sessions that were given none of their own.
        soul: Who the agent is; None: the release's own.
        auth: The token, or several, any of which opens the door, or a key ring whose
            tokens may be replaced while it serves; None skips the token check, and no other.
        drain_seconds: How long running turns may go on once it is cancelled.
        extra_listeners: Further sockets to serve, e.g. a unix socket; closed at the end.
        tls: How `host` and `port` are encrypted; the extra listeners never are.
        names: Names, without a port, by which clients know this machine besides the
            addresses that are bound; a request under any other is refused.
        task_status: Given the bound host and port.

    Raises:
        ConfigError: The address can't be bound, or there is a model and no release.
        RegistryClosed: The registry was shut down before.
    """
    if llm is not None and release is None:
        raise ConfigError("a service with a model needs a release to run")
    agent = None if llm is None or release is None else Agent(llm, release, soul)
    async with _bound(host, port, extra_listeners) as tcp, contextlib.AsyncExitStack() as stack:
        address: tuple[str, int] = tcp[0].socket.getsockname()[:2]
        shared = Shared(registry, llm is not None, Records(registry.store))
        keys = KeyRing.of(auth)
        served = _port(tcp, keys.tokens, names=names, tls=tls is not None)
        service = _Service(registry, shared, served, keys, tls)
        stack.enter_context(registry.store.count(shared.figures.written))
        await registry.start_service_task(ServiceTaskGroup.DRIVER, drive, registry, agent)
        try:
            await registry.start_service_task(ServiceTaskGroup.RECOVERY, recover, registry)
            await registry.start_service_task(
                ServiceTaskGroup.CLIENT, service.run, tcp, extra_listeners
            )
            await service.listening.wait()
            task_status.started(address)
            _LOG.info("listening on %s:%d", *address)
            await registry.closed.wait()
        finally:
            await _drain(registry, drain_seconds)  # noqa: ASYNC102 - shields itself, with a deadline


@contextlib.asynccontextmanager
async def _bound(
    host: str, port: int, extra: Sequence[trio.SocketListener]
) -> AsyncGenerator[list[trio.SocketListener]]:
    """Listeners at the address; they and `extra` are closed when the block ends."""
    with contextlib.ExitStack() as stack:
        for listener in extra:
            stack.callback(listener.socket.close)
        try:
            bound = await trio.open_tcp_listeners(port, host=host)
        except (OSError, OverflowError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc)
            raise ConfigError(
                f"can't listen on {host}:{port}: {reason}; choose another with --listen HOST:PORT"
            ) from exc
        for listener in bound:
            stack.callback(listener.socket.close)
        yield bound


def _port(
    listeners: Sequence[trio.SocketListener], tokens: Tokens, *, names: Sequence[str], tls: bool
) -> Port:
    addresses = [listener.socket.getsockname()[:2] for listener in listeners]
    hosts = bound_hosts(addresses, names=names, tls=tls)
    return Port(
        policy=Policy(
            hosts=hosts,
            origins=own_origins(hosts, tls=tls),
            tokens=tokens.full,
            read_tokens=tokens.read_only,
        )
    )


async def _drain(registry: SessionRegistry, seconds: float) -> None:
    """Take nothing new, let turns end for `seconds`, then shut the registry down."""
    with trio.move_on_after(seconds + DRAIN_EXTRA_S, shield=True):
        registry.begin_shutdown()
        with trio.move_on_after(seconds):
            await registry.idle()
        await registry.shutdown_all()


@attrs.define(eq=False)
class _Service:
    """The clients' part of a service: a task of the registry.

    Attributes:
        listening: Set once connections are accepted, or never will be.
    """

    _registry: SessionRegistry
    _shared: Shared
    _port: Port
    _keys: KeyRing
    _tls: ssl.SSLContext | None
    listening: trio.Event = attrs.field(factory=trio.Event, init=False)
    _connections: WeakSet[Connection] = attrs.field(factory=WeakSet, init=False)

    async def run(
        self, tcp: Sequence[trio.SocketListener], extra: Sequence[trio.SocketListener]
    ) -> None:
        """Accept and serve connections; asked to leave, clients hear the last words first.

        Raises:
            StoreBroken: A client met a corrupt page of the store.
        """
        leave = self._registry.leave(ServiceTaskGroup.CLIENT)
        try:
            with self._registry.store.watch(self._shared.records.note):
                async with trio.open_nursery() as service:
                    service.start_soon(self._refuse_when_closing)
                    service.start_soon(self._end_when_broken)
                    service.start_soon(self._follow_keys)
                    async with trio.open_nursery() as handlers:
                        async with trio.open_nursery() as accepting:
                            await self._listen(tcp, extra, accepting, service, handlers)
                            self.listening.set()
                            await leave.wait()
                            # The handlers' nursery takes nobody any more once it is left.
                            service.start_soon(self._cut_by_force)
                            await self._last_words()
                            accepting.cancel_scope.cancel()
                        handlers.cancel_scope.cancel()
                    service.cancel_scope.cancel()
        finally:
            self.listening.set()

    async def _listen(
        self,
        tcp: Sequence[trio.SocketListener],
        extra: Sequence[trio.SocketListener],
        accepting: trio.Nursery,
        relays: trio.Nursery,
        handlers: trio.Nursery,
    ) -> None:
        """Everything is accepted in tasks of `accepting` when this returns."""
        plain = [*tcp, *extra] if self._tls is None else list(extra)
        if plain:
            await accepting.start(
                partial(
                    serve_port,
                    plain,
                    handler_nursery=handlers,
                    port=self._port,
                    on_socket=self._serve,
                    on_http=self._answer,
                )
            )
        if self._tls is not None:
            await accepting.start(
                partial(
                    serve_encrypted_port,
                    tcp,
                    context=self._tls,
                    relay_nursery=relays,
                    handler_nursery=handlers,
                    port=self._port,
                    on_socket=self._serve,
                    on_http=self._answer,
                )
            )

    async def _last_words(self) -> None:
        with trio.move_on_after(LAST_WORDS_S):  # noqa: ASYNC912 - there may be no client
            while self._shared.clients:
                await self._shared.client_left.wait()

    async def _cut_by_force(self) -> None:
        await trio.sleep(FORCE_S)
        for connection in tuple(self._connections):
            connection.abort()

    async def _refuse_when_closing(self) -> None:
        await self._registry.closing.wait()
        self._port.is_draining = True

    async def _follow_keys(self) -> None:
        while True:
            replaced, tokens = self._keys.replaced, self._keys.tokens
            self._port.enforce(
                attrs.evolve(self._port.policy, tokens=tokens.full, read_tokens=tokens.read_only)
            )
            await replaced.wait()
            _LOG.info("the tokens are replaced", extra={"action": "tokens_replaced"})

    async def _end_when_broken(self) -> None:
        await self._shared.broke.wait()
        assert self._shared.broken is not None
        raise self._shared.broken

    async def _serve(self, connection: Connection) -> None:
        self._connections.add(connection)
        try:
            await serve_client(
                connection, self._shared, self._registry.leave(ServiceTaskGroup.CLIENT)
            )
        except* StoreBroken as group:
            self._shared.break_down(first_of(group))
            raise

    def _answer(self, path: str) -> Response:
        why = self._not_ready()
        if path == "/readyz":
            return Response.line(200, "ok") if why is None else Response.line(503, why)
        return metrics(self._shared, self._port, is_ready=why is None)

    def _not_ready(self) -> str | None:
        if self._registry.closing.is_set():
            return "draining"
        if not self._registry.recovered.is_set():
            return "recovering"
        if self._registry.store.trouble is not None:
            return "unable to write"
        return None
