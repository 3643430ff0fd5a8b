"""Kernels: subprocesses that run a session's cells, with everything that those start.

Host → warden → worker. `run_kernel` (here, in a nursery) owns one of them; the warden kills what
the worker leaves behind; the worker keeps the variables and runs the cells. A sandbox comes around
the worker: the warden executes whatever command line `warden_argv` gives it.

Knows nothing of sessions, events or the store.
"""

from __future__ import annotations

from klbr_trio.kernel.cell import CellResult
from klbr_trio.kernel.config import KernelSpec, WorkerConfig
from klbr_trio.kernel.kernel import Kernel
from klbr_trio.kernel.supervisor import run_kernel
from klbr_trio.kernel.warden import Killed

__all__ = ["CellResult", "Kernel", "KernelSpec", "Killed", "WorkerConfig", "run_kernel"]
