"""Which names a kernel's cells have made, as far as their code says so."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def made_by(cells: Iterable[str]) -> tuple[str, ...]:
    """The names that the cells bind at their top level, in the order in which they were first bound.

    A cell may have ended before it came to one, or deleted it: this is for a reader, not a proof.
    """
    found: dict[str, None] = {}
    for code in cells:
        try:
            tree = ast.parse(code)
            found.update((name, None) for name in _names(tree) if not name.startswith("_"))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # a cell that doesn't compile has made nothing
    return tuple(found)


def _names(node: ast.AST) -> Iterator[str]:
    """Every name bound in `node`, but not those that live inside functions and classes."""
    waiting: list[ast.AST] = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(
            node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        ):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((a.asname or a.name).partition(".")[0] for a in node.names if a.name != "*")
        waiting.extend(reversed(list(ast.iter_child_nodes(node))))
