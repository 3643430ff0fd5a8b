"""A scripted model that is careful: it looks at what was done before it does it again.

An input reads `TASK kind id`. The model reads the whole conversation that it is sent, as
a real one would, and does what is not done yet.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fakes.provider import Scripted, call_reply, refuse, text_reply

if TYPE_CHECKING:
    from fakes.provider import Request

SAY = "from klbr import local, runtime\nawait local.send({said!r})\nprint('sent', {said!r})\n"
WAIT = "await runtime.wait(seconds=0.2, reason='to say it again')\n"
DONE = "await runtime.done()\n"

EFFECTS = {
    "say": ("{}",),
    "twice": ("{}-a", "{}-b"),
    "sleep": ("{}", "{}-woke"),
    "done": ("{}",),
    "failing": ("{}",),
}
"""What each kind of task must have said in the end, once."""


class CarefulModel:
    """Answers requests; `refused` are the tasks whose first request it has refused."""

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def __call__(self, request: Request) -> Scripted:
        messages = request.body["messages"]
        text = "\n".join(_text(message) for message in messages)
        for kind, name in re.findall(r"TASK (\w+) (\w+)", text):
            if kind == "failing" and name not in self.refused:
                self.refused.add(name)
                return refuse(400, {"error": {"message": "this model is out of order"}})
            answer = _next(kind, name, text)
            if answer is not None:
                return answer
        return text_reply("nothing is left to do")


def _next(kind: str, name: str, text: str) -> Scripted | None:
    if kind == "twice":
        codes = [SAY.format(said=said) for said in _left(kind, name, text)]
        return call_reply(*codes) if codes else None
    if kind == "sleep":
        if not _was_said(name, text):
            return call_reply(SAY.format(said=name) + WAIT)
        if "you are awake" not in text:
            return call_reply("from klbr import runtime\n" + WAIT)
        if not _was_said(f"{name}-woke", text):
            return call_reply(SAY.format(said=f"{name}-woke"))
        return None
    if not _was_said(name, text):
        return call_reply(SAY.format(said=name) + (DONE if kind == "done" else ""))
    return None


def _left(kind: str, name: str, text: str) -> list[str]:
    said = (effect.format(name) for effect in EFFECTS[kind])
    return [one for one in said if not _was_said(one, text)]


def _was_said(said: str, text: str) -> bool:
    """As a result tells it, or as the service knows it of a call that was broken off."""
    return (
        f"sent {said}\n" in f"{text}\n" or re.search(rf'it sent [^\n]*"{said}"', text) is not None
    )


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if message["role"] == "assistant" or content is None:
        return ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
