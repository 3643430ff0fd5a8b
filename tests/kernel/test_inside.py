"""Functions of the kernel's own side that need no kernel."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import json
import os
import runpy
import subprocess
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from kernel_lab import CONFIG
from klbr._kernel.release import digest
from klbr._kernel.report import cut, value_text
from klbr.runtime import duration, moment_ms

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("given_time", "seconds"),
    [(0, 0.0), (1, 1.0), (0.5, 0.5), (Fraction(1, 4), 0.25), (2**53 // 1000, 2.0**53 // 1000)],
)
def test_durations(given_time: object, seconds: float) -> None:
    assert duration(given_time) == seconds


@pytest.mark.parametrize(
    "value",
    [
        True,
        None,
        "5",
        -1,
        -0.001,
        float("nan"),
        float("inf"),
        2**53,
        10**400,
        1j,
        [],
        decimal.Decimal(1),
    ],
)
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match="`seconds`"):
        duration(value)


WARDEN = runpy.run_path(str(CONFIG.inside / "warden.py"), run_name="warden")
UTC_2030 = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
MS_2030 = 1_893_456_000_000


@pytest.mark.parametrize(
    ("until", "ms"),
    [
        (UTC_2030, MS_2030),
        (UTC_2030.astimezone(dt.timezone(dt.timedelta(hours=5))), MS_2030),
        (UTC_2030.astimezone().replace(tzinfo=None), MS_2030),
        ("2030-01-01T00:00:00Z", MS_2030),
        ("2030-01-01T05:00:00+05:00", MS_2030),
        ("20300101T000000Z", MS_2030),
        (MS_2030 / 1000, MS_2030),
        (MS_2030 // 1000, MS_2030),
        (0, 0),
    ],
)
def test_moments(until: object, ms: int) -> None:
    assert moment_ms(until) == ms


@pytest.mark.parametrize(
    "until",
    [
        True,
        "tomorrow",
        "",
        -1,
        float("nan"),
        2**53,
        dt.date(2030, 1, 1),
        dt.timedelta(1),
        [],
        b"2030-01-01",
        dt.datetime(1960, 1, 1, tzinfo=dt.UTC),
        "9999-99-99",
    ],
)
def test_what_is_no_moment(until: object) -> None:
    with pytest.raises(ValueError, match="`until`"):
        moment_ms(until)


def test_the_digest_is_that_of_the_canonical_manifest(tmp_path: Path) -> None:
    files = {"b.txt": b"1", "a/z.py": b"", "a.txt": "é".encode(), "é": b"2"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "link").symlink_to("b.txt")
    (tmp_path / "empty").mkdir()
    listed = [
        [name, len(files[name]), hashlib.sha256(files[name]).hexdigest()] for name in sorted(files)
    ]
    manifest = json.dumps({"files": listed}, ensure_ascii=False, separators=(",", ":")).encode()
    assert digest(str(tmp_path)) == hashlib.sha256(manifest).hexdigest()


@given(st.text(max_size=200), st.integers(2, 50))
def test_a_cut_text_keeps_its_two_ends(text: str, limit: int) -> None:
    shown = cut(text, limit)
    half = limit // 2
    assert shown == text or (shown.startswith(text[:half]) and shown.endswith(text[-half:]))
    assert (shown == text) == (len(text) <= limit)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda v: st.lists(v) | st.dictionaries(st.text(max_size=3), v),
    )
)
def test_ordinary_values_are_shown_by_their_own_repr(value: object) -> None:
    assert value_text(value) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**7,
        b"x" * 10**7,
        list(range(10**6)),
        {n: n for n in range(10**5)},
        [[1] * 10**5] * 10,
    ],
)
def test_big_values_are_shown_in_part(value: object) -> None:
    assert len(value_text(value)) < 70_000


def test_a_scan_finds_the_children_of_a_process() -> None:
    children = [subprocess.Popen(["sleep", "100"]) for _ in range(3)]
    try:
        assert {child.pid for child in children} <= set(WARDEN["scan"]()[os.getpid()])
    finally:
        for child in children:
            child.kill()
            child.wait()
