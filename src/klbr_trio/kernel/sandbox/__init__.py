"""What stands between a kernel and the machine: found out once, then put around each kernel.

`find_sandbox` tries the levels from the strongest down and says why one is not to be had;
`enclose` makes one kernel's command line and cage. The worker's part is in
`inside/confinement`.
"""

from __future__ import annotations

from klbr_trio.kernel.sandbox.level import NO_SANDBOX, Level, Sandbox
from klbr_trio.kernel.sandbox.probe import find_sandbox

__all__ = ["NO_SANDBOX", "Level", "Sandbox", "find_sandbox"]
