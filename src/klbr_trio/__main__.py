"""`python -m klbr_trio`, and the `klbr` command."""

from __future__ import annotations

import sys

from klbr_trio.cli.main import main as run


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(int(run(sys.argv[1:])))


if __name__ == "__main__":
    main()
