"""What others add to a session: notes, work items, folds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from klbr_trio.domain import work
from klbr_trio.domain.events import KINDS, FrontierInstalled, Note, Scratchpad
from klbr_trio.domain.text import NOTE_CHARS, TEXT_BYTES, check_name, cut, has_surrogate, json_bytes
from klbr_trio.errors import BadRequest, TooLarge
from klbr_trio.store.admission import INPUT_ID_PREFIX
from klbr_trio.wire.codec import check_cause, dumps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klbr_trio.domain.frontier import Frontier
    from klbr_trio.store.tx import Tx


def make_note(kind: str, payload: Mapping[str, Any]) -> Note:
    """A record that anyone may append.

    Raises:
        ValueError: The kind is the service's own, or the payload can't be stored as JSON.
        TooLarge: A scratchpad's text is over its bound.

    What comes back is a copy: nobody can change it before it is written.
    """
    try:
        check_name("kind", kind)
    except BadRequest as exc:
        raise ValueError(str(exc)) from None
    if kind in KINDS and kind != Scratchpad.kind:
        raise ValueError(f"kind {kind!r} is written by the service alone")
    if not isinstance(payload, dict):
        raise ValueError("the payload must be an object")  # noqa: TRY004
    if kind == Scratchpad.kind:
        text = payload.get("text")
        if set(payload) != {"text"} or not isinstance(text, str):
            raise ValueError("a scratchpad note has `text`, a string, and nothing else")
        if not has_surrogate(text) and json_bytes(text) > TEXT_BYTES:
            raise TooLarge(f"the text has over {TEXT_BYTES} bytes in JSON form")
    try:
        text = dumps(payload)
    except RecursionError:
        raise TooLarge("the payload is nested too deeply") from None
    except TypeError as exc:
        raise ValueError(f"the payload can't be stored as JSON: {exc}") from None
    if has_surrogate(text):
        raise ValueError("the payload holds a lone surrogate, which can't be stored as it is")
    return Note(kind, json.loads(text))


def append(tx: Tx, session_id: str, note: Note) -> int:
    """The note is the session's newest event; returns its seq.

    Raises:
        UnknownSession: No such session was ever made.
        TooLarge: The payload would not fit a server frame.
    """
    row = tx.known(session_id)
    seq = tx.append(row, note)
    tx.save(row)
    return seq


def check_work(item: work.WorkItem) -> None:
    """Refuse an item that can't be inserted.

    Raises:
        ValueError: It has no session, isn't pending, takes an id or cause that is the
            store's own, or could not be read back as it is.
    """
    if item.session_id is None:
        raise ValueError(f"work item {item.id!r} belongs to no session; use with_session")
    if not isinstance(item.status, work.Pending):
        raise ValueError(f"work item {item.id!r} must be pending, not {item.status!r}")  # noqa: TRY004
    if item.id.startswith(INPUT_ID_PREFIX) or isinstance(item.cause, work.InputReady):
        raise ValueError("inputs are made by admission alone")
    try:
        check_cause(item.cause)
    except BadRequest as exc:
        # Stored all the same it could never be read again, and would stop its session for good.
        raise ValueError(f"work item {item.id!r}: {exc}") from None
    names = [item.id, *(value for value in attrs.astuple(item.cause) if isinstance(value, str))]
    if not item.id or any(len(name) > NOTE_CHARS for name in names):
        raise ValueError(
            f"a work item's id and the names in its cause have 1 to {NOTE_CHARS} characters"
        )
    if any(map(has_surrogate, (item.id, item.purpose, item.provenance.name))):
        raise ValueError(f"work item {item.id!r} holds a lone surrogate")


def insert_work(tx: Tx, item: work.WorkItem) -> bool:
    """The item is pending; False if that id exists.

    Raises:
        UnknownSession: Its session was never made.
    """
    assert item.session_id is not None
    if tx.work_item(item.id) is not None:
        return False
    row = tx.known(item.session_id)
    tx.add_work(tx.next_work(), item)
    tx.save(row)
    return True


def fold(tx: Tx, session_id: str, frontier: Frontier) -> int:
    """The frontier is installed; returns the seq of its event.

    Raises:
        ValueError: Its epoch is not the next, or its seq goes back or lies past the head.
        UnknownSession: No such session was ever made.
    """
    row = tx.known(session_id)
    if frontier.epoch != row.fold_epoch + 1:
        raise ValueError(f"epoch must be {row.fold_epoch + 1}, not {frontier.epoch}")
    if not (row.fold_seq or 0) <= frontier.drained_through_seq <= row.head_seq:
        raise ValueError(
            f"drained_through_seq must lie between {row.fold_seq or 0} and {row.head_seq}, "
            f"not at {frontier.drained_through_seq}"
        )
    frontier = attrs.evolve(frontier, summary=cut(frontier.summary))
    seq = tx.append(
        row,
        FrontierInstalled(
            frontier.epoch, frontier.drained_through_seq, frontier.summary, frontier.derived_by
        ),
    )
    tx.add_frontier(session_id, frontier)
    row.fold_epoch = frontier.epoch
    row.fold_seq = frontier.drained_through_seq
    tx.save(row)
    return seq
