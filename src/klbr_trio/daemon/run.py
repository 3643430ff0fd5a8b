"""The composition root: everything a service needs, opened in order around one nursery."""

from __future__ import annotations

import contextlib
import importlib.metadata
import ipaddress
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, assert_never

import attrs
import trio

from klbr_trio.daemon.announcement import Announcement, announced
from klbr_trio.daemon.demo.provider import MODEL as DEMO_MODEL, open_demo_provider
from klbr_trio.daemon.descriptors import take_descriptors
from klbr_trio.daemon.exposure import check_exposure, exposure, tls_context
from klbr_trio.daemon.folder import StateFolder, prepare
from klbr_trio.daemon.kernels import describe, kernels, told
from klbr_trio.daemon.keys import first_keys, follow_files, survive_reload
from klbr_trio.daemon.logs import start_logging
from klbr_trio.daemon.secrecy import hide_process
from klbr_trio.daemon.settings import DemoProvider, ServiceSettings
from klbr_trio.daemon.stopping import Stopping
from klbr_trio.domain.clock import wall_now_ms
from klbr_trio.errors import KlbrError, sole
from klbr_trio.kernel import Level
from klbr_trio.models import LlmClient, ModelConfig, ModelsConfig
from klbr_trio.release import Release, default_behavior
from klbr_trio.service.port.local_socket import open_unix_listener
from klbr_trio.service.server import serve_listener
from klbr_trio.sessions.registry import SessionRegistry
from klbr_trio.store import Store

_LOG: Final = logging.getLogger("klbr_trio.daemon")


@attrs.frozen(kw_only=True)
class Ready:
    """What a ready service is.

    Attributes:
        model: The model's name, or None.
        is_demo: Whether that is the scripted provider.
        release: The digest that it runs.
        kernels: What stands around the kernels, in words.
        sandboxed: Whether anything does.
        exposure: What other machines can do with it, in words, if they reach it.
    """

    url: str
    state: Path
    model: str | None
    is_demo: bool
    release: str
    kernels: str = "none"
    sandboxed: bool = False
    exposure: str | None = None


def run(
    settings: ServiceSettings,
    *,
    on_ready: Callable[[Ready], None],
    tell: Callable[[str], None],
    on_commit: Callable[[str], None] | None = None,
) -> None:
    """Serve until a signal asks for the end; everything is closed when this returns.

    Args:
        settings: What to serve.
        on_ready: Called once the service is ready.
        tell: Given a few words for whoever looks on.
        on_commit: Passed to the store; it may end the process there.

    Raises:
        KlbrError: The service can't start or go on; the message says why.
    """
    stopping = Stopping()
    stopping.note_signals()
    survive_reload()
    hide_process()
    start_logging(settings.log_level)
    take_descriptors()
    service = _Service(settings, stopping, on_ready, on_commit)
    try:
        trio.run(_watched, service, tell)
    except BaseExceptionGroup as group:
        error = sole(group)
        if not isinstance(error, KlbrError):
            _LOG.critical("the service ends by an error of its own", exc_info=group)
        raise error from None


async def _watched(service: _Service, tell: Callable[[str], None]) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(service.stopping.listen, tell)
        await service.run()
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class _Service:
    settings: ServiceSettings
    stopping: Stopping
    on_ready: Callable[[Ready], None]
    on_commit: Callable[[str], None] | None

    async def run(self) -> None:
        """Open everything, from the bottom up, and serve until asked to stop."""
        settings = self.settings
        check_exposure(settings)
        tls = tls_context(settings)
        folder = prepare(settings.state)
        async with Store.open(
            folder.database, lock_path=folder.lock, on_commit=self.on_commit
        ) as store:
            keys = None if settings.no_auth else first_keys(folder)
            release = Release.publish(settings.behavior or default_behavior(), folder.releases)
            config = kernels(settings.kernels, workspaces=folder.workspaces)
            if isinstance(settings.model, ModelsConfig):
                settings.model.chain(release.settings.model)  # or it is no service at all
            async with _open_model(settings, release.settings.model) as llm:
                async with SessionRegistry.open(
                    store, config, resting_kernels=settings.kernels.most
                ) as registry:
                    serve = partial(
                        serve_listener,
                        host=settings.host,
                        port=settings.port,
                        registry=registry,
                        llm=llm,
                        release=release,
                        soul=settings.soul,
                        auth=keys,
                        drain_seconds=settings.drain_seconds,
                        tls=tls,
                        names=settings.names,
                    )
                    ready = partial(
                        Ready,
                        state=folder.path,
                        model=None if llm is None else llm.name,
                        is_demo=isinstance(settings.model, DemoProvider),
                        release=release.digest,
                        kernels=describe(config),
                        sandboxed=config.sandbox.level is not Level.NONE and config.refusal is None,
                        exposure=exposure(settings),
                    )
                    async with trio.open_nursery() as nursery:
                        if keys is not None:
                            await nursery.start(follow_files, folder, keys)
                        await self._listen(folder, registry, serve, ready)
                        nursery.cancel_scope.cancel()

    async def _listen(
        self,
        folder: StateFolder,
        registry: SessionRegistry,
        serve: Callable[..., Awaitable[None]],
        ready: partial[Ready],
    ) -> None:
        unix = open_unix_listener(folder.socket)
        try:
            async with trio.open_nursery() as nursery:
                address: tuple[str, int] = await nursery.start(
                    partial(serve, extra_listeners=[unix])
                )
                async with trio.open_nursery() as announcing:
                    announcing.start_soon(
                        self._announce,
                        folder,
                        registry.recovered,
                        ready(url=_url(*address, tls=self.settings.tls_cert is not None)),
                    )
                    await self.stopping.asked.wait()
                    # Who looks for a service must not find one that is going.
                    announcing.cancel_scope.cancel()
                nursery.cancel_scope.cancel()
        finally:
            unix.socket.close()
            folder.socket.unlink(missing_ok=True)

    async def _announce(self, folder: StateFolder, recovered: trio.Event, ready: Ready) -> None:
        """Say that the service is ready once it is, until cancelled."""
        await recovered.wait()
        announcement = Announcement(
            pid=os.getpid(),
            url=ready.url,
            socket=str(folder.socket),
            started_ms=wall_now_ms(),
            version=importlib.metadata.version("klbr_trio"),
        )
        with told(folder.sandbox, ready.kernels), announced(folder.announcement, announcement):
            _log_ready(ready)
            self.on_ready(ready)
            await trio.sleep_forever()


def _log_ready(ready: Ready) -> None:
    extra = {"action": "ready", "url": ready.url, "model": ready.model, "release": ready.release}
    _LOG.info("ready", extra=extra)
    told_level = logging.INFO if ready.sandboxed else logging.WARNING
    _LOG.log(told_level, "sandbox: %s", ready.kernels, extra={"action": "sandbox"})
    if ready.exposure is not None:
        _LOG.warning(ready.exposure, extra={"action": "exposed"})
    if ready.is_demo:
        _LOG.warning("DEMO: a script answers, no language model")
    elif ready.model is None:
        _LOG.warning("no model is configured: inputs are stored and nothing answers")


@contextlib.asynccontextmanager
async def _open_model(settings: ServiceSettings, wanted: str) -> AsyncGenerator[LlmClient | None]:
    """The client of the model that was chosen; None for no model."""
    match settings.model:
        case None:
            yield None
        case DemoProvider():
            async with open_demo_provider() as provider:
                demo = ModelConfig(provider.url, DEMO_MODEL, provider.key)
                yield LlmClient(ModelsConfig(demo, named={wanted: demo}))
        case ModelsConfig() as models:
            yield LlmClient(models)
        case _:
            assert_never(settings.model)


def _url(host: str, port: int, *, tls: bool) -> str:
    # A wildcard is no address that a client could name.
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
