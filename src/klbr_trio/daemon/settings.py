"""What a service is started with: plain values, resolved by whoever starts it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import attrs

from klbr_trio.config import (
    DRAIN_SECONDS,
    KERNEL_IDLE_SECONDS,
    KERNELS,
    LISTEN_HOST,
    LISTEN_PORT,
)
from klbr_trio.kernel import Level, Limits, Network
from klbr_trio.models import ModelsConfig


@attrs.frozen(kw_only=True)
class KernelSettings:
    """What stands around the kernels, and what they may take.

    Attributes:
        least: No kernel is started behind less than this.
        domains: The only names that the network's proxy serves; () for all.
        idle_seconds: An idle kernel is let go after so long.
        most: So many kernels are kept for sessions that do not run.
    """

    least: Level = Level.REDUCED
    network: Network = Network.OFF
    domains: tuple[str, ...] = ()
    limits: Limits = attrs.field(factory=Limits)
    idle_seconds: float = KERNEL_IDLE_SECONDS
    most: int = KERNELS


@attrs.frozen
class DemoProvider:
    """The scripted provider that runs inside the service; no model at all."""


ModelChoice: TypeAlias = ModelsConfig | DemoProvider | None


@attrs.frozen(kw_only=True)
class ServiceSettings:
    """One service.

    Attributes:
        state: The state folder.
        port: 0 takes a free one.
        model: The default model with its fallbacks; None: inputs are stored and nothing answers them.
        behavior: The behaviour folder to run; None is the one that ships.
        soul: Who the agent is; None: the behaviour's own words.
        drain_seconds: How long running turns may go on at shutdown.
        kernels: What stands around the kernels, and what they may take.
        no_auth: Whether the token check is off.
        tls_cert: The certificate chain that the TCP address is served with; with `tls_key`.
        names: Names by which clients on other machines know this one.
        log_level: The least that is logged.
    """

    state: Path
    host: str = LISTEN_HOST
    port: int = LISTEN_PORT
    model: ModelChoice = None
    behavior: Path | None = None
    soul: str | None = None
    drain_seconds: float = DRAIN_SECONDS
    kernels: KernelSettings = attrs.field(factory=KernelSettings)
    no_auth: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    names: tuple[str, ...] = ()
    log_level: str = "INFO"
