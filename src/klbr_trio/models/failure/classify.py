"""From what a provider said to a `Failure`: one pure function for every way of saying it.

By the number first (the status, or the number in the body under status 200), then by machine words,
then by the sentence. Three things are stronger than the number, since servers announce them under
any: a prompt that is too long, a call that the server could not parse, an account without credit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from klbr_trio.models.failure.failure import LATER, Failure, Kind
from klbr_trio.models.failure.waiting import asked_to_wait

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klbr_trio.models.failure.said import Said

OPTIONAL_FIELDS: Final = (
    "stream_options",
    "reasoning_content",
    "reasoning_details",
    "extra_content",
    "thinking_blocks",
)

_CONTEXT_CODES: Final = frozenset({
    "context_length_exceeded", "exceed_context_size_error", "context_window_exceeded",
    "model_context_window_exceeded", "string_above_max_length", "context_too_long", "prompt_too_long",
})  # fmt: skip
_CONTEXT: Final = re.compile(
    r"context[\s_-]*(?:length|window|size|limit|len\b)"
    r"|(?:max\w*|exceed\w*|fit\w*|longer|larger|greater|bigger|too (?:long|large|big))\b.{0,60}\bcontext\b"
    r"|\bcontext\b(?! deadline| cancel).{0,60}(?:exceed|overflow|too (?:long|large|small)|is full|limit)"
    r"|(?:prompt|input|request|messages?)\b.{0,40}\btoo (?:long|large|many tokens)"
    r"|too many (?:input |prompt )?tokens|reduce the length"
    r"|(?:prompt|input|token count|tokens)\b.{0,80}exceeds?\b.{0,60}(?:maximum|limit|max\b|allowed)"
    r"|exceed\w*\b.{0,40}(?:maximum|max)\b.{0,30}(?:tokens|length|prompt|input)",
    re.IGNORECASE | re.DOTALL,
)
_CREDIT_CODES: Final = frozenset({
    "insufficient_quota", "insufficient_balance", "insufficient_credits", "billing_hard_limit_reached",
    "billing_not_active", "credit_balance_too_low", "payment_required", "quota_exhausted",
    "insufficient_user_quota", "balance_not_enough", "arrearage", "exceeded_current_quota_error",
})  # fmt: skip
_CREDIT: Final = re.compile(
    r"(?:insufficient|not enough|no|low|negative|out of|exhausted)\b.{0,20}\b(?:balance|credits?|funds)"
    r"|balance is (?:too low|insufficient)|credits? (?:are )?exhausted|billing (?:details|hard limit)",
    re.IGNORECASE,
)
_SLIP_CODES: Final = frozenset({
    "tool_use_failed", "output_parse_failed", "json_validate_failed", "malformed_function_call",
    "tool_call_parse_error", "failed_generation",
})  # fmt: skip
_SLIP: Final = re.compile(
    r"(?:pars\w+|decod\w+|read|extract\w*|malformed|invalid)\b.{0,40}\b(?:tool|function)[ _-]?calls?"
    r"|(?:tool|function)[ _-]?calls?\b.{0,60}\b(?:pars\w+|malformed|could not be read|not be decoded)"
    r"|failed_generation|failed to call a function",
    re.IGNORECASE,
)
_LOADING: Final = re.compile(r"\bload(?:ed|ing)\b|warming up|starting up|cold start", re.IGNORECASE)
_LIMITED_CODES: Final = frozenset({
    "rate_limit_exceeded", "rate_limit_error", "rate_limited", "too_many_requests", "resource_exhausted",
    "rate_limit_reached", "throttling", "throttled", "requests_limit_exceeded", "1302", "1002",
})  # fmt: skip
_LIMITED: Final = re.compile(
    r"rate.?limit|too many requests|throttl|\bper (?:second|minute|hour|day)\b", re.IGNORECASE
)
_REFUSED_CODES: Final = frozenset({
    "invalid_request_error", "invalid_request", "bad_request", "authentication_error", "invalid_api_key",
    "permission_error", "permission_denied", "unauthorized", "forbidden", "unauthenticated",
    "model_not_found", "not_found_error", "not_found", "invalid_argument", "failed_precondition",
    "content_filter", "content_policy_violation", "data_inspection_failed", "unsupported_value",
    "unsupported_parameter", "invalid_model", "model_not_supported", "account_deactivated",
    "1004", "1008", "1026", "1027", "2013", "2049",
})  # fmt: skip
_REFUSED: Final = re.compile(
    r"\bno such\b|not found|does not exist|unknown (?:endpoint|model|path|url)|unexpected endpoint"
    r"|invalid (?:api.?key|token|model|request|argument|param)|unauthori[sz]ed|forbidden"
    r"|not (?:supported|allowed|permitted|installed)|unsupported|incorrect api key|method not",
    re.IGNORECASE,
)
_WRONG_PATH: Final = re.compile(
    r"no such endpoint|unexpected endpoint|unknown (?:endpoint|path|url|route)|(?:endpoint|route|path|page|url) not found"
    r"|cannot post|invalid url|^not found\.?$|no such page|404",
    re.IGNORECASE,
)
_ABOUT_MODEL: Final = re.compile(r"\bmodels?\b|\bdeployment\b", re.IGNORECASE)
_NO_TOOLS: Final = re.compile(
    r"(?:not|n't|no|un)\s?(?:use|support\w*|have|allow\w*|available|endpoints?)?\b.{0,60}(?:\btools?\b|function.?call|tool_choice)"
    r"|(?:\btools?\b|function.?call\w*).{0,60}\b(?:not|unsupported|unavailable)\b",
    re.IGNORECASE,
)
_UNKNOWN_FIELD: Final = re.compile(
    r"unknown|unrecogni[sz]ed|unexpected|extra|not (?:permitted|allowed|supported|valid|accepted)|unsupported"
    r"|forbidden|additional propert|does not support|invalid|can ?not|must not|should not|no longer",
    re.IGNORECASE,
)
_PASSING: Final = re.compile(
    r"overload|capacity|temporar|try again|timed? ?out|timeout|unavailable|internal|busy|server.?error|upstream",
    re.IGNORECASE,
)
_PASSING_CODES: Final = frozenset({
    "server_error", "internal_error", "internal_server_error", "overloaded_error", "overloaded", "api_error",
    "timeout", "unavailable", "unavailable_error", "service_unavailable", "internal", "engine_error",
    "1000", "1001", "1013", "1024", "1033", "1039",
})  # fmt: skip
_TRANSIENT: Final = frozenset({408, 409, 425, 499})
_FINAL_5XX: Final = frozenset({501, 505})
_BAD_FIELD: Final = frozenset({400, 422})


def classify(
    said: Said,
    *,
    status: int,
    headers: Mapping[str, str] | None = None,
    sent_fields: frozenset[str] = frozenset(),
    streaming: bool = False,
) -> Failure:
    """What a refusal or an error in a stream means.

    Args:
        said: What the provider said.
        status: The HTTP status of the answer.
        headers: The answer's headers, names in lower case.
        sent_fields: Those of `OPTIONAL_FIELDS` that the request had.
        streaming: Whether the error came as an event of a stream: without number and known words
            it is taken for a passing one there.
    """
    number = said.number or (status if status >= 300 else None)
    words = said.words or (
        f"the provider answered {status}" if status >= 300 else "an error without a word"
    )
    kind = _kind(said, number, streaming=streaming)
    field = _refused_field(said, number, sent_fields) if kind is Kind.REFUSED else ""
    if field:
        kind = Kind.FIELD
    return Failure(
        kind,
        words,
        status=status if status >= 300 else said.number,
        advice=_advice(kind, said, number),
        retry_after_s=asked_to_wait(headers or {}, said.words, limited=kind is Kind.LIMITED),
        field=field,
        elsewhere=kind is Kind.PATH or (kind is Kind.REFUSED and _elsewhere(said, number)),
    )


def _kind(said: Said, number: int | None, *, streaming: bool) -> Kind:
    strong = _stronger_than_numbers(said, number)
    if strong is not None:
        return strong
    if number is not None:
        return _by_number(said, number)
    return _by_words(said, streaming=streaming)


def _stronger_than_numbers(said: Said, number: int | None) -> Kind | None:
    if said.codes & _CREDIT_CODES or number == 402:
        return Kind.REFUSED
    if said.codes & _CONTEXT_CODES or number == 413:
        return Kind.CONTEXT
    is_limit = said.codes & _LIMITED_CODES or _LIMITED.search(said.words)
    if number not in (401, 403, 404, 429) and not is_limit and _CONTEXT.search(said.words):
        return Kind.CONTEXT
    is_slip = said.codes & _SLIP_CODES or (number not in _BAD_FIELD and _SLIP.search(said.words))
    if is_slip and number not in (401, 403, 404, 429):
        return Kind.SLIP
    return None


def _by_number(said: Said, number: int) -> Kind:
    if number == 429:
        # words about quota alone stay retryable: many quotas are per minute
        return Kind.REFUSED if _CREDIT.search(said.words) else Kind.LIMITED
    if number in (404, 405):
        return Kind.PATH if _is_wrong_path(said) else Kind.REFUSED
    if number in _TRANSIENT:
        return Kind.BROKE_OFF
    if number >= 500 and number not in _FINAL_5XX:
        return Kind.LOADING if _LOADING.search(said.words) else Kind.BROKE_OFF
    return Kind.REFUSED


def _is_wrong_path(said: Said) -> bool:
    """Whether a 404 is about the path and not about the model."""
    if said.codes & {"model_not_found", "invalid_model"}:
        return False
    return bool(_WRONG_PATH.search(said.words)) or not _ABOUT_MODEL.search(said.words)


def _by_words(said: Said, *, streaming: bool) -> Kind:
    if said.codes & _LIMITED_CODES or _LIMITED.search(said.words):
        return Kind.LIMITED
    if said.codes & _REFUSED_CODES:
        return Kind.REFUSED
    if _LOADING.search(said.words):
        return Kind.LOADING
    if _CREDIT.search(said.words):
        return Kind.REFUSED
    if not streaming:
        # a whole body that is neither answer nor stream: the same request gets the same again
        return Kind.PATH if _WRONG_PATH.search(said.words) else _plain_error(said)
    return Kind.REFUSED if _REFUSED.search(said.words) else Kind.BROKE_OFF


def _plain_error(said: Said) -> Kind:
    passes = said.codes & _PASSING_CODES or _PASSING.search(said.words)
    return Kind.BROKE_OFF if passes else Kind.REFUSED


def _refused_field(said: Said, number: int | None, sent_fields: frozenset[str]) -> str:
    if number not in _BAD_FIELD or not _UNKNOWN_FIELD.search(" ".join((said.words, *said.codes))):
        return ""
    return next(
        (name for name in OPTIONAL_FIELDS if name in sent_fields and name in said.words), ""
    )


def _elsewhere(said: Said, number: int | None) -> bool:
    """Whether the refusal is about this provider or model and not about the request."""
    if number in (401, 402, 403, 404, 405, 501) or said.codes & _CREDIT_CODES:
        return True
    return number == 429 or bool(
        said.codes & {"model_not_found", "invalid_model", "invalid_api_key"}
    )


def _advice(kind: Kind, said: Said, number: int | None) -> str:
    if kind is Kind.PATH:
        return "Check the base URL: most providers want it to end in /v1."
    if kind in (Kind.BROKE_OFF, Kind.LOADING, Kind.LIMITED, Kind.SLIP):
        return LATER
    if kind is Kind.CONTEXT:
        return "The prompt must become shorter, or the model's context larger."
    return _advice_on_refusal(said, number)


def _advice_on_refusal(said: Said, number: int | None) -> str:
    if said.codes & _CREDIT_CODES or number in (402, 429):
        return "Fill the account, or use another model."
    if number in (401, 403):
        return "Check the API key and what it may use."
    if number in (404, 405):
        return "Check the model's name; the provider lists its models under /models."
    if _NO_TOOLS.search(said.words):
        return "Use a model that supports tool calls: without them the agent can't act."
    return "The same request would be refused again; check the model's settings."
