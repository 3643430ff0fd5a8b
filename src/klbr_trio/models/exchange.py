"""One attempt: a request sent, its answer read to the end or given up.

httpx carries it, and nothing more: no limit of its pool, no environment, no redirect, no retry, and
of its timeouts only those for connecting and sending. How long a model may be silent is measured
here, by words: keep-alive comments and empty chunks do not move the clock.
"""

from __future__ import annotations

import logging
import ssl
from contextlib import aclosing
from functools import cache
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urljoin

import attrs
import httpx
import trio

from klbr_trio.models.config import ModelConfig
from klbr_trio.models.failure.classify import classify
from klbr_trio.models.failure.failure import LATER, AttemptFailed, Failure, Kind
from klbr_trio.models.failure.said import read_text
from klbr_trio.models.failure.transport import transport_failure
from klbr_trio.models.request.address import public_url
from klbr_trio.models.stream.answer import Answer
from klbr_trio.models.stream.inflate import InflateError, Inflater

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from klbr_trio.models.reply import Lane, Reply

for _name in ("httpx", "httpcore"):
    # they log whole URLs and headers, and a key with them
    logging.getLogger(_name).setLevel(logging.WARNING)

TAIL_S: Final = 2.0  # after a finish reason, for usage and [DONE]
_WRITE_S: Final = 30.0
_REFUSAL_S: Final = 10.0
_MAX_REFUSAL: Final = 64 * 1024


@cache
def _tls() -> ssl.SSLContext:
    """Made once: loading the certificate store costs some twenty milliseconds."""
    return httpx.create_ssl_context(trust_env=False)


@cache
def _no_tls() -> ssl.SSLContext:
    """For plain http, which never asks it anything."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def open_http(config: ModelConfig) -> httpx.AsyncClient:
    """A client for one exchange with this model's provider."""
    is_secure = config.url.startswith("https") or (config.proxy or "").startswith("https")
    headers = {
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": "klbr_trio",
    }
    if config.api_key:
        headers["authorization"] = f"Bearer {config.api_key}"
    headers.update({name.lower(): value for name, value in config.extra_headers.items()})
    return httpx.AsyncClient(
        headers=headers,
        verify=_tls() if is_secure else _no_tls(),
        trust_env=False,
        proxy=config.proxy,
        timeout=httpx.Timeout(connect=config.connect_s, read=None, write=_WRITE_S, pool=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
    )


@attrs.frozen
class Exchange:
    """One request to one URL of one model."""

    config: ModelConfig
    url: str
    body: bytes
    optional_fields: frozenset[str]
    """The optional fields that the request has, in case one is refused."""

    async def reply(self, on_delta: Callable[[Lane, str], None]) -> Reply:
        """Sends the request and reads its answer.

        Args:
            on_delta: Told what may be shown, as it comes.

        Raises:
            AttemptFailed: There was no answer, or none that counts.

        Cancellation: the connection is closed.
        """
        answer = Answer(self.config)
        clock = _Silence(self.config, answer)
        failure: Failure | None = None
        try:
            with clock.scope, trio.move_on_after(self.config.total_s) as total:
                await self._read(answer, clock, on_delta)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            failure = transport_failure(error)
        else:
            if total.cancelled_caught:
                failure = _timed_out(f"no whole answer came within {self.config.total_s:g} s")
            elif clock.scope.cancelled_caught:
                failure = clock.failure()
        for lane, delta in answer.end():
            on_delta(lane, delta)
        if failure is not None and not answer.is_whole:
            raise AttemptFailed(failure)
        return answer.reply()

    async def _read(
        self, answer: Answer, clock: _Silence, on_delta: Callable[[Lane, str], None]
    ) -> None:
        async with open_http(self.config) as http:
            async with http.stream("POST", self.url, content=self.body) as response:
                if not response.is_success:
                    raise AttemptFailed(await self._refusal(response))
                answer.expect(response.headers.get("content-encoding", ""))
                async with aclosing(_raw(response)) as pieces:
                    async for piece in pieces:
                        for lane, delta in answer.feed(piece):
                            on_delta(lane, delta)
                        if answer.is_done:
                            return
                        clock.wind()

    async def _refusal(self, response: httpx.Response) -> Failure:
        """What an answer means whose status is not a success."""
        location = response.headers.get("location")
        if response.is_redirect and location is not None:
            target = public_url(urljoin(self.url, location))
            return Failure(
                Kind.PATH,
                f"the provider redirects to {target}",
                status=response.status_code,
                advice="Redirects are not followed, they could carry the key elsewhere: set the base URL itself.",
                elsewhere=True,
            )
        return classify(
            read_text(await _text(response)),
            status=response.status_code,
            headers=_lower(response.headers),
            sent_fields=self.optional_fields,
        )


@attrs.define(eq=False)
class _Silence:
    """The clock of one answer: runs from word to word."""

    config: ModelConfig
    answer: Answer
    scope: trio.CancelScope = attrs.field(init=False)
    _moves: int = attrs.field(default=0, init=False)
    _is_finished: bool = attrs.field(default=False, init=False)

    @scope.default
    def _from_now(self) -> trio.CancelScope:
        return trio.CancelScope(deadline=trio.current_time() + self.config.first_token_s)

    def wind(self) -> None:
        """After bytes: starts again if the model moved."""
        if self.answer.moves == self._moves or self._is_finished:
            return
        self._moves = self.answer.moves
        self._is_finished = self.answer.is_whole
        patience = TAIL_S if self._is_finished else self.config.stall_s
        self.scope.deadline = trio.current_time() + patience

    def failure(self) -> Failure:
        """That it ran out."""
        if self._moves:
            return _timed_out(f"the model fell silent for {self.config.stall_s:g} s")
        return _timed_out(f"the model was silent for {self.config.first_token_s:g} s")


def _timed_out(what: str) -> Failure:
    return Failure(Kind.SILENT, f"timed out: {what}", advice=LATER)


def _raw(response: httpx.Response) -> AsyncGenerator[bytes]:
    """The body as it comes; typed as the generator it is, so that it can be closed."""
    return cast("AsyncGenerator[bytes]", response.aiter_raw())


async def _text(response: httpx.Response) -> str:
    """The beginning of a refusal's body, as far as it comes in time."""
    held = bytearray()
    try:
        inflater = Inflater(response.headers.get("content-encoding", ""))
        with trio.move_on_after(_REFUSAL_S):
            async with aclosing(_raw(response)) as pieces:
                async for piece in pieces:
                    for inflated in inflater.feed(piece):
                        held += inflated
                    if len(held) > _MAX_REFUSAL:
                        break
    except (httpx.RequestError, InflateError):
        pass  # the status says enough
    return held[:_MAX_REFUSAL].decode("utf-8", "replace")


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
