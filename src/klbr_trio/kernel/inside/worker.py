# Importing pathlib would be a good part of this process's start.
# ruff: noqa: PTH100, PTH118, PTH120
"""The process that runs a session's cells. Started by path: `python -I worker.py CHANNEL`.

Of what lies beside it only `for-cells` stays on the path, with the `klbr` package in it: nothing
else here can stand before a module of the cells' own.

`worker.py probe CAGE` only finds out whether a worker could live in that cage, and says `ok`.
"""

from __future__ import annotations

import json
import os
import sys

_INSIDE = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    sys.path[:0] = [os.path.join(_INSIDE, "for-cells"), _INSIDE]
    from confinement import confine  # noqa: PLC0415  # needs the path set above
    from klbr._kernel import main as kernel  # noqa: PLC0415  # needs the path set above

    sys.path.remove(_INSIDE)
    if sys.argv[1] == "probe":
        confine(json.loads(sys.argv[2]))
        __import__("email.message")  # one that nothing here has read before
        print("ok")
    else:
        kernel.serve(channel=int(sys.argv[1]), inside=_INSIDE, confine=confine)


if __name__ == "__main__":
    main()
