"""What `behavior.toml` says: the limits and options of a behaviour.

Every key has a default, so an empty file is a complete one. Anything else than
the keys below, or a value of another type, is refused with the key's name: a
misspelt limit must not silently be no limit.

| key | meaning | default |
| --- | --- | --- |
| `name` | what this behaviour is called | `"agent"` |
| `soul` | who the agent is, unless the operator says otherwise | `""` |
| `model` | which of the operator's named models answers; empty: the default | `""` |
| `plain_text` | what becomes of a reply without a call: `"keep"` it in the scratchpad or `"speak"` it | `"keep"` |
| `nudge` | whether a turn that would end with nothing ever said to an input is asked once more | `true` |
| `turn.steps` | model replies a turn | 24 |
| `turn.seconds` | wall time a turn | 900 |
| `turn.tokens` | tokens a turn, all model calls together; 0: no bound | 0 |
| `cell.seconds` | wall time a cell | 120 |
| `send.per_turn` | texts that may be said in one turn | 200 |
| `wait.max_seconds` | how far off a wake may be; 0: no bound | 0 |
"""

from __future__ import annotations

import tomllib
from enum import Enum

import attrs

from klbr_trio.errors import ReleaseRefused
from klbr_trio.release.table import Table


class PlainText(Enum):
    """What becomes of text that the model writes without calling anything."""

    KEEP = "keep"  # nobody hears it: speaking is an act, not a side effect
    SPEAK = "speak"  # for models that can't be brought to call a tool


@attrs.frozen(kw_only=True)
class TurnSettings:
    """The bounds of one turn."""

    steps: int = 24
    """Model replies."""
    seconds: float = 900.0
    """Wall time."""
    tokens: int = 0
    """Tokens of all model calls together; 0: no bound."""


@attrs.frozen(kw_only=True)
class CellSettings:
    """The bounds of one cell."""

    seconds: float = 120.0
    """Wall time."""


@attrs.frozen(kw_only=True)
class SendSettings:
    """The bounds of speech."""

    per_turn: int = 200
    """Texts that may be said in one turn. More is a loop that floods a person."""


@attrs.frozen(kw_only=True)
class WaitSettings:
    """The bounds of sleep."""

    max_seconds: float = 0.0
    """How far off a wake may be; 0: no bound."""


@attrs.frozen(kw_only=True)
class BehaviorSettings:
    """The limits and options of a behaviour."""

    name: str = "agent"
    soul: str = ""
    """Who the agent is, given to the model unless the operator gives another."""
    model: str = ""
    """Which of the operator's named models answers; empty: the default."""
    plain_text: PlainText = PlainText.KEEP
    nudge: bool = True
    turn: TurnSettings = TurnSettings()
    cell: CellSettings = CellSettings()
    send: SendSettings = SendSettings()
    wait: WaitSettings = WaitSettings()


def parse_settings(text: str, *, path: str) -> BehaviorSettings:
    """The settings that `text` states; `path` names it in messages.

    Raises:
        ReleaseRefused: It is not TOML, has a key that means nothing, or a value
            that its key can't have.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as exc:  # a ValueError of its own, or of an endless number
        raise ReleaseRefused(f"{path}: is not valid TOML: {exc}") from exc
    root = Table(content, path=path)
    plain = BehaviorSettings()
    settings = BehaviorSettings(
        name=root.line("name", default=plain.name),
        soul=root.text("soul", default=plain.soul),
        model=root.text("model", default=plain.model).strip(),
        plain_text=root.choice("plain_text", default=plain.plain_text),
        nudge=root.flag("nudge", default=plain.nudge),
        turn=_turn(root.table("turn")),
        cell=_cell(root.table("cell")),
        send=_send(root.table("send")),
        wait=_wait(root.table("wait")),
    )
    root.close()
    return settings


def _turn(table: Table) -> TurnSettings:
    plain = TurnSettings()
    settings = TurnSettings(
        steps=table.whole("steps", default=plain.steps, least=1),
        seconds=table.number("seconds", default=plain.seconds, above=True),
        tokens=table.whole("tokens", default=plain.tokens, least=0),
    )
    table.close()
    return settings


def _cell(table: Table) -> CellSettings:
    settings = CellSettings(
        seconds=table.number("seconds", default=CellSettings().seconds, above=True)
    )
    table.close()
    return settings


def _send(table: Table) -> SendSettings:
    settings = SendSettings(
        per_turn=table.whole("per_turn", default=SendSettings().per_turn, least=1)
    )
    table.close()
    return settings


def _wait(table: Table) -> WaitSettings:
    settings = WaitSettings(
        max_seconds=table.number("max_seconds", default=WaitSettings().max_seconds, above=False)
    )
    table.close()
    return settings
