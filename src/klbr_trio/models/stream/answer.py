"""The pipeline: the bytes of one answer to one reply, or to one typed failure.

bytes → `inflate` → `sse` (events) → `chunk` (one shape) → `content`, `think`, `calls` → here.

`Answer` does no I/O and knows no clock: it is fed bytes as they come, byte by byte or all at once,
says what may be shown live, and at the end gives the reply. An answer is whole after `[DONE]` or a
finish reason; without either it was cut. An error anywhere beats everything else.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from klbr_trio.models.config import ModelConfig
from klbr_trio.models.failure.classify import classify
from klbr_trio.models.failure.failure import LATER, AttemptFailed, Failure, Kind
from klbr_trio.models.failure.said import Said, plain_words, read_body, read_text
from klbr_trio.models.reply import Lane, Reply
from klbr_trio.models.stream.calls import CallGatherer, GatheredCall
from klbr_trio.models.stream.chunk import (
    Broken,
    Chunk,
    Done,
    Fields,
    Garbage,
    call_fragments,
    read_event,
)
from klbr_trio.models.stream.content import Words, read_words
from klbr_trio.models.stream.finish import Ending, ending_of
from klbr_trio.models.stream.inflate import InflateError, Inflater, TooMuch
from klbr_trio.models.stream.judge import judge_calls, made_up_id
from klbr_trio.models.stream.leaks import leaked_tokens, no_call_hint
from klbr_trio.models.stream.opaque import OpaqueGatherer, opaque_of
from klbr_trio.models.stream.sse import Event, EventDecoder, EventTooLong
from klbr_trio.models.stream.think import ThinkSplitter
from klbr_trio.models.stream.usage import read_usage
from klbr_trio.models.surrogates import TextJoin

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("klbr_trio.models")

Delta: TypeAlias = tuple[Lane, str]
MAX_ANSWER: Final = 64 * 1024 * 1024  # bytes of events, about 250,000 of them
_MAX_STRAY: Final = 64 * 1024


@attrs.define(eq=False)
class _Lane:
    """The text of one lane, joined from its pieces."""

    name: Lane
    text: str = attrs.field(default="", init=False)
    _pieces: list[str] = attrs.field(factory=list, init=False)
    _join: TextJoin = attrs.field(factory=TextJoin, init=False)

    def feed(self, piece: str, shown: list[Delta]) -> None:
        """Takes a piece; adds to `shown` what may be shown after it."""
        if piece:
            self._keep(self._join.feed(piece), shown)

    def end(self, shown: list[Delta]) -> None:
        """Nothing more comes: what was held back is added, and the text is whole."""
        self._keep(self._join.end(), shown)
        self.text = "".join(self._pieces)

    def _keep(self, piece: str, shown: list[Delta]) -> None:
        if piece:
            self._pieces.append(piece)
            shown.append((self.name, piece))


@attrs.define(eq=False)
class Answer:
    """One answer as it comes."""

    config: ModelConfig
    moves: int = attrs.field(default=0, init=False)
    """How often the model moved; keep-alives and heartbeats don't count."""

    is_done: bool = attrs.field(default=False, init=False)
    """Whether `[DONE]` came: nothing after it counts, nor what becomes of the connection."""

    finish: str | None = attrs.field(default=None, init=False)
    """The first finish reason."""

    _inflater: Inflater = attrs.field(factory=lambda: Inflater(""), init=False)
    _decoder: EventDecoder = attrs.field(factory=EventDecoder, init=False)
    _visible: _Lane = attrs.field(factory=lambda: _Lane("scratchpad"), init=False)
    _thought: _Lane = attrs.field(factory=lambda: _Lane("reasoning"), init=False)
    _think: ThinkSplitter = attrs.field(factory=ThinkSplitter, init=False)
    _calls: CallGatherer = attrs.field(factory=CallGatherer, init=False)
    _opaque: OpaqueGatherer = attrs.field(factory=OpaqueGatherer, init=False)
    _texts: list[str] = attrs.field(factory=list, init=False)
    _reasonings: list[str] = attrs.field(factory=list, init=False)
    _reasoning_field: str | None = attrs.field(default=None, init=False)
    _usage: Fields | None = attrs.field(default=None, init=False)
    _chunks: int = attrs.field(default=0, init=False)
    _size: int = attrs.field(default=0, init=False)
    _is_whole_body: bool = attrs.field(default=False, init=False)
    _stray: list[str] = attrs.field(factory=list, init=False)
    _stray_size: int = attrs.field(default=0, init=False)
    _shown: list[Delta] = attrs.field(factory=list, init=False)

    @property
    def is_whole(self) -> bool:
        """Whether the answer ended as answers do."""
        return self.is_done or self.finish is not None or self._is_whole_body

    def expect(self, encoding: str) -> None:
        """Says how the body is encoded, before its first byte.

        Raises:
            AttemptFailed: In a way that can't be read.
        """
        try:
            self._inflater = Inflater(encoding)
        except InflateError as error:
            raise AttemptFailed(Failure(Kind.REFUSED, str(error))) from error

    def feed(self, data: bytes) -> list[Delta]:
        """Takes bytes of the body; gives what may be shown after them.

        Raises:
            AttemptFailed: An error came, or something that can't be read.
        """
        try:
            for piece in self._inflater.feed(data):
                self._count(piece)
                for event in self._decoder.feed(piece):
                    self._event(event)
        except RecursionError as error:
            words = "the answer is nested too deeply to be read"
            raise AttemptFailed(Failure(Kind.BROKE_OFF, words)) from error
        except (EventTooLong, TooMuch) as error:
            raise AttemptFailed(
                Failure(Kind.REFUSED, f"the answer is too long: {error}")
            ) from error
        except InflateError as error:
            raise AttemptFailed(Failure(Kind.BROKE_OFF, str(error))) from error
        return self._take_shown()

    def end(self) -> list[Delta]:
        """The body has ended: takes what was pending; gives the last that may be shown.

        Raises:
            AttemptFailed: An error came, or something that can't be read.
        """
        for event in self._decoder.end():
            self._event(event)
        if not self._chunks and not self.is_done and len(self._stray) > 1:
            # a JSON body with blank lines in it
            self._event(Event(("\n".join(self._stray),), framed=False, ended=False))
        text, reasoning = self._think.end()
        self._visible.feed(text, self._shown)
        self._visible.end(self._shown)
        self._thought.feed(reasoning, self._shown)
        self._thought.end(self._shown)
        return self._take_shown()

    def reply(self, make_id: Callable[[], str] = made_up_id) -> Reply:
        """The reply, after `end`.

        Raises:
            AttemptFailed: The answer was cut, stopped, empty, or broke its promise.
        """
        ending = ending_of(self.finish)
        self._refuse_what_does_not_count(ending)
        config, gathered = self.config, self._real_calls()
        cut_short = ending is Ending.LENGTH
        calls = judge_calls(
            gathered, tool_name=config.tool_name, cut_short=cut_short, make_id=make_id
        )
        text, reasoning = self._visible.text, self._thought.text
        hint = None
        if not calls:
            hint = no_call_hint(text, reasoning, cut_short=cut_short, tool_name=config.tool_name)
            self._warn_of_leaks(text + reasoning)
        return Reply(
            model=config.model,
            text=text,
            reasoning=reasoning,
            calls=calls,
            finish=self.finish,
            usage=read_usage(
                self._usage, price_input=config.price_input, price_output=config.price_output
            ),
            opaque=opaque_of(
                model=config.model,
                message=self._opaque.fields,
                reasoning=(self._reasoning_field, reasoning),
                gathered=gathered,
                judged=calls,
            ),
            hint=hint,
        )

    def _count(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_ANSWER:
            raise EventTooLong(f"it has more than {MAX_ANSWER // 2**20} MiB")

    def _take_shown(self) -> list[Delta]:
        shown, self._shown = self._shown, []
        return shown

    def _event(self, event: Event) -> None:
        if self.is_done:
            return
        for item in read_event(event):
            match item:
                case Done():
                    self.is_done = True
                    return
                case Chunk():
                    self._chunk(item)
                    self._is_whole_body |= bool(item.message) and not event.framed
                case Broken():
                    said = read_body(item.body)
                    is_stream = event.framed or self._chunks > 0
                    raise AttemptFailed(classify(said, status=200, streaming=is_stream))
                case Garbage():
                    self._garbage(item)

    def _garbage(self, item: Garbage) -> None:
        """What can't be read fails the attempt, unless the body ended in it or nothing framed it."""
        if not item.framed:
            self._stray_size += len(item.text)
            if self._stray_size <= _MAX_STRAY:
                self._stray.append(item.text)
        elif item.ended and self.finish is None:
            raise AttemptFailed(
                Failure(
                    Kind.BROKE_OFF,
                    f"the provider sent an event that is not JSON: {plain_words(item.text[:200])!r}",
                )
            )

    def _chunk(self, chunk: Chunk) -> None:
        self._chunks += 1
        self.moves += chunk.says_something
        self.finish = self.finish or chunk.finish
        self._usage = chunk.usage or self._usage
        if chunk.delta:
            self._say(read_words(chunk.delta))
            fragments = call_fragments(chunk.delta)
            if fragments:
                self._calls.feed(fragments)
            self._opaque.feed(chunk.delta)
        if chunk.message:
            self._say(self._unsaid(read_words(chunk.message)))
            self._calls.feed_message(call_fragments(chunk.message))
            self._opaque.feed(chunk.message)

    def _unsaid(self, whole: Words) -> Words:
        """What of a whole message the deltas did not bring."""
        return Words(
            _rest(whole.text, "".join(self._texts)),
            _rest(whole.reasoning, "".join(self._reasonings)),
            whole.field,
        )

    def _say(self, words: Words) -> None:
        self._reasoning_field = self._reasoning_field or words.field
        if words.reasoning:
            self._reasonings.append(words.reasoning)
            self._thought.feed(words.reasoning, self._shown)
        if words.text:
            self._texts.append(words.text)
            text, reasoning = self._think.feed(words.text)
            self._thought.feed(reasoning, self._shown)
            self._visible.feed(text, self._shown)

    def _real_calls(self) -> list[GatheredCall]:
        return [call for call in self._calls.calls if not call.is_ghost]

    def _refuse_what_does_not_count(self, ending: Ending) -> None:
        if not self.is_whole:
            raise AttemptFailed(self._cut())
        if ending is Ending.FILTERED:
            raise AttemptFailed(self._filtered())
        if ending is Ending.BROKE_OFF:
            words = f"the provider broke the answer off with finish reason {self.finish}"
            raise AttemptFailed(Failure(Kind.BROKE_OFF, words, advice=LATER))
        if self._real_calls():
            return
        if ending is Ending.CALLS:
            words = f"the answer ended with finish reason {self.finish}, but without a call"
            raise AttemptFailed(Failure(Kind.SLIP, words, advice=LATER))
        is_strange = self.finish is not None and ending is Ending.UNKNOWN
        has_thought = bool(self._thought.text.strip()) and not is_strange
        if not (self._visible.text.strip() or has_thought):
            words = f"the answer is empty (finish reason: {self.finish or 'none'})"
            raise AttemptFailed(Failure(Kind.SLIP, words, advice=LATER))

    def _cut(self) -> Failure:
        if self._chunks:
            words = "the answer was cut: it ended without a finish reason or [DONE]"
            return Failure(Kind.BROKE_OFF, words, advice=LATER)
        stray = "\n".join(self._stray).strip()
        if stray.startswith(("{", "[")):
            words = "the answer was cut: its JSON has no end"
            return Failure(Kind.BROKE_OFF, words, advice=LATER)
        if stray:
            said = read_text(stray)
            words = f"the provider's answer is not a chat completion: {said.words}"
            return classify(Said(words, is_json=said.is_json), status=200)
        words = "the answer ended without a single whole event"
        return Failure(Kind.BROKE_OFF, words, advice=LATER)

    def _filtered(self) -> Failure:
        said = f" after: {plain_words(self._visible.text)!r}" if self._visible.text else ""
        return Failure(
            Kind.REFUSED,
            f"the provider's content filter stopped the answer ({self.finish}){said}",
            advice="The same request would be stopped again.",
            keep_text=True,
        )

    def _warn_of_leaks(self, text: str) -> None:
        if leaked_tokens(text):
            logger.warning(
                "%s wrote its own call tokens as text: its server's parser may not know the format",
                self.config.model,
                extra={"action": "call_as_text"},
            )


def _rest(whole: str, streamed: str) -> str:
    """What `whole` has beyond what was streamed; nothing if it tells another story."""
    return whole[len(streamed) :] if whole.startswith(streamed) else ""
