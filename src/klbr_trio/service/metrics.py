"""`/metrics`: the service in numbers, in the text format of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from typing_extensions import override

from klbr_trio.service.port.reply import Response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from klbr_trio.service.floor import Shared
    from klbr_trio.service.port.accept import Port

_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_STATES: Final = ("ready", "executing", "waiting", "stopped")


def metrics(shared: Shared, port: Port, *, is_ready: bool) -> Response:
    """What has been counted, and what the service holds at the moment.

    Raises:
        StoreError: The store can't be asked.
    """
    now = CollectorRegistry()
    now.register(_Now(shared, port, is_ready=is_ready))
    return Response(
        200, generate_latest(shared.figures.registry) + generate_latest(now), content_type=_TYPE
    )


class _Now(Collector):
    """What the service holds at the moment."""

    def __init__(self, shared: Shared, port: Port, *, is_ready: bool) -> None:
        self._shared = shared
        self._port = port
        self._is_ready = is_ready

    @override
    def collect(self) -> Iterator[Metric]:
        sessions = GaugeMetricFamily("klbr_sessions", "Sessions, by state.", labels=["state"])
        found = self._shared.registry.store.states()
        for state in _STATES:
            sessions.add_metric([state], found.get(state, 0))
        yield sessions
        for name, text, value in self._gauges():
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, value in self._counters():
            yield CounterMetricFamily(name, text, value=value)

    def _gauges(self) -> tuple[tuple[str, str, int], ...]:
        registry, held = self._shared.registry, self._port.statistics()
        writable = registry.store.trouble is None
        return (
            ("klbr_ready", "Whether inputs are taken and answered.", int(self._is_ready)),
            ("klbr_store_writable", "Whether the last write to the store worked.", int(writable)),
            ("klbr_runners", "Sessions whose turns are being run.", registry.running),
            ("klbr_kernels", "Kernels that live.", registry.living_kernels),
            ("klbr_clients", "WebSockets being served.", self._shared.clients),
            ("klbr_followers", "Subscriptions of clients to sessions.", self._shared.followers),
            ("klbr_connections", "Connections accepted, not closed.", held.connections),
            ("klbr_unfinished_heads", "Those without a whole request.", held.unfinished_heads),
        )

    def _counters(self) -> tuple[tuple[str, str, int], ...]:
        return (
            (
                "klbr_live_chunks_dropped",
                "Live chunks that slow clients missed.",
                self._shared.live_frames.dropped,
            ),
            ("klbr_wrong_tokens", "Requests with a wrong token.", self._port.guesses.total),
        )
