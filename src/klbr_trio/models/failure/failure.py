"""A failed attempt, as a value: what happened, in whose words, and what kind of thing it is.

The kind alone decides what is done about it (`failure.policy`):

| kind | what it is | what follows |
| --- | --- | --- |
| UNREACHABLE | no connection | again twice, at once |
| LIMITED | too many requests | again, after the time the provider names; others wait too |
| LOADING | the model is being loaded | again, patiently |
| BROKE_OFF | overload, a proxy, a cut or silent connection | again |
| SILENT | no word in the time that was given | again once |
| SLIP | the model or its server made nothing of the answer | again, a few times |
| FIELD | an optional field of the request is refused | again without it |
| PATH | nothing is at that path | again at the other form of the base |
| CONTEXT | the prompt is too long | the caller makes a smaller one |
| REFUSED | key, credit, model name, content, request | no more |
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import attrs

LATER: Final = "It may work later."


class Kind(Enum):
    """What kind of thing went wrong; see the table above."""

    UNREACHABLE = auto()
    LIMITED = auto()
    LOADING = auto()
    BROKE_OFF = auto()
    SILENT = auto()
    SLIP = auto()
    FIELD = auto()
    PATH = auto()
    CONTEXT = auto()
    REFUSED = auto()


@attrs.frozen
class Failure:
    """Why one attempt failed."""

    kind: Kind
    words: str
    """The provider's own, where it said any."""

    status: int | None = None
    advice: str = ""
    """What the operator can do."""

    retry_after_s: float | None = None
    field: str = ""
    """The request's field that was refused, for FIELD."""

    elsewhere: bool = False
    """Whether another model may well answer the same request."""

    keep_text: bool = False
    """Whether what was streamed was meant, although the answer failed."""

    def sentence(self, url: str) -> str:
        """One sentence for the log and the operator."""
        status = f", status {self.status}" if self.status is not None else ""
        advice = f" {self.advice}" if self.advice else ""
        return f"{self.words} ({url}{status}).{advice}"


class AttemptFailed(Exception):
    """Carries a `Failure` from where it was noticed to where it is decided upon."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.words)
        self.failure = failure
