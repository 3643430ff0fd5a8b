"""The calls of a whole answer, judged: each either runs or has an error for the model."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from klbr_trio.models.reply import PYTHON, ToolCall
from klbr_trio.models.stream.arguments import Unrunnable, code_of, shown, tool_called
from klbr_trio.models.surrogates import whole_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klbr_trio.models.stream.calls import GatheredCall

MAX_RAW: Final = 16 * 1024  # of arguments that could not run; enough to see what went wrong
MAX_NAME: Final = 128
_MAX_ID: Final = 512
_ID_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_LENGTH: Final = 9  # the one form that every provider accepts


def made_up_id() -> str:
    """An id for a call that came without one."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))


def judge_calls(
    calls: Sequence[GatheredCall], *, tool_name: str, cut_short: bool, make_id: Callable[[], str]
) -> tuple[ToolCall, ...]:
    """Judges the calls of one answer, in their order.

    Args:
        calls: As they were gathered, ghosts left out.
        tool_name: What the tool is called towards the model.
        cut_short: Whether the token limit ended the answer: then nothing runs, since a server may
            even have closed the cut JSON itself.
        make_id: Gives ids to calls that came without one, or with one that another has.
    """
    judged: list[ToolCall] = []
    for call in calls:
        taken = {other.provider_id for other in judged}
        provider_id = whole_text(call.id) if len(call.id) <= _MAX_ID else ""
        while not provider_id or provider_id in taken:
            provider_id = make_id()
        judged.append(_judge(call, provider_id, tool_name=tool_name, cut_short=cut_short))
    return tuple(judged)


def _judge(call: GatheredCall, provider_id: str, *, tool_name: str, cut_short: bool) -> ToolCall:
    name = whole_text(tool_called(call.names, tool_name))[:MAX_NAME]
    arguments = call.text
    error = _unheard(name, arguments, tool_name=tool_name, cut_short=cut_short)
    if not error:
        try:
            code = code_of(arguments, tool_name)
        except Unrunnable as unrunnable:
            error = str(unrunnable)
        except RecursionError:
            error = (
                "the arguments are not JSON that can be read: nested too deeply; nothing was run"
            )
        else:
            return ToolCall(provider_id, name, code, None, None)
    return ToolCall(provider_id, name, None, whole_text(arguments[:MAX_RAW]), error)


def _unheard(name: str, arguments: str, *, tool_name: str, cut_short: bool) -> str:
    """Why a call doesn't run whatever its arguments are; empty if they decide."""
    if cut_short:
        return (
            "the answer was cut off by the token limit; none of its calls was run. "
            f"Send less at once, e.g. in several calls. The arguments began: {shown(arguments)}."
        )
    if name == PYTHON:
        return ""
    what = f"there is no tool named {name!r}" if name else "the call names no tool"
    return (
        f"{what}; nothing was run. The only tool is `{tool_name}`, which runs Python: "
        'call it with {"code": "…"}.'
    )
