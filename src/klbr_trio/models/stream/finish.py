"""What a finish reason means. It is not to be trusted for more than this.

That one came says that the answer ended; which one it is tells only of answers that were cut short,
stopped or broken off. Calls run because they are there, whatever the reason says.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class Ending(Enum):
    """How an answer ended."""

    ORDINARY = auto()
    CALLS = auto()  # promises that a call came
    LENGTH = auto()  # the token limit: nothing of it may run
    FILTERED = auto()  # stopped on purpose: it would be stopped again
    BROKE_OFF = auto()  # the provider gave up
    UNKNOWN = auto()  # none, or one that nobody has met: complete if something visible came


_NAMES: Final[dict[Ending, str]] = {
    Ending.ORDINARY: "stop end_turn eos eos_token stop_sequence end complete completed",
    Ending.CALLS: "tool_calls function_call tool_call tool_use function_calls",
    Ending.LENGTH: "length max_tokens model_length max_output_tokens max_length",
    Ending.FILTERED: (
        "content_filter content-filter contentfilter content_filtered safety recitation blocklist"
        " prohibited_content spii sensitive image_safety guardrail_intervened refusal_filter"
    ),
    Ending.BROKE_OFF: (
        "insufficient_system_resource error network_error abort aborted cancelled canceled timeout"
        " malformed_function_call unexpected_tool_call server_error overloaded engine_error"
    ),
}
_ENDINGS: Final = {name: ending for ending, names in _NAMES.items() for name in names.split()}


def ending_of(finish: str | None) -> Ending:
    """The meaning of a finish reason, in whatever case it is written."""
    return _ENDINGS.get((finish or "").lower(), Ending.UNKNOWN)
