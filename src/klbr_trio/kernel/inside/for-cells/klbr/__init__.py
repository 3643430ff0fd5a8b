"""What a cell may use of the session it runs in: `from klbr import local, runtime`.

`await local.send(text)` says something to the people in the session; it returns when that is
stored. `await runtime.wait(...)` and `await runtime.done()` say how the turn is to end.
`Refused` is raised by a policy's hooks to refuse, and by calls that the service refuses.
"""

from __future__ import annotations

from klbr import local, runtime
from klbr._kernel.calls import Refused

__all__ = ["Refused", "local", "runtime"]
