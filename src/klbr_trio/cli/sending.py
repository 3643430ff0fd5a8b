"""`klbr send`: an input, its receipt, and what is said in answer to it."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from klbr_trio.cli.awaited import Awaited, Ending
from klbr_trio.cli.exits import Exit, Problem, problem_of
from klbr_trio.cli.link import Frame, Link, check
from klbr_trio.cli.output import Output
from klbr_trio.cli.persist import persist
from klbr_trio.cli.settings import here
from klbr_trio.domain.ids import parse_session_id
from klbr_trio.domain.text import has_surrogate
from klbr_trio.wire.client import GetSessionStatus, SendInput, Subscribe

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE_S: Final = 60.0
"""How long a service that restarts is waited for: recovery of a large store takes seconds."""


def send(session: str, text: str | None, *, output: Output, flags: dict[str, Any]) -> Exit:
    """Send an input and, if asked to, wait for its answer."""
    key = flags.pop("key")
    sending = Sending(
        parse_session_id(session),
        _words(text),
        source=flags.pop("source"),
        # With a key of its own an input may be sent again when a connection breaks.
        key=key or f"cli-{secrets.token_hex(8)}",
        wait=flags.pop("wait"),
        output=output,
    )
    try:
        return trio.run(sending.run, flags)
    except (Problem, KeyboardInterrupt, BaseExceptionGroup) as exc:
        problem = problem_of(exc)
        if problem is not None and sending.seq and problem.code == Exit.INTERRUPTED:
            raise Problem(
                problem.code, f"interrupted; the input stays stored as {sending.seq}"
            ) from None
        raise


def _words(text: str | None) -> str:
    """The text to send: the argument, or stdin."""
    if text is None and sys.stdin.isatty():
        raise Problem(Exit.USAGE, "there is nothing to send; give a TEXT, or pipe one in")
    if text is None or text == "-":
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as exc:
            raise Problem(Exit.USAGE, f"stdin is not UTF-8 text: {exc.reason}") from exc
        text = text.removesuffix("\n")
    if not text:
        raise Problem(Exit.USAGE, "the text is empty; there is nothing to send")
    if has_surrogate(text):
        raise Problem(Exit.USAGE, "TEXT is not UTF-8; pipe it in as UTF-8 instead")
    return text


@attrs.define(eq=False)
class Sending:
    """One input on its way; it survives lost connections.

    Attributes:
        seq: Its number in the session, once it is stored.
    """

    session_id: str
    text: str
    source: str = attrs.field(kw_only=True)
    key: str = attrs.field(kw_only=True)
    wait: bool = attrs.field(kw_only=True)
    output: Output = attrs.field(kw_only=True)
    seq: int = 0
    _duplicate: bool = False
    _cursor: int = 0
    _awaited: Awaited = attrs.field(factory=lambda: Awaited(0))
    _told_failure: bool = False

    async def run(self, flags: Mapping[str, object]) -> Exit:
        """Send it, and wait if that is wanted."""
        code = await persist(here(flags), self._talk, patience_s=PATIENCE_S)
        self._report()
        return code

    async def _talk(self, link: Link) -> Exit:
        if not self.seq:
            await self._admit(link)
        return await self._follow(link) if self.wait else Exit.DONE

    async def _admit(self, link: Link) -> None:
        sent = await link.send(
            SendInput(
                session_id=self.session_id,
                source=self.source,
                text=self.text,
                client_request_id=self.key,
            )
        )
        # Replies come in order: when this one is here, nothing more is said about the input.
        asked = await link.send(GetSessionStatus(session_id=self.session_id))
        answer = await link.reply(sent)
        if answer.get("code") == "admission_rejected":
            raise _rejected(str(answer["message"]), await link.reply(asked))
        check(answer)
        self.seq = self._cursor = answer["seq"]
        self._duplicate = answer["duplicate"]
        self._awaited = Awaited(self.seq)
        before = "was stored before" if self._duplicate else "stored"
        self.output.note(f"{before} as {self.seq} in {self.session_id} (key {self.key})")
        refusal = await link.reply(sent, asked)
        if refusal.get("type") == "error":
            self._report()
            check(refusal)

    async def _follow(self, link: Link) -> Exit:
        await link.send(Subscribe(session_id=self.session_id, after_seq=self._cursor))
        is_live = False
        while self._awaited.ending is None:
            frame = await link.receive()
            match frame.get("type"):
                case "event":
                    self._take(frame["record"])
                case "sync_completed":
                    is_live = True
                case "error":
                    check(frame)
                case _:
                    pass
            if is_live:
                self._awaited.caught_up()
        return self._end(self._awaited.ending)

    def _take(self, record: Frame) -> None:
        if record["seq"] <= self._cursor:
            return
        self._cursor = record["seq"]
        said = self._awaited.take(record)
        if said is not None and not self.output.as_json:
            self.output.write(self.output.shown(said) + "\n")
        failure = self._awaited.failure
        if failure is not None and not self._told_failure:
            self._told_failure = True
            self.output.note(f"the turn failed ({failure['code']}): {failure['message']}")
            self.output.note("one repair follows")

    def _end(self, ending: Ending) -> Exit:
        match ending:
            case Ending.COMPLETED:
                return Exit.DONE
            case Ending.HELD:
                self.output.note(
                    f"session {self.session_id} is stopped; the input runs after: "
                    f"klbr reset {self.session_id}"
                )
                return Exit.FAILED
            case Ending.STOPPED:
                self.output.note(f"session {self.session_id} was stopped before it answered")
            case Ending.FAILED:
                why = (self._awaited.failure or {}).get("message", "it was broken off too often")
                self.output.note(f"the input was given up: {why}")
        return Exit.TURN_FAILED

    def _report(self) -> None:
        """The whole of it as one object, for programs."""
        if not self.output.as_json:
            return
        values: dict[str, object] = {
            "session_id": self.session_id,
            "seq": self.seq,
            "client_request_id": self.key,
            "duplicate": self._duplicate,
        }
        awaited = self._awaited
        if awaited.ending is not None:
            values |= {"outcome": awaited.ending.value, "speech": awaited.speech}
            if awaited.ending is Ending.FAILED and awaited.failure is not None:
                values["failure"] = dict(awaited.failure)
        self.output.fact(values, "")


def _rejected(message: str, status: Frame) -> Problem:
    """A stopped session stays stopped; a service that drains comes back."""
    if status.get("state") == "stopped":
        return Problem(Exit.FAILED, message)
    return Problem(Exit.TRY_AGAIN, message)
