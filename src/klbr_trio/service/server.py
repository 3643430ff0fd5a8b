"""The service: the port, the driver, recovery and the clients, over one registry."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.config import LISTEN_HOST
from klbr_trio.errors import ConfigError
from klbr_trio.service.client import Client, serve_client
from klbr_trio.service.floor import Shared
from klbr_trio.service.port.accept import Port, serve_port
from klbr_trio.service.port.gate import Policy, bound_hosts, own_origins
from klbr_trio.service.port.reply import Response
from klbr_trio.service.records import Records
from klbr_trio.sessions.driver import drive
from klbr_trio.sessions.groups import ServiceTaskGroup
from klbr_trio.sessions.recovery import recover
from klbr_trio.sessions.registry import SessionRegistry
from klbr_trio.sessions.runner import Agent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klbr_trio.models import LlmClient
    from klbr_trio.release import Release
    from klbr_trio.service.port.connection import Connection

_LOG: Final = logging.getLogger("klbr_trio.service")

DRAIN_EXTRA_S: Final = 5.0
"""What a cancelled service gets, besides the drain's grace, to end in good order."""

LAST_WORDS_S: Final = 1.0
"""What clients get to hear what was committed before they are told goodbye."""


async def serve_listener(  # noqa: PLR0913 - the service's settings, fixed by its public signature
    *,
    host: str = LISTEN_HOST,
    port: int = 0,
    registry: SessionRegistry,
    llm: LlmClient | None = None,
    release: Release | None = None,
    soul: str | None = None,
    auth: str | Sequence[str] | None = None,
    drain_seconds: float = 0,
    extra_listeners: Sequence[trio.SocketListener] = (),
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
        auth: The token, or several, any of which opens the door; None skips the token
            check, and no other.
        drain_seconds: How long running turns may go on once it is cancelled.
        extra_listeners: Further sockets to serve, e.g. a unix socket; closed at the end.
        task_status: Given the bound host and port.

    Raises:
        ConfigError: The address can't be bound, or there is a model and no release.
    """
    if llm is not None and release is None:
        raise ConfigError("a service with a model needs a release to run")
    tcp = await _bind(host, port)
    bound: tuple[str, int] = tcp[0].socket.getsockname()[:2]
    service = _Service(
        registry,
        _port(tcp, auth),
        Shared(registry, llm is not None, Records(registry.store)),
    )
    agent = None if llm is None or release is None else Agent(llm, release, soul)
    await registry.start_service_task(ServiceTaskGroup.DRIVER, drive, registry, agent)
    await registry.start_service_task(ServiceTaskGroup.RECOVERY, recover, registry)
    await registry.start_service_task(ServiceTaskGroup.CLIENT, service.host_clients)
    clients = await service.clients_nursery()
    async with trio.open_nursery() as nursery:
        await nursery.start(service.listen, [*tcp, *extra_listeners], clients)
        task_status.started(bound)
        _LOG.info("listening on %s:%d", *bound)
        try:
            await registry.closed.wait()
        finally:
            await service.drain(drain_seconds)
            nursery.cancel_scope.cancel()


async def _bind(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except (OSError, OverflowError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        raise ConfigError(
            f"can't listen on {host}:{port}: {reason}; choose another with --listen HOST:PORT"
        ) from exc


def _port(listeners: Sequence[trio.SocketListener], auth: str | Sequence[str] | None) -> Port:
    hosts = bound_hosts(listener.socket.getsockname()[:2] for listener in listeners)
    tokens = (auth,) if isinstance(auth, str) else None if auth is None else tuple(auth)
    return Port(policy=Policy(hosts=hosts, origins=own_origins(hosts), tokens=tokens))


@attrs.define(eq=False)
class _Service:
    _registry: SessionRegistry
    _port: Port
    _shared: Shared
    _clients: set[Client] = attrs.field(factory=set)
    _nursery: trio.Nursery | None = None
    _hosting: trio.Event = attrs.field(factory=trio.Event)

    async def host_clients(self) -> None:
        """Client handlers live in here; asked to leave, they hear the last words first."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._hosting.set()
            await self._registry.leave(ServiceTaskGroup.CLIENT).wait()
            with trio.move_on_after(LAST_WORDS_S):
                for client in tuple(self._clients):
                    await client.caught_up()
            nursery.cancel_scope.cancel()

    async def clients_nursery(self) -> trio.Nursery:
        """The nursery of the client handlers."""
        await self._hosting.wait()
        assert self._nursery is not None
        return self._nursery

    async def listen(
        self,
        listeners: Sequence[trio.SocketListener],
        clients: trio.Nursery,
        task_status: trio.TaskStatus[list[trio.SocketListener]],
    ) -> None:
        """Accept connections until cancelled."""
        await serve_port(
            listeners,
            handler_nursery=clients,
            port=self._port,
            on_socket=self._serve,
            on_http=self._answer,
            task_status=task_status,
        )

    async def _serve(self, connection: Connection) -> None:
        await serve_client(connection, self._shared, self._clients)

    def _answer(self, path: str) -> Response:
        if path == "/readyz":
            why = self._not_ready()
            return Response.line(200, "ok") if why is None else Response.line(503, why)
        return Response.line(404, "There is nothing here.")

    def _not_ready(self) -> str | None:
        if self._registry.closing.is_set():
            return "draining"
        if not self._registry.recovered.is_set():
            return "recovering"
        if self._registry.store.trouble is not None:
            return "unable to write"
        return None

    async def drain(self, seconds: float) -> None:
        """Take nothing new, let turns end for `seconds`, then shut the registry down."""
        self._port.is_draining = True
        with trio.move_on_after(seconds + DRAIN_EXTRA_S, shield=True):
            self._registry.begin_shutdown()
            with trio.move_on_after(seconds):
                await self._registry.idle()
            await self._registry.shutdown_all()
