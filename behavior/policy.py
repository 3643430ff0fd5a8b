"""Hooks that the kernel runs around cells and speech.

They run at the cells' own trust, so they are help, not a wall: they catch slips
that models make, and keep out of the way of everything else. A cell that merely
looks odd is run; a text that somebody may mean is sent as it is.

`before_cell(code)` and `before_send(text)` return None to go on as is, or a text
to take instead; `Refused("why")` stops it, and the model is told why.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from klbr import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

_FENCED = re.compile(r"\s*```(?:python3?|py)?[ \t]*\n(?P<code>(?:(?!```).)*)```\s*", re.DOTALL)
_NOTEBOOK = re.compile(r"^[ \t]*(?:![ \t]*\w|%%?[a-z])", re.MULTILINE)
_UNFINISHED = re.compile(r"<(?:coroutine|generator|async_generator) object [^\n]* at 0x[0-9a-f]+>")
_CALLS = frozenset({("local", "send"), ("runtime", "wait"), ("runtime", "done")})


def before_cell(code: str) -> str | None:
    """Mends what can only have been meant one way."""
    tree = _parsed(code)
    fenced = _FENCED.fullmatch(code) if tree is None else None
    if fenced:
        code, tree = fenced["code"], _parsed(fenced["code"])
    if tree is None:
        if _NOTEBOOK.search(code):
            raise Refused(
                "this is plain Python, not a notebook: '!' and '%' lines don't work."
                " Run a program with subprocess.run([...])"
            )
        return None  # Python's own message says best what is wrong
    mended = _with_awaits(code, tree)
    return mended if fenced or mended != code else None


def before_send(text: str) -> str | None:
    """Stops texts that nobody can have meant to say."""
    if not text.strip():
        raise Refused("there is nothing to read in this text; it was not sent")
    if _UNFINISHED.fullmatch(text.strip()):
        raise Refused("this is an unfinished call, not its result: await it; nothing was sent")
    return None


def _parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _with_awaits(code: str, tree: ast.Module) -> str:
    """The code with `await` before calls whose result is thrown away.

    `local.send("…")` alone on a line says nothing without it, and Python would
    only warn: the model believes that it has spoken.
    """
    # The parser's line numbers know no "\r"; its columns count bytes.
    lines = code.replace("\r\n", "\n").replace("\r", "\n").encode().split(b"\n")
    places = {(call.lineno - 1, call.col_offset) for call in _thrown_away(tree)}
    if not places:
        return code
    for line, column in sorted(places, reverse=True):
        lines[line] = lines[line][:column] + b"await " + lines[line][column:]
    return b"\n".join(lines).decode()


def _thrown_away(tree: ast.Module) -> Iterator[ast.Call]:
    """Bare calls of ours, wherever `await` is allowed."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if (
                isinstance(function, ast.Attribute)
                and isinstance(function.value, ast.Name)
                and (function.value.id, function.attr) in _CALLS
            ):
                yield node.value
        nodes.extend(ast.iter_child_nodes(node))
