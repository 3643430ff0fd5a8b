"""Figures for those who watch the service, in the text format of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klbr_trio.service.port.reply import Response

if TYPE_CHECKING:
    from klbr_trio.service.floor import Shared
    from klbr_trio.service.port.accept import PortStatistics

_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def metrics(shared: Shared, port: PortStatistics, *, is_ready: bool) -> Response:
    """What the service holds at the moment; nothing is counted for it that costs a query."""
    registry = shared.registry
    figures = (
        ("klbr_ready", "gauge", "Whether inputs are taken and answered.", int(is_ready)),
        (
            "klbr_store_writable",
            "gauge",
            "Whether the last write to the store worked.",
            int(registry.store.trouble is None),
        ),
        ("klbr_runners", "gauge", "Sessions whose turns are being run.", registry.running),
        ("klbr_clients", "gauge", "WebSockets being served.", shared.clients),
        ("klbr_connections", "gauge", "Connections accepted, not closed.", port.connections),
        (
            "klbr_inputs_acknowledged_total",
            "counter",
            "Inputs acknowledged by this process, repeated ones included.",
            shared.inputs,
        ),
    )
    lines = [
        line
        for name, kind, text, value in figures
        for line in (f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}")
    ]
    return Response(200, "\n".join([*lines, ""]).encode(), content_type=_TYPE)
