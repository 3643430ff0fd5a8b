"""Kernels: subprocesses that run a session's cells, with everything that those start.

Host → warden → worker. `run_kernel` (here, in a nursery) owns one of them; the warden kills what
the worker leaves behind; the worker keeps the variables and runs the cells. A sandbox stands around
the worker, of the strongest level that `find_sandbox` has found, if the settings have one.

Knows nothing of sessions, events or the store.
"""

from __future__ import annotations

from klbr_trio.kernel.cell import CellResult
from klbr_trio.kernel.config import KernelSpec, WorkerConfig
from klbr_trio.kernel.kernel import Kernel
from klbr_trio.kernel.limits import Limits
from klbr_trio.kernel.network import Network
from klbr_trio.kernel.sandbox import NO_SANDBOX, Level, Sandbox, find_sandbox
from klbr_trio.kernel.supervisor import run_kernel
from klbr_trio.kernel.warden import Killed

__all__ = [
    "NO_SANDBOX",
    "CellResult",
    "Kernel",
    "KernelSpec",
    "Killed",
    "Level",
    "Limits",
    "Network",
    "Sandbox",
    "WorkerConfig",
    "find_sandbox",
    "run_kernel",
]
