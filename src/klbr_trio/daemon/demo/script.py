"""The script: from what is owed to a thought, a note and one cell that answers it all."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from klbr_trio.daemon.demo.conversation import Asked, Conversation, Owed, Woken

_COUNT: Final = re.compile(r"count to (?P<n>\d{1,3})\b(?P<slowly>.*slowly)?")
_WAKE: Final = re.compile(
    r"wake me in (?P<n>\d{1,6}(?:\.\d{1,3})?) ?(?P<unit>s|m|h)\w*"
    r"(?: (?:to|for|and|so that) (?P<why>[^.!?\n]*))?"
)
_SUM: Final = re.compile(
    r"(?:what is|what's|compute|calculate) (?P<sum>\(*\d[\d\s.()]*(?:[-+*/][\d\s.()]+)+)"
)
_REMEMBER: Final = re.compile(r"remember (?:that )?(?P<what>[\w ]{1,40}?) is (?P<value>[^.!?\n]+)")
_RECALL: Final = re.compile(r"(?:what is|what's|recall) (?P<what>[a-z_][\w ]{0,39})")
_HELLO: Final = re.compile(r"\b(?:hello|hi|hey|good (?:morning|day|evening))\b")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_QUICK_S: Final = 0.05
_SLOW_S: Final = 0.2

GREETING: Final = (
    "Hello! I am klbr's demonstration: a script, not a language model. Ask me to count to 5, "
    "what is 6*7, to remember that the door is blue, or to wake me in 5 seconds."
)
UNKNOWN: Final = (
    "I am only a script and did not understand that. I know: hello, count to 5 (slowly), "
    "what is 6*7, remember that X is Y, what is X, wake me in 5 seconds to stretch."
)


@attrs.frozen
class Answer:
    """What the provider streams: reasoning, then text, then a call of the tool.

    Attributes:
        code: None ends the turn without a call.
    """

    reasoning: str
    text: str
    code: str | None = None


@attrs.frozen
class _Part:
    """The answer to one thing: what is thought of it, and the lines that do it.

    Attributes:
        wait: The line that ends the turn, if it is to be a sleep.
    """

    thought: str
    lines: tuple[str, ...]
    wait: str | None = None


def answer(conversation: Conversation) -> Answer:
    """The next reply in this conversation."""
    if not conversation.owed:
        return Answer("Nobody waits for anything.", "Nothing is owed; I end the turn.")
    if conversation.errors:
        return _after_error(conversation)
    parts = [_part(owed) for owed in conversation.owed]
    prelude = ["from klbr import local, runtime"]
    note = "I answer in one cell."
    if conversation.was_interrupted:
        note = "I was broken off in the middle of this; nothing was said yet, so I start it again."
    waits = [part.wait for part in parts if part.wait is not None]
    end = waits[-1] if waits else "await runtime.done()"
    lines = [*prelude, *(line for part in parts for line in part.lines), end]
    return Answer(" ".join(part.thought for part in parts), note, "\n".join(lines))


def _after_error(conversation: Conversation) -> Answer:
    if len(conversation.errors) > 1:
        return Answer("It fails again and again.", "I can't even say that it failed; I give up.")
    words = f"That did not work: {conversation.errors[0].strip()[:300]}"
    code = f"from klbr import local, runtime\n{_say(words)}\nawait runtime.done()"
    return Answer("The cell failed.", "I say so.", code)


def _say(text: str) -> str:
    return f"await local.send({text!r})"


def _part(owed: Owed) -> _Part:
    match owed:
        case Woken(reason):
            return _woken(reason)
        case Asked(text):
            heard = text.lower()
            for pattern, make in _KNOWN:
                found = pattern.search(heard)
                if found:
                    return make(found)
            return _Part("I do not know what this means.", (_say(UNKNOWN),))


def _woken(reason: str) -> _Part:
    words = f"It is time: {reason}." if reason else "It is time; you asked to be woken."
    return _Part("The time that I waited for has come.", (_say(words),))


def _count(found: re.Match[str]) -> _Part:
    number, pause = int(found["n"]), _SLOW_S if found["slowly"] else _QUICK_S
    return _Part(
        f"I am to count to {number}. I count in Python, so that the kernel does the work.",
        (
            "import asyncio",
            "counted = []",
            f"for number in range(1, {number} + 1):",
            "    counted.append(number)",
            "    print(number, flush=True)",
            f"    await asyncio.sleep({pause})",
            "await local.send(f\"I counted in Python: {', '.join(map(str, counted))}.\")",
        ),
    )


def _wake(found: re.Match[str]) -> _Part:
    seconds = float(found["n"]) * _SECONDS[found["unit"]]
    why = (found["why"] or "").strip() or "you asked to be woken"
    return _Part(
        "I am to sleep and come back; a wake survives restarts, a running cell does not.",
        (_say(f"I sleep now and wake you in {found['n']} {found['unit']}: {why}."),),
        f"await runtime.wait(seconds={seconds:g}, reason={why!r})",
    )


def _sum(found: re.Match[str]) -> _Part:
    # Digits, dots, brackets and single operators: nothing that could run for long.
    expression = re.sub(r"([*/])\1+", r"\1", found["sum"]).strip()
    return _Part(
        "This is arithmetic; Python does it better than I do.",
        (
            f"value = {_balanced(expression)}",
            "print(value)",
            f"await local.send({(expression + ' = ')!r} + str(value))",
        ),
    )


def _balanced(expression: str) -> str:
    try:
        compile(expression, "sum", "eval")
    except (SyntaxError, ValueError):
        return repr("something that Python can't read")
    return expression


def _remember(found: re.Match[str]) -> _Part:
    what, value = found["what"].strip(), found["value"].strip()
    return _Part(
        "I write it into my notebook, which outlives variables.",
        (
            "from notes import remember",
            f"remember({what!r}, {value!r})",
            _say(f"I have noted: {what} is {value}."),
        ),
    )


def _recall(found: re.Match[str]) -> _Part:
    what = found["what"].strip()
    return _Part(
        "I look into my notebook.",
        (
            "from notes import recall",
            f"known = recall({what!r})",
            f"words = {what + ' is '!r} + str(known) + '.'",
            f"await local.send({_no_note(what)!r} if known is None else words)",
        ),
    )


def _no_note(what: str) -> str:
    return f"I have no note of {what}."


def _hello(_: re.Match[str]) -> _Part:
    return _Part("Somebody says hello.", (_say(GREETING),))


_Maker: TypeAlias = Callable[["re.Match[str]"], _Part]
_KNOWN: Final[tuple[tuple[re.Pattern[str], _Maker], ...]] = (
    (_COUNT, _count),
    (_WAKE, _wake),
    (_SUM, _sum),
    (_REMEMBER, _remember),
    (_HELLO, _hello),
    (_RECALL, _recall),
)
