"""Cells: a call's code run in the kernel, with what it may ask of the host while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from klbr_trio.domain.events import CellFinished, CellRequested, LocalSent
from klbr_trio.domain.text import check_text, cut, cut_note
from klbr_trio.errors import CallRefused, ClaimLost, RequestError, StoreUnavailable
from klbr_trio.sessions.means import Means
from klbr_trio.store import Turn, WaitFor
from klbr_trio.wire.codec import MAX_INT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klbr_trio.kernel import CellResult

SEND: Final = "local.send"
WAIT: Final = "runtime.wait"
DONE: Final = "runtime.done"


@attrs.frozen
class Intention:
    """How a cell wants its turn to end.

    Attributes:
        outcome: `waiting` or `done`.
        wait: The deadline, if it is `waiting`.
    """

    outcome: str
    wait: WaitFor | None


@attrs.frozen
class CellDone:
    """A cell's end.

    Attributes:
        intention: The last one that it recorded, unless it raised.
        kernel_gone: Why the kernel is gone by itself, or None.
    """

    finished: CellFinished
    intention: Intention | None
    kernel_gone: str | None


@attrs.define(eq=False)
class Speech:
    """How many texts a turn has said."""

    count: int = 0


@attrs.define(eq=False)
class Cells:
    """Runs the cells of one turn."""

    _turn: Turn
    _means: Means
    _speech: Speech

    async def run(self, call: CellRequested, *, seconds: float) -> CellDone:
        """The call's code has run, or was broken off.

        Raises:
            KernelStartFailed: There is no kernel to run it.

        Cancellation: the kernel and everything it started are gone.
        """
        means = self._means
        entry = means.entry
        await self.settle_kernel()
        kernel = await entry.kernels.get(means.release)
        asked = _Asked(self._turn, means, self._speech, call, entry.runtime.hook_epoch)
        result = await kernel.run(
            call.call_id,
            call.code or "",
            on_call=asked.answer,
            on_output=lambda text: means.live.push(
                "output", text, step=call.step, call_id=call.call_id
            ),
            timeout_s=seconds,
        )
        gone = None
        if result.died is not None and entry.kernels.is_of(kernel):
            entry.kernels.announced()
            gone = "died"
        return CellDone(_finished(call, result), asked.intention if result.ok else None, gone)

    async def settle_kernel(self) -> None:
        """The log tells of a kernel that is gone, or runs another release, before it is missed.

        Durability: `kernel.reset` is committed when this returns, if it was due.
        Cancellation: what was not written is written when this is called again.
        """
        means = self._means
        slot = means.entry.kernels
        if slot.runs_other_than(means.release.digest):
            await slot.kill("the behaviour changed", unannounced="release")
        why = slot.take_note()
        if why is None:
            return
        row = means.store.row(self._turn.session_id)
        if row is not None and row.kernel_boot is not None:
            await means.store.kernel_gone(self._turn.session_id, why=why)
        slot.announced()


@attrs.define(eq=False)
class _Asked:
    """What one cell asks of the host."""

    _turn: Turn
    _means: Means
    _speech: Speech
    _call: CellRequested
    _hook_epoch: int
    intention: Intention | None = None

    async def answer(self, target: str, args: Mapping[str, object]) -> object:
        """The host's answer to a call of the cell.

        Raises:
            CallRefused: The text becomes the cell's exception.
        """
        if self._means.entry.runtime.hook_epoch != self._hook_epoch:
            raise CallRefused("the kernel was reset; nothing that this cell asks for is done")
        if target == SEND:
            return await self._send(args.get("text"))
        if target == WAIT:
            self.intention = Intention("waiting", self._wait(args))
            return None
        if target == DONE:
            self.intention = Intention("done", None)
            return None
        raise CallRefused(f"the host knows no call {target!r}")

    async def _send(self, text: object) -> int:
        if not isinstance(text, str):
            raise CallRefused("local.send takes a string")
        limit = self._means.release.settings.send.per_turn
        if self._speech.count >= limit:
            raise CallRefused(
                f"nothing was sent: this turn has sent {limit} texts already; "
                "end the turn, or say more in one text"
            )
        try:
            check_text("text", text)
        except RequestError as exc:
            raise CallRefused(f"nothing was sent: {exc}") from exc
        said = LocalSent(text, self._call.attempt_id, self._call.step, self._call.call_id)
        self._means.live.flush()
        try:
            seq = await self._means.store.say(self._turn, said, hook_epoch=self._hook_epoch)
        except (ClaimLost, StoreUnavailable) as exc:
            raise CallRefused(f"nothing was sent: {exc}") from exc
        self._speech.count += 1
        return seq

    def _wait(self, args: Mapping[str, Any]) -> WaitFor:
        now_ms = self._means.clock.now_ms()
        until_ms, seconds, reason = args.get("until_ms"), args.get("seconds"), args.get("reason")
        if isinstance(until_ms, int):
            wake_at_ms = until_ms
        elif isinstance(seconds, int | float):
            wake_at_ms = now_ms + round(seconds * 1000)
        else:
            raise CallRefused("runtime.wait needs seconds or until")
        if not 0 <= wake_at_ms <= MAX_INT:
            raise CallRefused("runtime.wait: that time is out of reach")
        bound = self._means.release.settings.wait.max_seconds
        if bound and wake_at_ms > now_ms + bound * 1000:
            raise CallRefused(
                f"runtime.wait: at most {bound:g} s are allowed (wait.max_seconds in behavior.toml)"
            )
        return WaitFor(wake_at_ms, cut_note(reason if isinstance(reason, str) else None))


def _finished(call: CellRequested, result: CellResult) -> CellFinished:
    return CellFinished(
        call.attempt_id,
        call.step,
        call.call_id,
        ok=result.ok,
        output=cut(result.output),
        value=None if result.value is None else cut(result.value),
        error=None if result.error is None else cut(result.error),
        truncated=result.truncated,
        duration_ms=result.duration_ms,
    )
