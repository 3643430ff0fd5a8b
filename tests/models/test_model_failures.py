"""What providers answer when they refuse, and what is concluded."""

from __future__ import annotations

import inspect
import json
import ssl
from typing import Final

import attrs
import httpx
import pytest

from klbr_trio.models.failure.classify import OPTIONAL_FIELDS, classify
from klbr_trio.models.failure.failure import Failure, Kind
from klbr_trio.models.failure.said import read_body, read_text
from klbr_trio.models.failure.transport import transport_failure


def error(message: object, **more: object) -> str:
    return json.dumps({"error": {"message": message, **more}})


@attrs.frozen
class Refusal:
    status: int
    body: str
    kind: str
    words: str
    field: str = ""
    elsewhere: bool = False


REFUSALS: Final = [
    # by the status
    Refusal(400, error("temperature must be below 2"), "REFUSED", "temperature must be below 2"),
    Refusal(401, error("bad key"), "REFUSED", "bad key", elsewhere=True),
    Refusal(402, error("pay first"), "REFUSED", "pay first", elsewhere=True),
    Refusal(403, error("not for you"), "REFUSED", "not for you", elsewhere=True),
    Refusal(408, "", "BROKE_OFF", "the provider answered 408"),
    Refusal(409, error("conflict"), "BROKE_OFF", "conflict"),
    Refusal(422, error("temperature: must be below 2"), "REFUSED", "temperature"),
    Refusal(429, error("slow down"), "LIMITED", "slow down"),
    Refusal(429, "too many requests\n", "LIMITED", "too many requests"),
    Refusal(500, error("internal"), "BROKE_OFF", "internal"),
    Refusal(501, error("not implemented"), "REFUSED", "not implemented", elsewhere=True),
    Refusal(502, "<html><head><title>502 Bad Gateway</title></head><h1>x</h1>", "BROKE_OFF", "502 Bad Gateway"),
    Refusal(503, "", "BROKE_OFF", "the provider answered 503"),
    Refusal(503, error("Loading model", code=503), "LOADING", "Loading model"),
    Refusal(503, error("model is still being loaded"), "LOADING", "being loaded"),
    Refusal(529, error("overloaded", type="overloaded_error"), "BROKE_OFF", "overloaded"),
    # two kinds of 429
    Refusal(429, error("no more", code="insufficient_quota"), "REFUSED", "no more", elsewhere=True),
    Refusal(429, error("no more", type="insufficient_quota", code=None), "REFUSED", "no more", elsewhere=True),
    Refusal(429, error("Insufficient balance or no resource package"), "REFUSED", "balance", elsewhere=True),
    Refusal(429, error("you exceeded your quota of 20 requests a minute"), "LIMITED", "quota"),
    Refusal(429, error("Quota exceeded", status="RESOURCE_EXHAUSTED", code=429), "LIMITED", "Quota exceeded"),
    Refusal(429, error("request too large: tokens per minute limit"), "LIMITED", "per minute"),
    Refusal(403, error("out of credits", code="insufficient_credits"), "REFUSED", "credits", elsewhere=True),
    # not there: the path, or the model
    Refusal(404, "404 page not found", "PATH", "404 page not found", elsewhere=True),
    Refusal(404, '{"detail":"Not Found"}', "PATH", "Not Found", elsewhere=True),
    Refusal(404, "", "PATH", "the provider answered 404", elsewhere=True),
    Refusal(405, '{"detail":"Method Not Allowed"}', "PATH", "Method Not Allowed", elsewhere=True),
    Refusal(404, error("model 'x' not found, try pulling it first"), "REFUSED", "model 'x'", elsewhere=True),
    Refusal(404, error("nothing here", code="model_not_found"), "REFUSED", "nothing here", elsewhere=True),
    # too long, under any number and in anybody's words
    Refusal(400, error("x", code="context_length_exceeded"), "CONTEXT", "x"),
    Refusal(400, error("This model's maximum context length is 8192 tokens"), "CONTEXT", "maximum"),
    Refusal(400, error("prompt is too long: 210000 tokens > 200000 maximum"), "CONTEXT", "prompt is too long"),
    Refusal(400, error("the request exceeds the available context size"), "CONTEXT", "context size"),
    Refusal(400, error("The input token count (9000) exceeds the maximum number of tokens allowed (8192)"), "CONTEXT", "token count"),
    Refusal(400, error("Please reduce the length of the messages"), "CONTEXT", "reduce"),
    Refusal(400, error("input length 9000 is larger than the context of 8192"), "CONTEXT", "larger"),
    Refusal(413, "", "CONTEXT", "the provider answered 413"),
    Refusal(413, error("Request too large for model, tokens per minute", code="rate_limit_exceeded"), "CONTEXT", "too large"),
    Refusal(500, error("input is too long for the context window"), "CONTEXT", "too long"),
    Refusal(500, error("Post \"http://x\": context deadline exceeded"), "BROKE_OFF", "deadline"),
    Refusal(500, error("context canceled"), "BROKE_OFF", "context canceled"),
    Refusal(400, error("max_tokens is too large: this model gives at most 4096 completion tokens"), "REFUSED", "max_tokens"),
    Refusal(400, error("Your input exceeds the context window of this model"), "CONTEXT", "exceeds"),
    Refusal(400, error("The decoder prompt (length 9000) is longer than the maximum model length of 8192"), "CONTEXT", "decoder"),
    Refusal(422, error("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096"), "CONTEXT", "inputs"),
    Refusal(400, error("This model's maximum prompt length is 131072 but the request contains 537812 tokens"), "CONTEXT", "prompt length"),
    Refusal(400, error("Invalid request: Your request exceeded model token limit: 262144"), "CONTEXT", "token limit"),
    Refusal(400, error("Prompt exceeds max length", code="1261"), "CONTEXT", "max length"),
    Refusal(400, error("Range of input length should be [1, 30720]"), "CONTEXT", "input length"),
    Refusal(400, error("Prompt length 9000 is greater than max_seq_len 8192"), "CONTEXT", "max_seq_len"),
    Refusal(400, error("too many tokens: the number of tokens in the prompt cannot exceed 4081"), "CONTEXT", "too many"),
    Refusal(400, error("input length and max_tokens exceed context limit: 190000 + 20000 > 200000"), "CONTEXT", "exceed"),
    Refusal(400, error("Trying to keep the first 6000 tokens when context the overflows"), "CONTEXT", "overflows"),
    Refusal(504, error("the request took too long"), "BROKE_OFF", "took too long"),
    Refusal(431, error("Request header fields are too large"), "REFUSED", "header"),
    Refusal(400, error("Your credit balance is too low to use this API"), "REFUSED", "balance", elsewhere=True),
    # the model's name, whatever the status
    Refusal(400, error("x/y is not a valid model ID"), "REFUSED", "valid model", elsewhere=True),
    Refusal(400, error("The model `x` does not exist or you do not have access to it"), "REFUSED", "`x`", elsewhere=True),
    # a server without an option it needs
    Refusal(500, error("tools param requires --jinja flag"), "REFUSED", "--jinja"),
    Refusal(400, error('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'), "REFUSED", "requires"),
    # the model's slip
    Refusal(500, error("Failed to parse input at pos 28: <tool_call>{"), "SLIP", "Failed to parse"),
    Refusal(400, error("bad call", code="tool_use_failed", failed_generation="<x>"), "SLIP", "bad call"),
    Refusal(500, error("could not parse the tool call, it begins with: import sys"), "SLIP", "could not parse"),
    Refusal(500, error("error parsing tool call: raw='{'"), "SLIP", "parsing tool call"),
    Refusal(500, error("unexpected tokens remaining in message header"), "BROKE_OFF", "tokens remaining"),
    # what the request had too much
    Refusal(400, error("Unrecognized request argument supplied: stream_options"), "FIELD", "stream_options", field="stream_options"),
    Refusal(422, json.dumps({"detail": [{"loc": ["body", "messages", 1, "reasoning_content"], "msg": "Extra inputs are not permitted"}]}), "FIELD", "reasoning_content", field="reasoning_content"),
    Refusal(422, json.dumps({"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]}), "FIELD", "body.stream_options: Extra inputs", field="stream_options"),
    Refusal(400, error("Unknown request field: stream_options"), "FIELD", "stream_options", field="stream_options"),
    Refusal(400, error("reasoning_content is not supported in the input"), "FIELD", "reasoning_content", field="reasoning_content"),
    Refusal(400, error("the reasoning_content in the thinking mode has to be passed back"), "REFUSED", "passed back"),
    Refusal(500, error("stream_options unknown"), "BROKE_OFF", "stream_options"),
    # the number in the body is nearer to the cause than a proxy's status
    Refusal(500, error("bad key", code=401), "REFUSED", "bad key", elsewhere=True),
    Refusal(400, error("busy", code="503"), "BROKE_OFF", "busy"),
]  # fmt: skip


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: f"{each.status} {each.words}")
def test_a_refusal_is_classified(refusal: Refusal) -> None:
    failure = classify(
        read_text(refusal.body), status=refusal.status, sent_fields=frozenset(OPTIONAL_FIELDS)
    )
    assert failure.kind.name == refusal.kind, failure
    assert refusal.words in failure.words
    assert failure.field == refusal.field
    assert failure.elsewhere == refusal.elsewhere
    assert "</" not in failure.words
    assert '{"' not in failure.words


def test_a_field_that_was_not_sent_can_not_be_left_out() -> None:
    said = read_text(error("Unknown request field: stream_options"))
    assert classify(said, status=400).kind is Kind.REFUSED


def test_a_model_without_tools_is_said_plainly() -> None:
    for words in (
        "x cannot use tools",
        "x does not support tools",
        "No endpoints found that support tool use",
        '"auto" tool choice is not available: tools are unsupported',
    ):
        failure = classify(read_text(error(words)), status=400)
        assert failure.kind is Kind.REFUSED
        assert "supports tool calls" in failure.advice, words


SAID: Final = {
    '{"error": "plain"}': "plain",
    '{"error": "short", "message": "and long"}': "short: and long",
    '[{"error": {"code": 400, "message": "in a list", "status": "INVALID"}}]': "in a list",
    '{"message": {"detail": [{"loc": ["body", "x"], "msg": "unknown field"}]}}': "body.x: unknown field",
    '{"error": {"message": "{\\"error\\": {\\"message\\": \\"inside\\"}}"}}': "inside",
    '{"error": {"message": "Provider returned error", "metadata": {"raw": "{\\"message\\": \\"the cause\\"}"}}}': "Provider returned error: the cause",
    '{"error": {"message": "E", "metadata": {"raw": "plain cause"}}}': "E: plain cause",
    '{"errors": ["one", "two"]}': "one; two",
    '{"error": {"code": 7}}': "code: 7",
    '"only text"': "only text",
    "\ufeff" + '{"error": "marked"}': "marked",
    'data: {"error": {"message": "framed"}}\n\n': "framed",
    "<!DOCTYPE html><style>b{}</style><p>No&nbsp;entry</p>": "No entry",
    "two\r\nlines\x1b[31m": "two lines [31m",
    "": "",
}  # fmt: skip


@pytest.mark.parametrize("body", SAID)
def test_the_sentence_is_dug_out(body: str) -> None:
    assert read_text(body).words == SAID[body]


def test_words_are_cut_and_carry_no_half_characters() -> None:
    assert len(read_text("x" * 10_000).words) < 1000
    assert read_body({"message": "a\udcafb"}).words == "a\ufffdb"


NEVER_RAISED: Final = (
    httpx.RequestError,
    httpx.TransportError,
    httpx.TimeoutException,
    httpx.NetworkError,
    httpx.ProtocolError,
)
EXCEPTIONS: Final = [
    each
    for _, each in inspect.getmembers(httpx, inspect.isclass)
    if issubclass(each, (httpx.RequestError, httpx.InvalidURL)) and each not in NEVER_RAISED
]


@pytest.mark.parametrize("cls", EXCEPTIONS)
def test_every_exception_of_the_http_library_has_its_place(cls: type[Exception]) -> None:
    failure = transport_failure(cls("Traceback text"))  # type: ignore[arg-type]
    assert failure.words
    assert "Traceback" not in failure.words


def test_an_untrusted_certificate_is_not_tried_again() -> None:
    cause = httpx.ConnectError("x")
    cause.__cause__ = ssl.SSLCertVerificationError(1, "self-signed")
    assert transport_failure(cause).kind is Kind.REFUSED


def test_the_systems_own_words_are_shown() -> None:
    cause = httpx.ConnectError("All connection attempts failed")
    cause.__cause__ = ExceptionGroup("x", [ConnectionRefusedError(111, "x")])
    assert transport_failure(cause).words == "no connection could be made: connection refused"


def test_a_failure_makes_one_sentence() -> None:
    failure = Failure(Kind.BROKE_OFF, "out of order", status=503, advice="Later.")
    assert failure.sentence("http://p/v1") == "out of order (http://p/v1, status 503). Later."
