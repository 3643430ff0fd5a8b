"""`klbr serve`: from settings to a running service."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klbr_trio.cli.exits import Exit
from klbr_trio.cli.models import model_choice
from klbr_trio.cli.output import tell
from klbr_trio.cli.settings import API_KEY_VARIABLE, Rank, Settings, here
from klbr_trio.daemon.exposure import check_exposure, is_loopback
from klbr_trio.daemon.run import Ready, run
from klbr_trio.daemon.secrecy import forget_variable
from klbr_trio.daemon.settings import (
    KernelSettings,
    ServiceSettings,
)
from klbr_trio.errors import ConfigError
from klbr_trio.kernel import Level, Limits, Network
from klbr_trio.kernel.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

_HIGHEST_PORT: Final = 65_535
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def serve(flags: Mapping[str, object]) -> Exit:
    """Serve until a signal asks for the end."""
    settings = service_settings(here(flags), os.environ)
    forget_variable(API_KEY_VARIABLE)
    interactive = sys.stderr.isatty()
    run(
        settings,
        on_ready=_show_banner if interactive else _say_nothing,
        tell=tell if interactive else _say_nothing,
    )
    return Exit.DONE


def service_settings(settings: Settings, environ: Mapping[str, str]) -> ServiceSettings:
    """What the service is to be.

    Raises:
        ConfigError: Two settings don't go together, or one can't be.
    """
    host, port = listen_address(settings.text("listen") or "")
    found = ServiceSettings(
        state=settings.state,
        host=host,
        port=port,
        model=model_choice(settings, environ),
        behavior=settings.path("behavior"),
        soul=settings.text("soul"),
        drain_seconds=settings.number("drain_seconds"),
        kernels=kernel_settings(settings),
        no_auth=settings.flag("no_auth"),
        tls_cert=settings.path("tls_cert"),
        tls_key=settings.path("tls_key"),
        names=names(settings.text("names")),
        log_level=(settings.text("log_level") or "info").upper(),
    )
    check_exposure(found)
    return found


def _least(settings: Settings) -> Level:
    """What must stand around kernels: more, unless somebody has said so, where strangers come in."""
    host, _ = listen_address(settings.text("listen") or "")
    if settings.found["sandbox"].rank is Rank.DEFAULT and not is_loopback(host):
        return Level.FULL
    return Level(settings.text("sandbox"))


def kernel_settings(settings: Settings) -> KernelSettings:
    """What is to stand around the kernels, and what they may take."""

    def number(name: str) -> int:
        return int(settings.number(f"kernel_{name}"))

    domains = settings.text("network_domains") or ""
    return KernelSettings(
        least=_least(settings),
        network=Network(settings.text("network")),
        domains=tuple(name.strip().lower() for name in domains.split(",") if name.strip()),
        limits=Limits(
            memory_bytes=number("memory_mb") * MIB,
            process_memory_bytes=number("process_memory_mb") * MIB,
            processes=number("processes"),
            file_bytes=number("file_mb") * MIB,
            open_files=number("open_files"),
            disk_bytes=number("disk_mb") * MIB,
            disk_files=number("disk_files"),
            free_bytes=number("free_mb") * MIB,
            temporary_bytes=number("temporary_mb") * MIB,
        ),
        idle_seconds=settings.number("kernel_idle_seconds"),
        most=int(settings.number("kernels")),
    )


def listen_address(text: str) -> tuple[str, int]:
    """The address to bind; whether it may be bound is said elsewhere.

    Raises:
        ConfigError: It is no numeric address with a port.
    """
    host, _, number = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not host or not (number.isascii() and number.isdigit()) or int(number) > _HIGHEST_PORT:
        raise ConfigError(f"listen: {text!r} is not of the form HOST:PORT, e.g. 127.0.0.1:8765")
    # One name, one socket: localhost may stand for two addresses with two free ports.
    host = "127.0.0.1" if host == "localhost" else host
    try:
        return str(ipaddress.ip_address(host)), int(number)
    except ValueError:
        raise ConfigError(
            f"listen: {host} is not a loopback address, nor any other numeric one; say which "
            "address is meant, e.g. 127.0.0.1"
        ) from None


def names(text: str | None) -> tuple[str, ...]:
    """The names that the service goes by, from a list with commas.

    Raises:
        ConfigError: One is no host name.
    """
    found = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    for name in found:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"names: {name[:80]!r} is no host name; leave out schemes and ports")
    return found


def _say_nothing(_: object) -> None:
    pass


def _show_banner(ready: Ready) -> None:
    for line in banner(ready):
        tell(line)


def banner(ready: Ready) -> list[str]:
    """What somebody who started the service by hand is told."""
    if ready.is_demo:
        model = "DEMO: a script answers, no language model"
    elif ready.model is None:
        model = "none: inputs are stored and nothing answers (see --model-url and --model)"
    else:
        model = ready.model
    return [
        f"serving on {ready.url}",
        f"state    {_short(ready.state)}",
        f"model    {model}",
        f"release  {ready.release[:12]}",
        f"sandbox  {ready.kernels}",
        *([] if ready.exposure is None else [ready.exposure]),
        "talk to it with: klbr send SESSION TEXT; stop it with Ctrl-C",
    ]


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
