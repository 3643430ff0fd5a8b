# Importing pathlib would be a good part of this process's start.
# ruff: noqa: PTH113, PTH118, PTH123
"""The release's `policy.py`: hooks that run in the kernel around cells and sends.

`before_cell(code)` and `before_send(text)` return the text to use instead, or None for the one
they were given; they raise `klbr.Refused` to refuse. Both may be coroutine functions. They run at
the trust of the cells: guidance for a model, not a wall against it.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Callable

Hook = Callable[[str], object]

_policy: list[types.ModuleType] = []  # one, if the release has one


def load(folder: str) -> None:
    """Runs `folder`/policy.py, if there is one.

    Raises:
        BaseException: Whatever the file's own code raises.
    """
    path = os.path.join(folder, "policy.py")
    if not os.path.isfile(path):
        return
    with open(path, "rb") as file:
        source = file.read()
    module = types.ModuleType("policy", None)
    module.__file__ = path
    sys.modules["policy"] = module
    exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102  # the release's own code
    _policy[:] = [module]


def cell_hook() -> Hook | None:
    return _hook("before_cell")


async def before_send(text: str) -> str:
    """The text to send instead of `text`; raises what the hook raises."""
    hook = _hook("before_send")
    return text if hook is None else await ask(hook, text)


async def ask(hook: Hook, text: str) -> str:
    """What `hook` makes of `text`.

    Raises:
        TypeError: The hook gave something that is no text.
    """
    answer = hook(text)
    if inspect.isawaitable(answer):
        answer = await answer
    if answer is None:
        return text
    if not isinstance(answer, str):
        raise TypeError(f"a policy hook returns str or None, not {type(answer).__name__}")
    return answer


def _hook(name: str) -> Hook | None:
    hook: Hook | None = getattr(_policy[0], name, None) if _policy else None
    return hook
