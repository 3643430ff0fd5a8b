"""The rules of this house that no linter has."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "klbr_trio"
MODULES = sorted(SOURCE.rglob("*.py"))
NAMES = [str(path.relative_to(SOURCE)) for path in MODULES]

# The waits that may last as long as what they wait for: a begun COMMIT, and the writer's life,
# which the end of the store's block ends.
ENDLESS_SHIELDS = {"store/writer.py": 1, "store/store.py": 1}


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in call.keywords if one.arg == name), None)


def is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_every_shield_has_a_deadline(path: Path) -> None:
    endless = [
        call.lineno
        for call in calls(ast.parse(path.read_text()))
        if is_true(keyword(call, "shield"))
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "CancelScope"
        and keyword(call, "deadline") is None
        and keyword(call, "relative_deadline") is None
    ]
    allowed = ENDLESS_SHIELDS.get(str(path.relative_to(SOURCE)), 0)
    assert len(endless) <= allowed, f"shields without a deadline at lines {endless}"


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_no_channel_is_unbounded(path: Path) -> None:
    for call in calls(ast.parse(path.read_text())):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "open_memory_channel":
            assert "inf" not in ast.unparse(call.args[0]), f"line {call.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_a_long_module_says_why(path: Path) -> None:
    text = path.read_text()
    if len(text.splitlines()) > 600:
        docstring = ast.get_docstring(ast.parse(text)) or ""
        assert "Size:" in docstring, "over 600 lines: say why in the docstring, or split it"


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module docstring is missing"


def test_nothing_is_left_unfinished() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in MODULES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if mark.search(line)
    ]
    assert found == []
