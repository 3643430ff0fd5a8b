"""Open calls: what an attempt's model asked for and has no result of yet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from klbr_trio.domain.events import CellFinished, CellRequested, LocalSent

if TYPE_CHECKING:
    from klbr_trio.store.tx import Tx

_KINDS: Final = (CellRequested.kind, CellFinished.kind, LocalSent.kind)
_QUOTED_CHARS: Final = 200


def open_calls(tx: Tx, session_id: str, attempt_id: str) -> dict[str, int]:
    """The attempt's calls without a result → their step, in order."""
    calls, _ = _read(tx, session_id, attempt_id)
    return calls


def broken_off(tx: Tx, session_id: str, attempt_id: str, *, because: str) -> list[CellFinished]:
    """A result for each open call of an attempt that was broken off.

    The first may have run, in part or whole, and its result says what is known of
    it; the later ones did not run.
    """
    calls, sent = _read(tx, session_id, attempt_id)
    results = []
    for index, (call_id, step) in enumerate(calls.items()):
        if index == 0:
            error = f"{because}; the code may have run, in part or whole; {_known(sent, call_id)}"
        else:
            error = f"not run: {because}"
        results.append(
            CellFinished(
                attempt_id,
                step,
                call_id,
                ok=False,
                output="",
                value=None,
                error=error,
                truncated=False,
                duration_ms=None,
            )
        )
    return results


def _known(sent: list[tuple[str | None, str]], call_id: str) -> str:
    texts = [text for said_by, text in sent if said_by == call_id]
    if not texts:
        return "known: it sent nothing"
    quoted = "; ".join(json.dumps(_short(text), ensure_ascii=False) for text in texts[:5])
    more = "" if len(texts) <= 5 else f" and {len(texts) - 5} more"
    return f"known: it sent {quoted}{more}"


def _short(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARS else text[: _QUOTED_CHARS - 1] + "…"


def _read(
    tx: Tx, session_id: str, attempt_id: str
) -> tuple[dict[str, int], list[tuple[str | None, str]]]:
    calls: dict[str, int] = {}
    sent: list[tuple[str | None, str]] = []
    for kind, text in tx.payloads(session_id, tx.started_seq(attempt_id), _KINDS):
        payload = json.loads(text)
        if kind == CellRequested.kind:
            calls[payload["call_id"]] = payload["step"]
        elif kind == CellFinished.kind:
            calls.pop(payload["call_id"], None)
        else:
            sent.append((payload["call_id"], payload["text"]))
    return calls, sent
