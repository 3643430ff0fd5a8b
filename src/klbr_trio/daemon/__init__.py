"""The daemon: opens everything in order, keeps it together, and closes it in order.

`run` is the composition root. `folder`, `token`, `announcement` and `private` are the
state folder's files; `logs` and `secrecy` are what the process owes its secrets; `demo`
is the scripted provider.
"""

from __future__ import annotations
