"""`LlmClient`: asks a model for one step of a turn, and keeps asking within reason.

Around each attempt (`exchange`): a place at the provider's gate, the decision about a failure
(`failure.policy`), the model that is asked next. What was streamed of an attempt that does not
count is withdrawn before the next one starts.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Final, assert_never

import attrs
import trio
from typing_extensions import override

from klbr_trio.errors import ContextTooLong, ModelError, ModelRefused, ModelUnavailable
from klbr_trio.models.config import ModelConfig, ModelsConfig
from klbr_trio.models.exchange import Exchange
from klbr_trio.models.failure.classify import OPTIONAL_FIELDS
from klbr_trio.models.failure.failure import AttemptFailed, Failure, Kind
from klbr_trio.models.failure.policy import Again, GiveUp, OtherBase, Tried, Without, decide
from klbr_trio.models.gate import Gate
from klbr_trio.models.messages import ModelRequest
from klbr_trio.models.redact import redacted
from klbr_trio.models.reply import Lane, Reply
from klbr_trio.models.request.address import api_bases, endpoint, public_url
from klbr_trio.models.request.body import encode, request_fields

logger = logging.getLogger("klbr_trio.models")

_ERRORS: Final[dict[Kind, type[ModelError]]] = {
    Kind.CONTEXT: ContextTooLong,
    Kind.REFUSED: ModelRefused,
    Kind.PATH: ModelRefused,
    Kind.FIELD: ModelRefused,
}
_RANDOM: Final = secrets.SystemRandom()


@attrs.define(eq=False)
class _Provider:
    """What is known of one model's provider by now."""

    bases: tuple[str, ...]
    """The forms of its base that are left, the one to use first."""

    dropped: frozenset[str] = frozenset()


class LlmClient:
    """The models of one service; a plain value, made anywhere, nothing to close.

    It may be used in one Trio run after another, not in two at once.
    """

    def __init__(self, models: ModelsConfig) -> None:
        self.models = models
        self._providers: dict[tuple[str, str], _Provider] = {}
        self._gates: trio.lowlevel.RunVar[dict[str, Gate]] = trio.lowlevel.RunVar("gates")

    @override
    def __repr__(self) -> str:
        """The model's name; never a key."""
        return f"<LlmClient {self.name} at {public_url(self.models.llm.url)}>"

    @property
    def name(self) -> str:
        """The default model's name."""
        return self.models.llm.model

    async def complete(
        self,
        request: ModelRequest,
        *,
        on_delta: Callable[[Lane, str], None],
        on_discard: Callable[[], None],
    ) -> Reply:
        """One step of a turn: the model's whole reply.

        Args:
            request: What is asked.
            on_delta: Told each piece of text or reasoning as it comes.
            on_discard: Told that what was streamed since the last reply does not count.

        Raises:
            ModelUnavailable: No model that may be asked could answer; it may work later.
            ModelRefused: The provider refuses this for good.
            ContextTooLong: The prompt is too long for the model.
            ConfigError: `request.model` names no model.

        Cancellation: the connection is closed at once, and the place at the gate is free.
        """
        chain = self.models.chain(request.model)
        for position, config in enumerate(chain, 1):
            series = _Series(self, config, request, on_delta=on_delta, on_discard=on_discard)
            try:
                return await series.run()
            except AttemptFailed as failed:
                failure = failed.failure
                error = _ERRORS.get(failure.kind, ModelUnavailable)
                message = redacted(failure.sentence(public_url(series.url)), config)
                may_pass = error is ModelUnavailable or failure.elsewhere
                if position == len(chain) or not may_pass:
                    raise error(f"{config.model}: {message}") from failed
                logger.warning(
                    "%s is unavailable, asking %s: %s",
                    config.model,
                    chain[position].model,
                    message,
                    extra={"action": "model_fallback"},
                )
        raise AssertionError("a chain has at least one model")

    def gate(self, config: ModelConfig) -> Gate:
        """The gate of that model's provider, in this Trio run."""
        gates = self._gates.get({})
        self._gates.set(gates)
        return gates.setdefault(api_bases(config.url)[-1], Gate(config.max_requests))

    def provider(self, config: ModelConfig) -> _Provider:
        """What is known of that model's provider."""
        key = (config.url, config.model)
        return self._providers.setdefault(key, _Provider(api_bases(config.url)))


@attrs.define(eq=False)
class _Series:
    """The attempts of one request with one model."""

    client: LlmClient
    config: ModelConfig
    request: ModelRequest
    on_delta: Callable[[Lane, str], None] = attrs.field(kw_only=True)
    on_discard: Callable[[], None] = attrs.field(kw_only=True)
    url: str = attrs.field(default="", init=False)
    _streamed: bool = attrs.field(default=False, init=False)
    _tried: Tried = attrs.field(factory=Tried, init=False)

    async def run(self) -> Reply:
        """A reply, or `AttemptFailed` with the failure after which no more was tried."""
        started = trio.current_time()
        while True:
            try:
                return await self._attempt()
            except AttemptFailed as failed:
                if self._streamed and not failed.failure.keep_text:
                    self.on_discard()
                self._streamed = False
                await self._after(failed, elapsed_s=trio.current_time() - started)

    async def _attempt(self) -> Reply:
        provider = self.client.provider(self.config)
        self.url = endpoint(provider.bases[0])
        fields = request_fields(self.request, self.config, dropped=provider.dropped)
        body = encode(fields)
        held = frozenset(name for name in OPTIONAL_FIELDS if f'"{name}"'.encode() in body)
        async with self.client.gate(self.config).place(self.request.session_id):
            reply = await Exchange(self.config, self.url, body, held).reply(self._show)
        provider.bases = provider.bases[:1]  # this form is right
        return reply

    def _show(self, lane: Lane, delta: str) -> None:
        self._streamed = True
        self.on_delta(lane, delta)

    async def _after(self, failed: AttemptFailed, *, elapsed_s: float) -> None:
        """Does what is decided about a failure; raises it again if that is to give up."""
        failure = failed.failure
        provider = self.client.provider(self.config)
        self._tried = attrs.evolve(
            self._tried,
            failures=(*self._tried.failures, failure.kind),
            elapsed_s=elapsed_s,
            other_base=len(provider.bases) > 1,
        )
        decision = decide(
            failure,
            self._tried,
            attempts=self.config.attempts,
            patience_s=self.config.patience_s,
            jitter=_RANDOM.random(),
        )
        match decision:
            case GiveUp(why):
                advice = f"{failure.advice} ({why})" if why else failure.advice
                raise AttemptFailed(attrs.evolve(failure, advice=advice)) from failed
            case Again(wait_s, everyone):
                self._log(failure, f"again in {wait_s:.1f} s")
                self._tried = attrs.evolve(self._tried, waited_s=self._tried.waited_s + wait_s)
                if everyone:
                    self.client.gate(self.config).pause(wait_s)
                await trio.sleep(wait_s)
            case Without(field):
                self._log(failure, f"again without {field}")
                self._tried = attrs.evolve(self._tried, dropped=self._tried.dropped | {field})
                provider.dropped |= {field}
            case OtherBase():
                self._log(failure, "again at the other form of the base URL")
                provider.bases = provider.bases[1:]
            case _:
                assert_never(decision)

    def _log(self, failure: Failure, then: str) -> None:
        words = redacted(failure.sentence(public_url(self.url)), self.config)
        logger.info("%s: %s %s", self.config.model, words, then, extra={"action": "model_retry"})
