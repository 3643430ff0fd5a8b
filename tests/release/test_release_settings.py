"""behavior.toml is read strictly: a misspelt limit must not silently be none."""

from __future__ import annotations

import attrs
import pytest

from klbr_trio.errors import ReleaseRefused
from klbr_trio.release import (
    BehaviorSettings,
    CellSettings,
    PlainText,
    SendSettings,
    TurnSettings,
    WaitSettings,
)
from klbr_trio.release.settings import parse_settings

_ALL = """
name = "ada"
soul = '''You are
Ada.'''
model = " big "
plain_text = "speak"
nudge = false
[turn]
steps = 3
seconds = 1.5
tokens = 1000
[cell]
seconds = 7
[send]
per_turn = 2
[wait]
max_seconds = 60
"""


def test_an_empty_file_states_the_defaults() -> None:
    assert parse_settings("", path="x") == BehaviorSettings()


def test_every_key_is_read() -> None:
    read = parse_settings(_ALL, path="x")
    assert read == BehaviorSettings(
        name="ada",
        soul="You are\nAda.",
        model="big",
        plain_text=PlainText.SPEAK,
        nudge=False,
        turn=TurnSettings(steps=3, seconds=1.5, tokens=1000),
        cell=CellSettings(seconds=7.0),
        send=SendSettings(per_turn=2),
        wait=WaitSettings(max_seconds=60.0),
    )
    default = BehaviorSettings()
    for field in attrs.fields(BehaviorSettings):
        assert getattr(read, field.name) != getattr(default, field.name), field.name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nme = 'x'", "nme is not a setting"),
        ("[turn]\nstep = 3", "turn.step is not a setting"),
        ("[turns]\nsteps = 3", "turns is not a setting"),
        ("turn.steps = '3'", "turn.steps must be a whole number of at least 1, not '3'"),
        ("turn.steps = true", "turn.steps must be"),
        ("turn.steps = 3.0", "turn.steps must be"),
        ("turn.steps = 0", "turn.steps must be"),
        ("turn.steps = 9007199254740993", "turn.steps must be"),
        ("turn.tokens = -1", "turn.tokens must be a whole number of at least 0"),
        ("turn.seconds = 0", "turn.seconds must be a number above 0"),
        ("turn.seconds = inf", "turn.seconds must be"),
        ("turn.seconds = nan", "turn.seconds must be"),
        ("turn.seconds = -1", "turn.seconds must be"),
        ("turn.seconds = true", "turn.seconds must be"),
        ("cell.seconds = '2 min'", "cell.seconds must be a number above 0, not '2 min'"),
        ("send.per_turn = 0", "send.per_turn must be"),
        ("wait.max_seconds = -0.5", "wait.max_seconds must be 0 or a number above it"),
        ("turn = 3", "turn must be a table"),
        ("turn = []", "turn must be a table"),
        ("nudge = 1", "nudge must be true or false"),
        ("plain_text = 'say'", 'plain_text must be "keep" or "speak", not \'say\''),
        ("plain_text = ['keep']", "plain_text must be"),
        ("name = ''", "name must be one line"),
        ("name = ' '", "name must be one line"),
        ('name = "a\\nb"', "name must be one line"),
        (f"name = '{'x' * 65}'", "name must be one line"),
        ("soul = 3", "soul must be a string"),
        ("soul = 1979-05-27", "soul must be a string"),
        ("x = " + "[" * 5_000 + "]" * 5_000, "is not valid TOML"),
        ("a = 1\na = 2", "is not valid TOML"),
        (f"turn.steps = {'9' * 5_000}", "is not valid TOML"),
        (f"turn.seconds = {'9' * 400}", "turn.seconds must be"),
        (f"turn.seconds = -{'9' * 400}", "turn.seconds must be"),
        ('"a\\nb" = 1', "'a\\nb' is not a setting"),
        (f"{'a' * 5_000} = 1", "is not a setting"),
    ],
)
def test_anything_else_is_refused_by_its_key(text: str, says: str) -> None:
    with pytest.raises(ReleaseRefused) as refusal:
        parse_settings(text, path="folder/behavior.toml")
    assert str(refusal.value).startswith("folder/behavior.toml: ")
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300
