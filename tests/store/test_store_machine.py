"""Any sequence of operations, services and crashes leaves a sound store, and the account is right.

The model is small: what was acknowledged, what each input's end was, which deadlines
were armed and fired. `check` says the rest after every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from store_lab import TOO_SLOW, UNREACHABLE, chore
from sync_store import SyncStore

from klbr_trio.domain import work
from klbr_trio.domain.events import CellFinished, CellRequested, LocalSent, ReplyReceived
from klbr_trio.domain.frontier import Frontier
from klbr_trio.errors import (
    AdmissionRejected,
    ClaimLost,
    IllegalTransition,
    SourceKeyConflict,
    UnknownSession,
)
from klbr_trio.store import Failure, Input, Results, Turn, WaitFor
from klbr_trio.store.admission import admit
from klbr_trio.store.deadlines import arm, wake
from klbr_trio.store.failures import fail
from klbr_trio.store.interrupts import interrupt
from klbr_trio.store.notes import append, fold, insert_work, make_note
from klbr_trio.store.operator import kernel_gone, reset, stop
from klbr_trio.store.turns import claim, claim_item, complete, reply, result, say

SESSIONS = st.sampled_from(["a", "b"])
KEYS = st.sampled_from([None, "k1", "k2", "k3"])
TEXTS = st.sampled_from(["hi", "ho"])
FAILURES = st.sampled_from([UNREACHABLE, TOO_SLOW])
HOUR = 3_600_000


@attrs.define
class Known:
    """What a client and a driver know of one session."""

    acks: dict[tuple[str, str], int] = attrs.field(factory=dict)
    inputs: set[int] = attrs.field(factory=set)
    turn: Turn | None = None
    old_turns: list[Turn] = attrs.field(factory=list)
    open: list[str] = attrs.field(factory=list)
    armed: int | None = None
    made: bool = False
    stopped: bool = False
    epoch: int = 1
    step: int = 0


Condition = Callable[[Known], bool]


def made(known: Known) -> bool:
    return known.made


def in_turn(known: Known) -> bool:
    return known.turn is not None


def in_call(known: Known) -> bool:
    return bool(known.open)


def between_steps(known: Known) -> bool:
    return known.turn is not None and not known.open


def had_turns(known: Known) -> bool:
    return bool(known.old_turns)


def some(condition: Condition) -> Callable[[StoreMachine], bool]:
    """A precondition: at least one session is so."""
    return lambda self: any(map(condition, self.known.values()))


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = SyncStore()
        self.known = {"a": Known(), "b": Known()}
        self.woken: list[tuple[str, int]] = []
        self.names = 0
        self.crashes: Counter[str] = Counter()

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}-{self.names}"

    def one(self, session: str, condition: Condition) -> tuple[str, Known]:
        """That session if it is so, else the other one."""
        if not condition(self.known[session]):
            session = "b" if session == "a" else "a"
        return session, self.known[session]

    def teardown(self) -> None:
        self.store.close()

    # Inputs

    @rule(session=SESSIONS, key=KEYS, text=TEXTS, draining=st.booleans())
    def admit(self, session: str, key: str | None, text: str, *, draining: bool) -> None:
        known = self.known[session]
        sent = Input(session, "cli", text, key)
        refuse = "draining" if draining else None
        first = known.acks.get((key or "", text))
        other = any(k == key and t != text for k, t in known.acks) and key is not None
        try:
            answer = self.store.do(lambda tx: admit(tx, sent, refuse=refuse))
        except SourceKeyConflict:
            assert other
        except AdmissionRejected:
            assert draining or known.stopped
            assert key is None or not (first or other)
        else:
            assert not other
            if key is not None and first is not None:
                assert (answer.seq, answer.duplicate) == (first, True)
            else:
                assert not answer.duplicate
                assert not draining
                assert not (known.stopped)
                assert answer.seq not in known.inputs
                known.made = True
                known.inputs.add(answer.seq)
                if key is not None:
                    known.acks[key, text] = answer.seq

    @rule(session=SESSIONS, maintenance=st.booleans())
    def insert(self, session: str, *, maintenance: bool) -> None:
        item_id = self.name("chore")
        cause = work.MaintenanceReady(item_id, "x") if maintenance else work.Repair("op-none")
        item = attrs.evolve(chore(item_id, session=session), cause=cause)
        if not self.known[session].made:
            with pytest.raises(UnknownSession):
                self.store.do(lambda tx: insert_work(tx, item))
            return
        assert self.store.do(lambda tx: insert_work(tx, item))
        assert not self.store.do(lambda tx: insert_work(tx, item))

    @precondition(some(made))
    @rule(session=SESSIONS)
    def note(self, session: str) -> None:
        session, _ = self.one(session, made)
        note = make_note("my.kind", {"attempt_id": 3, "step": None})
        self.store.do(lambda tx: append(tx, session, note))

    # Turns

    @rule(session=SESSIONS)
    def claim(self, session: str) -> None:
        known = self.known[session]
        runnable = self.store.reader.is_runnable(session)
        attempt = self.name("op")
        turn = self.store.do(
            lambda tx: claim(tx, session, attempt_id=attempt, release="r", model="m")
        )
        assert (turn is not None) == runnable
        self.begun(known, turn)

    @rule(session=SESSIONS, index=st.integers(0, 3))
    def claim_one(self, session: str, index: int) -> None:
        known = self.known[session]
        items = self.store.reader.pending_work(session, 0, 10)
        if not items:
            return
        item = items[index % len(items)].item
        attempt = self.name("op")
        turn = self.store.do(
            lambda tx: claim_item(tx, item.id, attempt_id=attempt, now_ms=self.store.now_ms)
        )
        assert (turn is not None) == (known.turn is None and not known.stopped)
        self.begun(known, turn)

    def begun(self, known: Known, turn: Turn | None) -> None:
        if turn is None:
            return
        assert known.turn is None
        known.turn, known.open, known.step = turn, [], 0
        assert known.epoch <= turn.hook_epoch <= known.epoch + 1
        known.epoch = turn.hook_epoch

    @precondition(some(between_steps))
    @rule(session=SESSIONS, calls=st.integers(0, 3))
    def reply(self, session: str, calls: int) -> None:
        session, known = self.one(session, between_steps)
        assert known.turn is not None
        turn, known.step = known.turn, known.step + 1
        names = [self.name("call") for _ in range(calls)]
        received = ReplyReceived(turn.attempt_id, known.step, "m", "stop", None, None)
        asked = [CellRequested(turn.attempt_id, known.step, call, "1") for call in names]
        self.store.do(lambda tx: reply(tx, turn, received, scratchpad="s", calls=asked, refused=()))
        known.open = names

    @precondition(some(in_call))
    @rule(session=SESSIONS, old_kernel=st.booleans())
    def say(self, session: str, *, old_kernel: bool) -> None:
        session, known = self.one(session, in_call)
        turn = known.turn
        assert turn is not None
        said = LocalSent("hello", turn.attempt_id, known.step, known.open[0])
        epoch = known.epoch - int(old_kernel)
        if old_kernel:
            with pytest.raises(ClaimLost):
                self.store.do(lambda tx: say(tx, turn, said, hook_epoch=epoch))
        else:
            self.store.do(lambda tx: say(tx, turn, said, hook_epoch=epoch))

    @precondition(some(in_call))
    @rule(session=SESSIONS, died=st.booleans())
    def result(self, session: str, *, died: bool) -> None:
        session, known = self.one(session, in_call)
        assert known.turn is not None
        turn, call = known.turn, known.open.pop(0)
        done = Results((self.finished(known, turn, call),), "died" if died else None)
        self.store.do(lambda tx: result(tx, turn, done))
        known.epoch += died
        with pytest.raises(ClaimLost):
            self.store.do(lambda tx: result(tx, turn, done))

    def finished(self, known: Known, turn: Turn, call: str) -> CellFinished:
        return CellFinished(
            turn.attempt_id, known.step, call, ok=True, output="", value=None, error=None,
            truncated=False, duration_ms=1,
        )  # fmt: skip

    @precondition(some(in_turn))
    @rule(session=SESSIONS, outcome=st.sampled_from(["replied", "done", "waiting"]))
    def complete(self, session: str, outcome: str) -> None:
        session, known = self.one(session, in_turn)
        turn = known.turn
        assert turn is not None
        wait = WaitFor(self.store.now_ms + HOUR, "later") if outcome == "waiting" else None
        rest = Results(tuple(self.finished(known, turn, call) for call in known.open))
        if known.open:
            with pytest.raises(IllegalTransition):
                self.store.do(
                    lambda tx: complete(
                        tx, turn, outcome=outcome, wait=wait, results=Results(), usage=None
                    )
                )
        self.store.do(
            lambda tx: complete(tx, turn, outcome=outcome, wait=wait, results=rest, usage=None)
        )
        if wait is not None:
            known.armed = wait.wake_at_ms
        elif outcome == "done":
            known.armed = None
        self.ended(known)

    @precondition(some(in_turn))
    @rule(session=SESSIONS, failure=FAILURES)
    def fail(self, session: str, failure: Failure) -> None:
        session, known = self.one(session, in_turn)
        turn = known.turn
        assert turn is not None
        self.store.do(lambda tx: fail(tx, turn, failure, results=Results()))
        if known.armed is None:
            row = self.store.reader.session(session)
            assert row is not None
            known.armed = row.wake_at_ms
        self.ended(known)

    @precondition(some(in_turn))
    @rule(session=SESSIONS, why=st.sampled_from(["shutdown", "aborted", "crash", "crash"]))
    def interrupt(self, session: str, why: str) -> None:
        session, known = self.one(session, in_turn)
        self.break_off(session, known, why)

    def break_off(self, session: str, known: Known, why: str) -> None:
        assert known.turn is not None
        attempt = known.turn.attempt_id
        pending = {row.item.id for row in self.store.reader.pending_work(session, 0, 999)}
        assert self.store.do(lambda tx: interrupt(tx, session, attempt, why=why))
        assert not self.store.do(lambda tx: interrupt(tx, session, attempt, why=why))
        for item in known.turn.items:
            self.crashes[item.id] += why == "crash"
            again = self.store.reader.work(item.id)
            assert again is not None
            told = isinstance(item.cause, work.Recovery)
            gave_up = why == "crash" and (told or self.crashes[item.id] >= 3)
            assert isinstance(again.status, work.Failed if gave_up else work.Pending)
            pending.add(item.id)
        new = {row.item.id for row in self.store.reader.pending_work(session, 0, 999)} - pending
        assert len(new) <= 1
        self.ended(known)

    def ended(self, known: Known) -> None:
        assert known.turn is not None
        known.old_turns.append(known.turn)
        known.turn, known.open = None, []

    @precondition(some(had_turns))
    @rule(session=SESSIONS, index=st.integers(0, 20))
    def write_late(self, session: str, index: int) -> None:
        _, known = self.one(session, had_turns)
        old = known.old_turns
        turn = old[index % len(old)]
        said = LocalSent("late", turn.attempt_id, 1, None)
        with pytest.raises(ClaimLost):
            self.store.do(lambda tx: say(tx, turn, said, hook_epoch=1))
        with pytest.raises(ClaimLost):
            self.store.do(lambda tx: fail(tx, turn, UNREACHABLE, results=Results()))

    # The operator

    @rule(session=SESSIONS)
    def stop(self, session: str) -> None:
        known = self.known[session]
        if not known.made:
            with pytest.raises(UnknownSession):
                self.store.do(lambda tx: stop(tx, session))
            return
        assert self.store.do(lambda tx: stop(tx, session)) is not known.stopped
        if not known.stopped:
            rest = self.store.reader.pending_work(session, 0, 999)
            assert all(isinstance(row.item.cause, work.InputReady) for row in rest)
        known.stopped, known.armed = True, None
        if known.turn is not None:
            self.ended(known)

    @precondition(some(made))
    @rule(session=SESSIONS)
    def reset(self, session: str) -> None:
        session, known = self.one(session, made)
        assert self.store.do(lambda tx: reset(tx, session)) is known.stopped
        known.stopped = False
        known.epoch += 1

    @precondition(some(made))
    @rule(session=SESSIONS)
    def idle_kernel(self, session: str) -> None:
        session, known = self.one(session, made)
        known.epoch += 1
        assert self.store.do(lambda tx: kernel_gone(tx, session, why="idle")) == known.epoch

    # Time

    @precondition(some(made))
    @rule(session=SESSIONS, after=st.integers(-HOUR, 3 * HOUR), receipt=st.booleans())
    def arm(self, session: str, after: int, *, receipt: bool) -> None:
        session, known = self.one(session, made)
        at = None if receipt else self.store.now_ms + after

        def operation(tx: Any) -> None:
            arm(tx, session, receipt="r" if receipt else None, wake_at_ms=at, reason="why")

        if known.stopped or known.turn is not None:
            with pytest.raises(IllegalTransition):
                self.store.do(operation)
        else:
            self.store.do(operation)
            known.armed = at

    @rule(ms=st.integers(0, 4 * HOUR))
    def let_time_pass(self, ms: int) -> None:
        self.store.now_ms += ms

    @rule()
    def wake(self) -> None:
        now = self.store.now_ms
        due = {
            session: known.armed
            for session, known in self.known.items()
            if known.armed is not None and known.armed <= now
        }
        woken = self.store.do(lambda tx: wake(tx, now_ms=now))
        assert sorted(woken) == sorted(due)
        for session, at in due.items():
            self.woken.append((session, at))
            self.known[session].armed = None

    # Folds and services

    @rule(session=SESSIONS, share=st.floats(0, 1))
    def fold(self, session: str, share: float) -> None:
        row = self.store.reader.session(session)
        if row is None or row.head_seq == 0:
            return
        low = row.fold_seq or 0
        through = low + int((row.head_seq - low) * share)
        frontier = Frontier(row.fold_epoch + 1, through, "so far", "folder")
        self.store.do(lambda tx: fold(tx, session, frontier))
        with pytest.raises(ValueError, match="epoch must be"):
            self.store.do(lambda tx: fold(tx, session, frontier))

    @rule(recover=st.booleans())
    def restart(self, *, recover: bool) -> None:
        """The service crashed and the next one opens the store, and settles it at once or not."""
        self.store.reopen()
        for left in self.store.reader.open_attempts(self.store.boot):
            known = self.known[left.session_id]
            assert known.turn is not None
            assert known.turn.attempt_id == left.attempt_id
            if recover:
                self.break_off(left.session_id, known, "crash")
        if recover:
            self.store.do(lambda tx: tx.recovered())

    # What must hold

    @invariant()
    def every_invariant_holds(self) -> None:
        assert self.store.check() == []

    @invariant()
    def the_account_is_right(self) -> None:
        rows = self.store.conn.execute(
            "SELECT session_id, json_extract(payload, '$.wake_at_ms') FROM event "
            "WHERE kind = 'session.woken'"
        ).fetchall()
        assert sorted(rows) == sorted(self.woken)
        for session, known in self.known.items():
            inputs = self.store.conn.execute(
                "SELECT seq FROM event WHERE session_id = ? AND kind = 'input.admitted'",
                (session,),
            ).fetchall()
            assert {seq for (seq,) in inputs} == known.inputs
            row = self.store.reader.session(session)
            assert (row is not None) == known.made
            if row is not None:
                assert row.wake_at_ms == known.armed
                assert row.hook_epoch == known.epoch
                assert row.stopped == known.stopped
                attempt = None if known.turn is None else known.turn.attempt_id
                assert row.attempt_id == attempt
                assert list(row.open_calls) == known.open


StoreMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[]
)
TestStoreMachine = StoreMachine.TestCase
