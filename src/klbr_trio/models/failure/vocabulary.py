"""How providers put it: their machine words, and what their sentences have in common.

Machine words are compared whole and in lower case, sentences are searched. Every pattern has its
examples in the tests; one that is added without an example there will be lost again.
"""

from __future__ import annotations

import re
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _pattern(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join(parts), re.IGNORECASE | re.DOTALL)


CONTEXT_CODES: Final = _words(
    "context_length_exceeded exceed_context_size_error context_window_exceeded prompt_too_long"
    " model_context_window_exceeded string_above_max_length context_too_long 1261"
)
CONTEXT: Final = _pattern(
    r"context[\s_-]*(?:length|window|size|limit|len\b)",
    r"(?:max\w*|exceed\w*|fit\w*|longer|larger|greater|bigger|too (?:long|large|big))\b.{0,60}\bcontext\b",
    # a Go program's "context deadline exceeded" is about time
    r"\bcontext\b(?! deadline| cancel).{0,60}(?:exceed|overflow|too (?:long|large|small)|is full|limit)",
    r"(?:prompt|input|request|messages?)\b(?!.{0,40}\b(?:header|ur[il]|took)\b).{0,40}\btoo (?:long|large|many tokens)",
    r"too many (?:input |prompt )?tokens|reduce the length|range of input length",
    r"(?:prompt|input|token count|tokens)\b.{0,80}exceeds?\b.{0,60}(?:maximum|limit|max\b|allowed)",
    r"exceed\w*\b.{0,40}(?:maximum|max)\b.{0,30}(?:tokens|length|prompt|input)",
    r"exceed\w*\b.{0,30}token limit|maximum (?:model|prompt|input) length|\bmax_(?:seq|model)_len",
    r"`?inputs`? tokens.{0,40}must be <=",
)

CREDIT_CODES: Final = _words(
    "insufficient_quota insufficient_balance insufficient_credits billing_hard_limit_reached"
    " billing_not_active credit_balance_too_low payment_required quota_exhausted arrearage"
    " insufficient_user_quota balance_not_enough exceeded_current_quota_error 1008"
)
CREDIT: Final = _pattern(
    r"(?:insufficient|not enough|no|low|negative|out of|exhausted)\b.{0,20}\b(?:balance|credits?|funds)",
    r"(?:balance|credits?) (?:is|are) (?:too low|insufficient|exhausted|used up|negative)",
    r"billing (?:details|hard limit)",
)

SLIP_CODES: Final = _words(
    "tool_use_failed output_parse_failed json_validate_failed malformed_function_call"
    " tool_call_parse_error failed_generation"
)
SLIP: Final = _pattern(
    r"(?:pars\w+|decod\w+|read|extract\w*|malformed|invalid)\b.{0,40}\b(?:tool|function)[ _-]?calls?",
    r"(?:tool|function)[ _-]?calls?\b.{0,60}\b(?:pars\w+|malformed|could not be read|not be decoded)",
    r"failed_generation|failed to call a function",
)

LIMITED_CODES: Final = _words(
    "rate_limit_exceeded rate_limit_error rate_limited too_many_requests resource_exhausted"
    " rate_limit_reached throttling throttled requests_limit_exceeded 1302 1002"
)
LIMITED: Final = _pattern(
    r"rate.?limit|too many requests|throttl|\bper (?:second|minute|hour|day)\b"
)

LOADING: Final = _pattern(r"\bload(?:ed|ing)\b|warming up|starting up|cold start")

PASSING_CODES: Final = _words(
    "server_error internal_error internal_server_error overloaded_error overloaded api_error timeout"
    " unavailable unavailable_error service_unavailable internal engine_error"
    " 1000 1001 1013 1024 1033 1039"
)
PASSING: Final = _pattern(
    r"overload|capacity|temporar|try again|timed? ?out|timeout|unavailable|internal|busy",
    r"server.?error|upstream",
)

REFUSED_CODES: Final = _words(
    "invalid_request_error invalid_request bad_request authentication_error invalid_api_key"
    " permission_error permission_denied unauthorized forbidden unauthenticated model_not_found"
    " not_found_error not_found invalid_argument failed_precondition content_filter"
    " content_policy_violation data_inspection_failed unsupported_value unsupported_parameter"
    " invalid_model model_not_supported account_deactivated 1004 1026 1027 2013 2049"
)
REFUSED: Final = _pattern(
    r"\bno such\b|not found|does not exist|unknown (?:endpoint|model|path|url)|unexpected endpoint",
    r"invalid (?:api.?key|token|model|request|argument|param)|unauthori[sz]ed|forbidden",
    r"not (?:supported|allowed|permitted|installed)|unsupported|incorrect api key|method not",
)

WRONG_PATH: Final = _pattern(
    r"no such (?:endpoint|page|route)|unexpected endpoint|unknown (?:endpoint|path|url|route)",
    r"(?:endpoint|route|path|page|url) not found|cannot post|invalid url|^not found\.?$|\b404\b",
)
ABOUT_MODEL: Final = _pattern(r"\bmodels?\b|\bdeployment\b")
MODEL_CODES: Final = _words("model_not_found invalid_model model_not_supported invalid_api_key")
NO_MODEL: Final = _pattern(
    r"\bmodels?\b.{0,60}(?:not found|does not exist|not exist|not installed|no access|not available)",
    r"(?:no such|unknown|invalid|not a valid) model",
)

SETUP: Final = _pattern(
    r"requires? (?:the )?--\w|--jinja|--enable-auto-tool-choice|--tool-call-parser"
)
NO_TOOLS: Final = _pattern(
    r"(?:not|n't|no|un)\s?(?:use|support\w*|have|allow\w*|available|endpoints?)?\b.{0,60}(?:\btools?\b|function.?call|tool_choice)",
    r"(?:\btools?\b|function.?call\w*).{0,60}\b(?:not|unsupported|unavailable)\b",
)
UNKNOWN_FIELD: Final = _pattern(
    r"unknown|unrecogni[sz]ed|unexpected|extra|unsupported|forbidden|additional propert|does not support",
    r"not (?:permitted|allowed|supported|valid|accepted)|invalid|can ?not|must not|should not|no longer",
)
