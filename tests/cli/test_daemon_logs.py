from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given, strategies as st

from klbr_trio.daemon.logs import JsonLines


def logged(message: str, *args: object, **more: Any) -> str:
    record = logging.LogRecord("klbr_trio.x", logging.INFO, "file", 1, message, args, None)
    vars(record).update(more)
    return JsonLines().format(record)


@given(st.text(), st.text())
def test_one_record_is_one_line_of_ascii_whatever_it_holds(message: str, session: str) -> None:
    line = logged("%s", message, session=session)
    assert line.isascii()
    assert line.isprintable()
    values = json.loads(line)
    assert values["message"] == message or len(message) > 2000
    assert values["session"] == session or len(session) > 256


def test_a_forged_line_stays_inside_of_its_own() -> None:
    line = logged("%s", 'x\r\n{"level": "CRITICAL"}\x1b[2J')
    assert "\n" not in line
    assert json.loads(line)["level"] == "INFO"


def test_long_values_are_cut() -> None:
    values = json.loads(logged("%s", "m" * 15_000, session="s" * 15_000, seq=7))
    assert len(values["message"]) < 2100
    assert len(values["session"]) < 300
    assert values["seq"] == 7


def test_a_traceback_is_a_value_of_the_line() -> None:
    with pytest.raises(ValueError, match="deep") as caught:
        int("deep\nwithin")
    exc = caught.value
    record = logging.LogRecord(
        "klbr_trio.x", logging.ERROR, "f", 1, "m", (), (type(exc), exc, exc.__traceback__)
    )
    line = JsonLines().format(record)
    assert "\n" not in line
    assert "ValueError: invalid literal" in json.loads(line)["traceback"]
