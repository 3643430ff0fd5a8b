"""The durable core: one file, one owner, one writer, and everything that may be written.

`store.Store` is the door. Operations (`admission`, `turns`, `failures`, `interrupts`,
`deadlines`, `operator`, `notes`) are synchronous functions of a `tx.Tx`; `writer` commits
them in groups; `reader` answers questions; `check` says whether the invariants hold.
"""

from __future__ import annotations

from klbr_trio.store.admission import Admission, Input
from klbr_trio.store.check import check, check_file
from klbr_trio.store.failures import Failure
from klbr_trio.store.interrupts import CrashRule
from klbr_trio.store.points import CommitPoint
from klbr_trio.store.rows import EventRow, SessionRow
from klbr_trio.store.store import Claim, Store
from klbr_trio.store.turns import Results, Turn, WaitFor
from klbr_trio.store.written import Written

__all__ = [
    "Admission",
    "Claim",
    "CommitPoint",
    "CrashRule",
    "EventRow",
    "Failure",
    "Input",
    "Results",
    "SessionRow",
    "Store",
    "Turn",
    "WaitFor",
    "Written",
    "check",
    "check_file",
]
