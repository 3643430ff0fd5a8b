"""Every benchmark under one command: `python tests/benchmarks/run.py [--json] [NAME …]`.

Each figure stands beside its ceiling, measured in the same run: a physical limit (a raw
commit, a raw socket) or a peer. Absolute numbers are the machine's; the ratios are ours.
Nothing here is a test: figures are for people, and machines differ.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    figures: dict[str, list[dict[str, Any]]] = {}
    for name in arguments.names or NAMES:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        figures[name] = importlib.import_module(f"bench_{name}").run()
    if arguments.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, rows in figures.items():
            print(f"\n{name}")
            for row in rows:
                print_row(row)
    return 0


def print_row(row: dict[str, Any]) -> None:
    beside, value = ceiling_of(row)
    ratio = f"x {row['value'] / value:.2f}" if value else ""
    target = f"target {row['target']}" if row.get("target") else ""
    print(
        f"  {row['name']:<58} {number(row['value']):>10} {row['unit']:<10} "
        f"{ratio:>9}  {beside:<56} {target}".rstrip()
    )


def ceiling_of(row: dict[str, Any]) -> tuple[str, float | None]:
    """What stands beside the figure, in words, and its number if there is one to divide by."""
    ceiling = row.get("ceiling")
    if isinstance(ceiling, int | float):
        return f"beside: {number(ceiling)} {row['unit']}", ceiling
    if not isinstance(ceiling, dict):
        return "", None
    if "value" in ceiling:
        words = f"{ceiling.get('name', 'beside')}: {number(ceiling['value'])}"
        return f"{words} {ceiling.get('unit', row['unit'])}", ceiling["value"]
    return ", ".join(f"{name}: {value}" for name, value in ceiling.items()), None


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
