"""From a cell's text to code objects: statements, then the last expression by itself."""

from __future__ import annotations

import ast
import inspect
import linecache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class Source:
    """A compiled cell.

    Attributes:
        statements: Everything but a last expression; None if there is nothing else.
        expression: The last expression, whose value is the cell's; None if there is none.
        awaits: Whether the cell has a top-level `await` (or async for, async with).
    """

    def __init__(self, text: str, *, name: str) -> None:
        """Compiles `text`; raises SyntaxError, ValueError, RecursionError or MemoryError."""
        lines = [f"{line}\n" for line in text.splitlines()]  # as linecache has them
        linecache.cache[name] = (len(text), None, lines, name)
        tree = compile(text, name, "exec", _FLAGS | ast.PyCF_ONLY_AST, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self.statements = _compile(tree, name, "exec") if tree.body else None
        self.expression: CodeType | None = None
        if isinstance(last, ast.Expr):
            self.expression = _compile(ast.Expression(last.value), name, "eval")
        self.awaits = any(_awaits(code) for code in (self.statements, self.expression))

    def run(self, namespace: dict[str, object]) -> object:
        """Runs a cell that does not await; gives the last expression's value."""
        if self.statements is not None:
            exec(self.statements, namespace)  # noqa: S102
        return None if self.expression is None else eval(self.expression, namespace)  # noqa: S307

    async def run_async(self, namespace: dict[str, object]) -> object:
        """Runs a cell that may await; gives the last expression's value."""
        value: object = None
        for code in (self.statements, self.expression):
            if code is None:
                continue
            value = eval(code, namespace)  # noqa: S307
            if _awaits(code):
                value = await value  # type: ignore[misc]  # such code evaluates to a coroutine
        return None if self.expression is None else value


def _compile(tree: ast.Module | ast.Expression, name: str, mode: str) -> CodeType:
    code: CodeType = compile(tree, name, mode, _FLAGS, dont_inherit=True)
    return code


def _awaits(code: CodeType | None) -> bool:
    return code is not None and bool(code.co_flags & inspect.CO_COROUTINE)
