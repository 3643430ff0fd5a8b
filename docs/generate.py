"""Writes the parts of the docs that the code knows: `python docs/generate.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from klbr_trio.store import CommitPoint

HERE = Path(__file__).parent
BEGIN, END = "<!-- begin generated -->", "<!-- end generated -->"


def commit_points() -> str:
    """The table of commit points."""
    lines = [
        "| commit | holds | crash just before | crash just after | the commit fails |",
        "| --- | --- | --- | --- | --- |",
    ]
    for point in CommitPoint:
        meaning = point.value
        cells = (point.label, meaning.holds, meaning.before, meaning.after, meaning.fails)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(text: str, table: str) -> str:
    """`text` with what lies between the marks replaced."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def main() -> int:
    page = HERE / "durability.md"
    text = page.read_text()
    wanted = with_table(text, commit_points())
    if "--check" in sys.argv:
        return int(text != wanted)
    page.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
