"""`python -m klbr_trio`, and the `klbr` command."""

from __future__ import annotations

import io
import sys

from klbr_trio.cli.main import main as run


def main() -> None:
    """Run the command line and end the process with its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Where the terminal can't show a character, its escape is better than no line at all.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(int(run(sys.argv[1:])))


if __name__ == "__main__":
    main()
