"""Client handlers on a port of their own, with limits and an end as a test wants them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import attrs
import trio
from port_house import House, open_house
from service_house import ROOT
from typing_extensions import override

from klbr_trio import SessionRegistry, Store, WorkerConfig
from klbr_trio.service.client import serve_client
from klbr_trio.service.floor import Shared
from klbr_trio.service.records import Records

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from klbr_trio.service.port.connection import Connection
    from klbr_trio.service.port.limits import PortLimits


@attrs.define(eq=False)
class CancelAfter(trio.abc.Instrument):
    """Cancels a scope after so many steps of the run's tasks."""

    steps: int
    scope: trio.CancelScope

    @override
    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps -= 1
        if self.steps == 0:
            trio.lowlevel.current_trio_token().run_sync_soon(self.scope.cancel)


@attrs.define(eq=False)
class Clients:
    """A house of client handlers.

    Attributes:
        moment: The step after its beginning at which each handler is cancelled, if any.
    """

    house: House
    store: Store
    registry: SessionRegistry
    shared: Shared
    moment: int | None = None

    async def serve(self, connection: Connection) -> None:
        if self.moment is None:
            await serve_client(connection, self.shared, trio.Event())
            return
        with trio.CancelScope() as scope:
            instrument = CancelAfter(self.moment, scope)
            trio.lowlevel.add_instrument(instrument)
            try:
                await serve_client(connection, self.shared, trio.Event())
            finally:
                trio.lowlevel.remove_instrument(instrument)


@contextlib.asynccontextmanager
async def open_clients(path: Path, limits: PortLimits) -> AsyncGenerator[Clients]:
    async with (
        Store.open(path / "klbr.sqlite") as store,
        SessionRegistry.open(store, WorkerConfig.source_tree(ROOT)) as registry,
    ):
        shared = Shared(registry, has_model=False, records=Records(store))
        found: list[Clients] = []

        async def serve(connection: Connection) -> None:
            await found[0].serve(connection)

        with store.watch(shared.records.note):
            async with open_house(serve, limits=limits, auth=False) as house:
                found.append(Clients(house, store, registry, shared))
                yield found[0]
