"""How the service runs its kernels: behind the strongest walls that the machine has."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.daemon.private import write_private
from klbr_trio.errors import ConfigError
from klbr_trio.kernel import Level, Network, WorkerConfig, find_sandbox

if TYPE_CHECKING:
    from collections.abc import Generator

    from klbr_trio.daemon.settings import KernelSettings

_SOURCE_TREE: Final = Path(__file__).resolve().parents[3]
"""The checkout, if this is one; the installed package has its kernel inside."""


def kernels(settings: KernelSettings, *, workspaces: Path | None = None) -> WorkerConfig:
    """How kernels are run, and what was found to stand around them.

    Blocks while workers are started to find that out.

    Raises:
        ConfigError: The package has no kernel in it.
    """
    plain = attrs.evolve(
        WorkerConfig.source_tree(_SOURCE_TREE),
        workspaces=workspaces,
        limits=settings.limits,
        least=settings.least,
        network=settings.network,
        domains=settings.domains,
        idle_seconds=settings.idle_seconds,
    )
    found = find_sandbox(plain.python, plain.inside, plain.limits)
    return attrs.evolve(plain, sandbox=found)


def describe(config: WorkerConfig) -> str:
    """What stands around the kernels, for people."""
    if (refusal := config.refusal) is not None:
        return f"NO KERNELS: {refusal}"
    if config.sandbox.level is Level.NONE:
        return f"NONE: kernels have all rights of this user ({config.sandbox.describe()})"
    net = config.network
    reach = "OPEN, with this machine's own services" if net is Network.OPEN else net.value
    return f"{config.sandbox.describe()}; network {reach}"


@contextlib.contextmanager
def told(path: Path, words: str) -> Generator[None]:
    """Inside the block the file at `path` has `words`, for whoever asks for the status.

    Raises:
        ConfigError: It can't be written.
    """
    try:
        write_private(path, f"{words}\n".encode())
    except OSError as exc:
        raise ConfigError(f"{path}: can't be written: {exc.strerror}") from exc
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
