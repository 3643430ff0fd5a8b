"""Open calls: what an attempt's model asked for and has no result of yet.

The session's row lists them, so that a word said by a cell is checked against one
row however long the turn is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from klbr_trio.domain.events import CellFinished, CellRequested, LocalSent
from klbr_trio.errors import ClaimLost, IllegalTransition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klbr_trio.store.rows import SessionRow
    from klbr_trio.store.tx import Tx

_QUOTED_CHARS: Final = 200
_QUOTED_TEXTS: Final = 5


def request(tx: Tx, row: SessionRow, call: CellRequested) -> None:
    """The call is open; a cell that can run may be run from here on.

    Raises:
        IllegalTransition: The attempt has an open call of that name.
    """
    if call.call_id in row.open_calls:
        raise IllegalTransition(f"call {call.call_id} is open already; name it otherwise")
    tx.append(row, call)
    row.open_calls[call.call_id] = call.step
    if call.code is not None:
        row.kernel_boot = tx.boot


def finish(tx: Tx, row: SessionRow, results: Iterable[CellFinished]) -> None:
    """The calls have these results, in order.

    Raises:
        ClaimLost: One of them is not open: it has its result, or never was asked for.
    """
    for result in results:
        if row.open_calls.pop(result.call_id, None) is None:
            raise ClaimLost(f"call {result.call_id} is not open; it takes no result")
        tx.append(row, result)


def broken_off(
    tx: Tx, session_id: str, attempt_id: str, *, because: str
) -> tuple[CellFinished, ...]:
    """A result for each open call of the attempt, as `results_of` makes them."""
    return results_of(tx, tx.held(session_id, attempt_id), because=because)


def results_of(tx: Tx, row: SessionRow, *, because: str) -> tuple[CellFinished, ...]:
    """A result for each open call of an attempt that was broken off; none is written.

    The first may have run, in part or whole, and its result says what is known of
    it; the later ones did not run.
    """
    assert row.attempt_id is not None
    return tuple(
        CellFinished(
            row.attempt_id,
            step,
            call_id,
            ok=False,
            output="",
            value=None,
            error=f"not run: {because}" if index else _may_have_run(tx, row, call_id, because),
            truncated=False,
            duration_ms=None,
        )
        for index, (call_id, step) in enumerate(row.open_calls.items())
    )


def _may_have_run(tx: Tx, row: SessionRow, call_id: str, because: str) -> str:
    known = _known(_said(tx, row, call_id))
    return f"{because}; the code may have run, in part or whole; known: it sent {known}"


def _said(tx: Tx, row: SessionRow, call_id: str) -> list[str]:
    assert row.attempt_id is not None
    started = tx.started_seq(row.attempt_id)
    sent = map(json.loads, tx.payloads(row.session_id, started, LocalSent.kind))
    return [payload["text"] for payload in sent if payload["call_id"] == call_id]


def _known(texts: list[str]) -> str:
    if not texts:
        return "nothing"
    quoted = "; ".join(
        json.dumps(_short(text), ensure_ascii=False) for text in texts[:_QUOTED_TEXTS]
    )
    more = len(texts) - _QUOTED_TEXTS
    return quoted if more <= 0 else f"{quoted} and {more} more"


def _short(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARS else text[: _QUOTED_CHARS - 1] + "…"
