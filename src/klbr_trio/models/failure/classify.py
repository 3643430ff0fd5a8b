"""From what a provider said to a `Failure`: one pure function for every way of saying it.

By the number first (the body's own, else the status), then by machine words, then by the sentence.
Four things are stronger than the number, since servers announce them under any: a prompt that is
too long, a call that the server could not parse, an account without credit, a server that was
started without an option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klbr_trio.models.failure import vocabulary as say
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
    "reasoning",
)
"""What a request may leave out when a provider does not take it; the more special name first."""

_TRANSIENT: Final = frozenset({408, 409, 425, 499})
_FINAL_5XX: Final = frozenset({501, 505})
_ABOUT_THE_REQUEST: Final = frozenset({400, 422})
_ABOUT_THE_PROVIDER: Final = frozenset({401, 402, 403, 404, 405, 501})
_SURE: Final = frozenset({401, 403, 404, 429})  # whatever the words say beside it


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
    is_success = status < 300
    number = said.number or (None if is_success else status)
    kind = _kind(said, number, streaming=streaming)
    field = _refused_field(said, number, sent_fields) if kind is Kind.REFUSED else ""
    default = "an error without a word" if is_success else f"the provider answered {status}"
    return Failure(
        Kind.FIELD if field else kind,
        said.words or default,
        status=said.number if is_success else status,
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
    if _lacks_credit(said, number) or say.SETUP.search(said.words):
        return Kind.REFUSED
    if said.codes & say.CONTEXT_CODES or number == 413:
        return Kind.CONTEXT
    if number in _SURE:
        return None
    is_limit = said.codes & say.LIMITED_CODES or say.LIMITED.search(said.words)
    if say.CONTEXT.search(said.words) and not is_limit:
        return Kind.CONTEXT
    is_slip = number not in _ABOUT_THE_REQUEST and say.SLIP.search(said.words)
    return Kind.SLIP if is_slip or said.codes & say.SLIP_CODES else None


def _lacks_credit(said: Said, number: int | None) -> bool:
    """Words about quota alone are no lack of credit: many quotas are by the minute."""
    if said.codes & say.CREDIT_CODES or number == 402:
        return True
    return number in (None, 400, 403, 429) and bool(say.CREDIT.search(said.words))


def _by_number(said: Said, number: int) -> Kind:
    if number == 429:
        return Kind.LIMITED
    if number in (404, 405):
        return Kind.PATH if _is_about_the_path(said) else Kind.REFUSED
    if number in _TRANSIENT:
        return Kind.BROKE_OFF
    if number >= 500 and number not in _FINAL_5XX:
        return Kind.LOADING if say.LOADING.search(said.words) else Kind.BROKE_OFF
    return Kind.REFUSED


def _is_about_the_path(said: Said) -> bool:
    """Whether a 404 is about the path and not about the model."""
    if said.codes & say.MODEL_CODES:
        return False
    return bool(say.WRONG_PATH.search(said.words)) or not say.ABOUT_MODEL.search(said.words)


def _by_words(said: Said, *, streaming: bool) -> Kind:
    if said.codes & say.LIMITED_CODES or say.LIMITED.search(said.words):
        return Kind.LIMITED
    if said.codes & say.REFUSED_CODES:
        return Kind.REFUSED
    if say.LOADING.search(said.words):
        return Kind.LOADING
    if streaming:
        return Kind.REFUSED if say.REFUSED.search(said.words) else Kind.BROKE_OFF
    # a whole body that is neither answer nor stream: the same request gets the same again
    if say.WRONG_PATH.search(said.words):
        return Kind.PATH
    passes = said.codes & say.PASSING_CODES or say.PASSING.search(said.words)
    return Kind.BROKE_OFF if passes else Kind.REFUSED


def _refused_field(said: Said, number: int | None, sent_fields: frozenset[str]) -> str:
    says = " ".join((said.words, *said.codes))
    if number not in _ABOUT_THE_REQUEST or not say.UNKNOWN_FIELD.search(says):
        return ""
    return next(
        (name for name in OPTIONAL_FIELDS if name in sent_fields and name in said.words), ""
    )


def _elsewhere(said: Said, number: int | None) -> bool:
    """Whether the refusal is about this provider or model and not about the request."""
    if number in _ABOUT_THE_PROVIDER or _lacks_credit(said, number):
        return True
    return bool(said.codes & say.MODEL_CODES or say.NO_MODEL.search(said.words))


def _advice(kind: Kind, said: Said, number: int | None) -> str:
    match kind:
        case Kind.PATH:
            return "Check the base URL: most providers want it to end in /v1."
        case Kind.CONTEXT:
            return "The prompt must become shorter, or the model's context larger."
        case Kind.REFUSED:
            return _advice_on_refusal(said, number)
        case _:
            return LATER


def _advice_on_refusal(said: Said, number: int | None) -> str:
    if _lacks_credit(said, number):
        return "Fill the account, or use another model."
    if number in (401, 403):
        return "Check the API key and what it may use."
    if say.SETUP.search(said.words):
        return "Start the model's server with the option that it names."
    if number == 404 or said.codes & say.MODEL_CODES or say.NO_MODEL.search(said.words):
        return "Check the model's name; the provider lists its models under /models."
    if say.NO_TOOLS.search(said.words):
        return "Use a model that supports tool calls: without them the agent can't act."
    return "The same request would be refused again; check the model's settings."
