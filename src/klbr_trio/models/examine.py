"""Is this model usable? The questions that an operator would ask a provider, asked and answered.

Is it reachable, and at which form of the base; does it take the key; does it have the model; does
it stream; does the model call the tool. What depends on something that failed is not asked.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs
import httpx
import trio

from klbr_trio.models.exchange import Exchange, open_http
from klbr_trio.models.failure.classify import OPTIONAL_FIELDS
from klbr_trio.models.failure.failure import AttemptFailed, Failure, Kind
from klbr_trio.models.failure.said import read_text
from klbr_trio.models.failure.transport import transport_failure
from klbr_trio.models.json_text import read_json
from klbr_trio.models.messages import ModelRequest, System, User
from klbr_trio.models.redact import redacted
from klbr_trio.models.request.address import api_bases, endpoint, other_forms, public_url
from klbr_trio.models.request.body import encode, request_fields
from klbr_trio.models.stream.chunk import fields

if TYPE_CHECKING:
    from klbr_trio.models.config import ModelConfig
    from klbr_trio.models.reply import Lane, Reply

Level: TypeAlias = Literal["ok", "warn", "fail"]
Check: TypeAlias = Literal["address", "key", "model", "stream", "tool"]

_LIST_S: Final = 15.0
_SUCCESS: Final = 200
_MAX_LIST: Final = 4 * 1024 * 1024
_NAMED: Final = 5
_COUNT: Final = ModelRequest(
    (User("Count from 1 to 12, in digits, and say nothing else."),), tools=False
)
_CALL: Final = ModelRequest(
    (
        System("You act by calling your tool. Never answer in text."),
        User("Run the Python code print(6 * 7) with your tool."),
    )
)


@attrs.frozen
class Finding:
    """One answer."""

    level: Level
    check: Check
    text: str
    fix: str = ""
    """What to do about it."""


@attrs.frozen
class _Listing:
    """What one form of the base says about its models."""

    base: str
    status: int
    models: tuple[str, ...] | None
    words: str


async def examine(config: ModelConfig) -> tuple[Finding, ...]:
    """Asks the provider all that can be asked of it; sends it two short requests at most.

    Cancellation: nothing stays behind.
    """
    bases = (*api_bases(config.url), *other_forms(config.url))
    try:
        listings = [await _listing(config, base) for base in bases]
    except AttemptFailed as failed:
        return (_failed("address", failed.failure, config, bases[0]),)
    listing = next((each for each in listings if each.models is not None), listings[0])
    findings = [_key(config, listing)]
    if findings[0].level != "fail":
        findings.append(_model(config, listing))
        findings += await _conversation(config, bases, listing)
    return tuple(findings)


async def _listing(config: ModelConfig, base: str) -> _Listing:
    """Asks one form of the base for its models."""
    body = bytearray()
    try:
        async with open_http(config) as http:
            with trio.move_on_after(_LIST_S):
                async with http.stream("GET", endpoint(base, "/models")) as response:
                    async for piece in response.aiter_bytes():
                        body += piece[: _MAX_LIST - len(body)]
                    return _read_listing(base, response.status_code, bytes(body))
    except (httpx.RequestError, httpx.InvalidURL) as error:
        raise AttemptFailed(transport_failure(error)) from error
    return _Listing(base, 0, None, f"no answer within {_LIST_S:g} s")


def _read_listing(base: str, status: int, body: bytes) -> _Listing:
    text = body.decode("utf-8", "replace")
    try:
        data = fields(read_json(text)).get("data")
    except ValueError:
        data = None
    if status == _SUCCESS and isinstance(data, list):
        names = tuple(str(fields(each).get("id")) for each in data if fields(each).get("id"))
        return _Listing(base, status, names, "")
    return _Listing(base, status, None, read_text(text).words)


def _key(config: ModelConfig, listing: _Listing) -> Finding:
    if listing.status in (401, 403):
        has_key = "the key" if config.api_key else "a request without a key"
        words = redacted(listing.words, config)
        return Finding(
            "fail",
            "key",
            f"the provider refuses {has_key} ({listing.status}): {words}",
            "Set an API key that may use this model.",
        )
    if listing.models is None:
        return Finding("warn", "key", "the provider lists no models, so the key is tried below")
    return Finding(
        "ok", "key", "the provider accepts the key" if config.api_key else "no key is needed"
    )


def _model(config: ModelConfig, listing: _Listing) -> Finding:
    if listing.models is None:
        return Finding("warn", "model", "the provider lists no models, so the name is tried below")
    if config.model in listing.models:
        return Finding("ok", "model", f"the provider has {config.model}")
    close = difflib.get_close_matches(config.model, listing.models, _NAMED, 0.3)
    named = ", ".join(close or listing.models[:_NAMED]) or "none at all"
    return Finding(
        "warn",
        "model",
        f"the provider does not list {config.model}; it lists {named}",
        "Check the model's name.",
    )


async def _conversation(
    config: ModelConfig, bases: tuple[str, ...], listing: _Listing
) -> list[Finding]:
    """Two short requests, at the base that answers."""
    ordered = [listing.base, *(base for base in bases if base != listing.base)]
    pieces: list[str] = []
    failure: Failure | None = None
    for base in ordered:
        pieces.clear()
        try:
            reply = await _ask(config, base, _COUNT, pieces)
        except AttemptFailed as failed:
            failure = failure or failed.failure
            if failed.failure.kind is not Kind.PATH:
                return [_failed("stream", failed.failure, config, base)]
        else:
            return [
                _address(config, base, bases),
                _stream(reply, pieces),
                await _tool(config, base),
            ]
    assert failure is not None
    return [_failed("address", failure, config, ordered[0])]


async def _ask(config: ModelConfig, base: str, request: ModelRequest, pieces: list[str]) -> Reply:
    """One attempt, and one more without the field that a provider refuses."""

    def note(_: Lane, delta: str) -> None:
        pieces.append(delta)

    async def send(dropped: frozenset[str]) -> Reply:
        body = encode(request_fields(request, config, dropped=dropped))
        held = frozenset(OPTIONAL_FIELDS) - dropped
        return await Exchange(config, endpoint(base), body, held).reply(note)

    try:
        return await send(frozenset())
    except AttemptFailed as failed:
        if failed.failure.kind is not Kind.FIELD:
            raise
        pieces.clear()
        return await send(frozenset({failed.failure.field}))


def _address(config: ModelConfig, base: str, bases: tuple[str, ...]) -> Finding:
    shown = public_url(base)
    if base in api_bases(config.url):
        return Finding("ok", "address", f"the API is at {shown}")
    return Finding(
        "fail",
        "address",
        f"the API is at {shown}, not at {public_url(bases[0])}",
        f"Set the model's URL to {shown}.",
    )


def _stream(reply: Reply, pieces: list[str]) -> Finding:
    if len(pieces) > 1:
        return Finding("ok", "stream", f"answers are streamed ({len(pieces)} pieces)")
    return Finding(
        "warn",
        "stream",
        f"the answer came in one piece: {(reply.text or reply.reasoning)[:80]!r}",
        "Answers will be shown only when they are whole; look for a proxy that buffers.",
    )


async def _tool(config: ModelConfig, base: str) -> Finding:
    try:
        reply = await _ask(config, base, _CALL, [])
    except AttemptFailed as failed:
        return _failed("tool", failed.failure, config, base)
    if any(call.code is not None for call in reply.calls):
        return Finding("ok", "tool", "the model calls the tool")
    rename = f"Try another tool_name than {config.tool_name!r}, or another model."
    if reply.calls:
        return Finding(
            "fail", "tool", f"its call could not be read: {reply.calls[0].error}", rename
        )
    text = reply.text or reply.reasoning
    return Finding("fail", "tool", f"the model wrote text instead of a call: {text[:80]!r}", rename)


def _failed(check: Check, failure: Failure, config: ModelConfig, base: str) -> Finding:
    text = attrs.evolve(failure, advice="").sentence(public_url(endpoint(base)))
    return Finding("fail", check, redacted(text, config), failure.advice)
