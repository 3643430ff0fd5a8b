# Importing pathlib would be a good part of this process's start.
# ruff: noqa: PTH100, PTH118, PTH120
"""The process that runs a session's cells. Started by path: `python -I worker.py CHANNEL`.

Of what lies beside it only `for-cells` goes on the path, with the `klbr` package in it: nothing
else here can stand before a module of the cells' own.
"""

from __future__ import annotations

import os
import sys

_INSIDE = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    sys.path.insert(0, os.path.join(_INSIDE, "for-cells"))
    from klbr._kernel import main as kernel  # noqa: PLC0415  # needs the path set above

    kernel.serve(channel=int(sys.argv[1]), inside=_INSIDE)


if __name__ == "__main__":
    main()
