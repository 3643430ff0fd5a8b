"""What a command prints: facts on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import attrs

from klbr_trio.cli.terminal import to_json, visible, visible_line

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen(kw_only=True)
class Output:
    """How this command prints.

    Attributes:
        as_json: Facts as JSON, one object a line.
        raw: Texts as they are, control characters included.
    """

    as_json: bool = False
    raw: bool = False

    def fact(self, values: Mapping[str, object], text: str) -> None:
        """Print one fact: `values` for programs, or `text` for people."""
        self.write(to_json(values) + "\n" if self.as_json else self.shown(text) + "\n")

    def shown(self, text: str) -> str:
        """A text of somebody else's, as this command shows it."""
        return text if self.raw else visible(text)

    def write(self, text: str) -> None:
        """Print `text` as it is, at once."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Tell whoever looks on, on one line."""
        tell(text)


def tell(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"klbr: {visible_line(text)}\n")
    sys.stderr.flush()
