"""The notebook that ships keeps what it was given, also across a dead kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from klbr_trio.release import default_behavior

if TYPE_CHECKING:
    from pathlib import Path


def _cell(workspace: Path, code: str) -> str:
    """What `code` prints in a fresh process with `lib/` on its path, as in a kernel."""
    start = f"import sys; sys.path.insert(0, {str(default_behavior() / 'lib')!r})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", f"{start}from notes import *\n{code}"],
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1]


def test_notes_outlive_the_process(tmp_path: Path) -> None:
    _cell(tmp_path, "remember('a', {'n': [1, None]}); remember('b', 'ä\\ud800'); remember('a', 2)")
    assert _cell(tmp_path, "print(recall('a'), recall('b'), recall('c'), recall('c', 3))") == (
        "2 ä? None 3\n"
    )
    assert (
        _cell(tmp_path, "print(forget('a'), forget('a'), recall())") == "True False {'b': 'ä?'}\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["notes.json"]


def test_a_cell_that_changes_its_folder_keeps_the_notebook(tmp_path: Path) -> None:
    _cell(tmp_path, "import os; os.chdir('/'); remember('a', 1)")
    assert _cell(tmp_path, "print(recall())") == "{'a': 1}\n"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("remember('', 1)", "ValueError: a note needs a name"),
        ("remember('b', object())", "TypeError: Object of type object is not JSON serializable"),
        ("remember('b', float('nan'))", "ValueError: Out of range float values"),
        ("remember('b', 'x' * 300_000)", "ValueError: the notes would have over 256 KiB"),
    ],
)
def test_what_can_not_be_kept_is_refused_and_loses_nothing(
    tmp_path: Path, code: str, says: str
) -> None:
    _cell(tmp_path, "remember('a', 1)")
    assert _cell(tmp_path, code).startswith(says)
    assert json.loads((tmp_path / "notes.json").read_text()) == {"a": 1}


@pytest.mark.parametrize("spoilt", ["{", "[]", "\x00"])
def test_a_spoilt_notebook_is_named_and_left_alone(tmp_path: Path, spoilt: str) -> None:
    (tmp_path / "notes.json").write_text(spoilt)
    assert f"{tmp_path / 'notes.json'}" in _cell(tmp_path, "remember('a', 1)")
    assert (tmp_path / "notes.json").read_text() == spoilt
