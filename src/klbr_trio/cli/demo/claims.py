"""What the demonstration says, and whether it is so."""

from __future__ import annotations

import attrs

from klbr_trio.cli.output import Output


class CannotGoOn(Exception):
    """Nothing that comes later could be shown; the message says why."""


@attrs.define(eq=False)
class Claims:
    """The claims made so far; each is checked before it is printed."""

    output: Output
    made: list[tuple[str, bool]] = attrs.field(factory=list)

    @property
    def broken(self) -> list[str]:
        """Those that turned out to be false."""
        return [claim for claim, held in self.made if not held]

    def tell(self, text: str) -> None:
        """Say what happens next."""
        if not self.output.as_json:
            self.output.write(f"\n== {text}\n")

    def check(self, claim: str, holds: bool, found: object = "") -> None:  # noqa: FBT001 - a claim and its truth
        """Print a claim and whether it holds."""
        self.made.append((claim, holds))
        if self.output.as_json:
            return
        because = "" if holds else f" (found: {str(found)[:500]})"
        self.output.write(
            f"   {'ok    ' if holds else 'BROKEN'} {self.output.shown(claim + because)}\n"
        )

    def stop_here(self, why: str) -> None:
        """The demonstration could not go on."""
        self.check("the demonstration goes on to its end", holds=False, found=why)

    def summary(self) -> None:
        """Print what it came to."""
        values = {
            "sound": not self.broken,
            "claims": [{"claim": claim, "held": held} for claim, held in self.made],
        }
        count = len(self.made)
        text = (
            f"\n{count} claims were checked, {len(self.broken)} are broken"
            if self.broken
            else f"\n{count} claims were checked, and all of them hold"
        )
        self.output.fact(values, text)
