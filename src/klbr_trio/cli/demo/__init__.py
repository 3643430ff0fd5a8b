"""`klbr demo`: a real service, a real kernel and a scripted provider, shown and checked.

`stage` is the service's process and a connection to it; `story` is what happens; `claims`
are the sentences that it prints and has checked.
"""

from __future__ import annotations
