"""One turn: ask the model, commit its reply, run its cells, commit their results, again.

Every step is durable before the next begins. The turn ends with exactly one closing
commit of its own; whatever else ends it is an interrupt, and not this module's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.domain.events import CellRequested, LocalSent
from klbr_trio.domain.text import cut
from klbr_trio.domain.usage import add
from klbr_trio.domain.work import InputReady
from klbr_trio.errors import ConfigError, ContextTooLong, KernelStartFailed, ModelError
from klbr_trio.models import ModelRequest
from klbr_trio.release import PlainText
from klbr_trio.sessions.cells import Cells, Speech
from klbr_trio.sessions.means import Means
from klbr_trio.sessions.naming import Naming, not_run
from klbr_trio.sessions.prompt import Persona, Window, build, length
from klbr_trio.store import Failure, Results, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klbr_trio.models import Message, Reply
    from klbr_trio.store import WaitFor

BUDGET_CHARS: Final = 200_000
"""A prompt's length when the model's context is not known: about 50,000 tokens."""

CHARS_PER_TOKEN: Final = 3
"""A cautious guess; what does not fit is found out by the provider, and halved."""

MIN_BUDGET_CHARS: Final = 2_000

MAX_NUDGES: Final = 2


class TurnFailed(Exception):
    """The turn can't go on; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@attrs.define(eq=False)
class TurnRun:
    """One turn being run; `run` commits its closing event.

    Attributes:
        usage: The tokens of all its replies.
        speech: What it has said.
        naming: The names of all its calls.
    """

    turn: Turn
    means: Means
    naming: Naming
    speech: Speech
    cells: Cells
    _ends_at: float
    step: int = 0
    nudges: int = 0
    halved: bool = False
    usage: dict[str, float] = attrs.field(factory=dict)

    @classmethod
    def begin(cls, turn: Turn, means: Means) -> TurnRun:
        """A run that has its release's time from now."""
        speech = Speech()
        cells = Cells(turn, means, speech)
        ends_at = trio.current_time() + means.release.settings.turn.seconds
        return cls(turn, means, Naming(turn.attempt_id), speech, cells, ends_at)

    async def run(self) -> None:
        """The turn is closed: completed or failed.

        Raises:
            ClaimLost: Somebody else ended the attempt.
            StoreUnavailable: A step could not be committed; the attempt is still open.

        Durability: the closing event is committed when this returns.
        Cancellation: the attempt is still open; a cell that ran is killed with its kernel.
        """
        try:
            await self._steps()
        except TurnFailed as exc:
            await self.means.store.fail(self.turn, exc.failure, results=Results())

    async def _steps(self) -> None:
        window = await Window.read(
            self.means.store,
            self.turn.session_id,
            budget_chars=self._budget(),
            started_seq=self.turn.started_seq,
        )
        while True:
            self.step += 1
            self._check_bounds()
            await self.cells.settle_kernel()
            await window.refresh(self.means.store)
            reply = await self._ask(window)
            if await self._take(reply):
                return

    async def _take(self, reply: Reply) -> bool:
        """The reply is committed and its calls have run; True if it ended the turn."""
        calls = await self._commit_reply(reply)
        if calls:
            return await self._run_calls(calls)
        return await self._plain_end(reply)

    # Asking

    @property
    def _model(self) -> str:
        """The name of the model that the release asks for; empty for the default."""
        return self.means.release.settings.model

    def _budget(self) -> int:
        """How long a prompt may be: as the model's context allows, or as it has turned out."""
        if (known := self.means.entry.budget_chars) is not None:
            return known
        tokens = self.means.llm.models.named_or_default(self._model).context_tokens
        if tokens is None:
            return BUDGET_CHARS
        return max(MIN_BUDGET_CHARS, tokens * CHARS_PER_TOKEN * 3 // 4)

    async def _ask(self, window: Window) -> Reply:
        """The model's reply; a prompt that is too long for it is halved, once a turn, if it can be."""
        messages = self._prompt(window)
        try:
            return await self._complete(messages)
        except ContextTooLong as exc:
            half = min(self._budget(), length(messages)) // 2
            # Also for the turns to come: else a long session would fail for good.
            self.means.entry.budget_chars = max(MIN_BUDGET_CHARS, half)
            if self.halved or self._prompt(window) == messages:
                raise TurnFailed(Failure(exc.code, str(exc), retryable=False)) from exc
            self.halved = True
        return await self._ask(window)

    def _prompt(self, window: Window) -> tuple[Message, ...]:
        release = self.means.release
        persona = Persona(release.instructions, self.means.soul or release.settings.soul)
        return build(window, persona, budget_chars=self._budget(), attempt_id=self.turn.attempt_id)

    async def _complete(self, messages: tuple[Message, ...]) -> Reply:
        means = self.means
        request = ModelRequest(messages, session_id=self.turn.session_id, model=self._model)
        with trio.move_on_at(self._ends_at) as scope:
            try:
                return await means.llm.complete(
                    request,
                    on_delta=self._hear,
                    on_discard=lambda: means.live.discard(self.step),
                )
            except ContextTooLong:
                raise
            except ConfigError as exc:
                failure = Failure("provider_refused", f"{exc}; behavior.toml", retryable=False)
                raise TurnFailed(failure) from exc
            except ModelError as exc:
                raise TurnFailed(Failure(exc.code, str(exc), retryable=exc.retryable)) from exc
        assert scope.cancelled_caught
        means.live.discard(self.step)
        raise TurnFailed(self._out_of_time())

    def _hear(self, lane: str, delta: str) -> None:
        """What the model says as it says it; its kernel starts meanwhile."""
        self.means.live.push(lane, delta, step=self.step)
        self.means.entry.kernels.warm(self.means.release)

    def _check_bounds(self) -> None:
        bounds = self.means.release.settings.turn
        if self.step > bounds.steps:
            raise TurnFailed(
                Failure(
                    "bound_steps",
                    f"the turn took {bounds.steps} model calls without coming to an end "
                    "(turn.steps in behavior.toml)",
                    retryable=False,
                )
            )
        if trio.current_time() >= self._ends_at:
            raise TurnFailed(self._out_of_time())
        used = int(self.usage.get("total_tokens", 0))
        if bounds.tokens and used >= bounds.tokens:
            raise TurnFailed(
                Failure(
                    "bound_tokens",
                    f"the turn used {used} tokens of {bounds.tokens} (turn.tokens in behavior.toml)",
                    retryable=False,
                )
            )

    def _out_of_time(self) -> Failure:
        seconds = self.means.release.settings.turn.seconds
        return Failure(
            "bound_time",
            f"the turn took longer than {seconds:g} s (turn.seconds in behavior.toml)",
            retryable=False,
        )

    # The reply

    async def _commit_reply(self, reply: Reply) -> tuple[CellRequested, ...]:
        """The reply is in the log; its calls, under their names."""
        add(self.usage, reply.usage)
        named = self.naming.name(reply, self.step)
        self.means.live.flush()
        await self.means.store.reply(
            self.turn,
            named.received,
            scratchpad=cut(reply.text),
            calls=named.calls,
            refused=named.refused,
        )
        return named.calls

    # Its calls

    async def _run_calls(self, calls: Sequence[CellRequested]) -> bool:
        """Run the calls in order; True if one of them ended the turn."""
        for index, call in enumerate(calls):
            if call.code is None:
                continue
            try:
                done = await self.cells.run(call, seconds=self._cell_seconds())
            except KernelStartFailed as exc:
                raise await self._kernel_failed(calls[index:], exc) from exc
            self.means.live.flush()
            if done.intention is not None:
                rest = tuple(
                    not_run(later, "not run: the turn had ended")
                    for later in calls[index + 1 :]
                    if later.code is not None
                )
                results = Results((done.finished, *rest), done.kernel_gone)
                await self._close(done.intention.outcome, done.intention.wait, results)
                return True
            await self.means.store.result(self.turn, Results((done.finished,), done.kernel_gone))
        return False

    async def _kernel_failed(
        self, calls: Sequence[CellRequested], exc: KernelStartFailed
    ) -> TurnFailed:
        message = f"the kernel did not start: {exc}"
        finished = tuple(
            not_run(call, f"not run: {message}") for call in calls if call.code is not None
        )
        await self.means.store.result(self.turn, Results(finished))
        return TurnFailed(Failure("kernel_unavailable", message, retryable=True))

    def _cell_seconds(self) -> float:
        left = self._ends_at - trio.current_time()
        return max(0.1, min(self.means.release.settings.cell.seconds, left))

    # The end

    async def _plain_end(self, reply: Reply) -> bool:
        """A reply without a call ends the turn, unless the model should hear something first."""
        settings = self.means.release.settings
        if settings.plain_text is PlainText.SPEAK and reply.text.strip():
            said = LocalSent(cut(reply.text), self.turn.attempt_id, self.step, None)
            await self.means.store.say(self.turn, said, hook_epoch=self.turn.hook_epoch)
            self.speech.count += 1
        elif self.nudges < MAX_NUDGES and (reply.hint or self._owes_words()):
            self.nudges += 1
            return False
        await self._close("replied", None, Results())
        return True

    def _owes_words(self) -> bool:
        """Whether an input was never answered and the model was not reminded of it."""
        asked = any(isinstance(cause, InputReady) for cause in self.turn.causes)
        wanted = self.means.release.settings.nudge and self.nudges == 0
        return asked and wanted and not self.speech.count

    async def _close(self, outcome: str, wait: WaitFor | None, results: Results) -> None:
        usage = self.usage or None
        await self.means.store.complete(
            self.turn, outcome=outcome, wait=wait, results=results, usage=usage
        )
