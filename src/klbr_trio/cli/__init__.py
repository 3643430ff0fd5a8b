"""The command line: arguments and environment in, exit codes and printed facts out.

Data goes to stdout, everything else to stderr; an error is one line that says what is
wrong and what to do. `main` declares the commands and loads nothing else until one runs.
"""

from __future__ import annotations
