"""Admission: an input becomes durable once, whatever its sender repeats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.domain import work
from klbr_trio.domain.events import InputAdmitted
from klbr_trio.domain.ids import parse_session_id
from klbr_trio.domain.text import check_name, check_text
from klbr_trio.errors import AdmissionRejected, SourceKeyConflict

if TYPE_CHECKING:
    from klbr_trio.store.tx import Tx

INPUT_ID_PREFIX: Final = "work-input-"


@attrs.frozen
class Input:
    """What a client sends to a session; (session, source, client_request_id) is its key."""

    session_id: str
    source: str
    text: str
    client_request_id: str | None


@attrs.frozen
class Admission:
    """What became of an input.

    Attributes:
        seq: Of its `input.admitted`; of the first one when it was sent before.
        duplicate: Whether the key was seen before with the same text.
        pending: Whether it still waits for its turn to end.
    """

    seq: int
    duplicate: bool
    pending: bool = True


def check(sent: Input) -> None:
    """Refuse an input that can't be stored as it was sent.

    Raises:
        InvalidSessionId: Its session's id does not match the rule.
        BadRequest: Its source, key or text is empty, too long or can't be stored.
        TooLarge: Its text is over the bound.
    """
    parse_session_id(sent.session_id)
    check_name("source", sent.source)
    if sent.client_request_id is not None:
        check_name("client_request_id", sent.client_request_id, empty_ok=True)
    check_text("text", sent.text)


def admit(tx: Tx, sent: Input, *, refuse: str | None = None) -> Admission:
    """Store the input, or find it stored.

    Args:
        tx: The transaction.
        sent: The input.
        refuse: Why no new input may be taken now, or None.

    Raises:
        SourceKeyConflict: Its key was used with another text.
        AdmissionRejected: It is new and the session is stopped, or `refuse` is given.
    """
    if sent.client_request_id is not None:
        known = tx.input_by_key(sent.session_id, sent.source, sent.client_request_id)
        if known is not None:
            return _again(tx, sent, *known)
    if refuse is not None:
        raise AdmissionRejected(f"cannot admit input: {refuse}")
    row = tx.session(sent.session_id) or tx.make_session(sent.session_id)
    if row.stopped:
        raise AdmissionRejected(
            f"cannot admit input: session {sent.session_id!r} is stopped; reset it to go on"
        )
    n = tx.next_work()
    item_id = f"{INPUT_ID_PREFIX}{n}"
    seq = tx.append(row, InputAdmitted(sent.source, sent.text, sent.client_request_id, item_id))
    item = work.WorkItem.new(
        item_id,
        "answer an input",
        work.InputReady(seq),
        work.ConsequenceMetadata(),
        work.Provenance.operator(sent.source, tx.now_ms),
        tx.now_ms,
    )
    tx.add_work(n, item.with_session(sent.session_id))
    tx.save(row)
    return Admission(seq, duplicate=False)


def _again(tx: Tx, sent: Input, seq: int, payload: str) -> Admission:
    known = json.loads(payload)
    if known["text"] != sent.text:
        raise SourceKeyConflict(
            f"source key reused with different content: {sent.client_request_id!r} is input {seq}"
        )
    row = tx.work_item(known["work_item_id"])
    open_still = row is not None and isinstance(row.item.status, work.Pending | work.Claimed)
    return Admission(seq, duplicate=True, pending=open_still)
