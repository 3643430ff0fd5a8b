"""The behaviour that ships is one: it publishes, and says what is true."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import attrs
import pytest
from behavior_folders import SMALLEST, write_folder

from klbr_trio.errors import ReleaseRefused
from klbr_trio.release import BehaviorSettings, Release, default_behavior
from klbr_trio.release.shipped import shipped_with

_REPO = Path(__file__).parents[2]


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release.publish(default_behavior(), tmp_path / "releases")


def test_it_publishes_whole(release: Release, tmp_path: Path) -> None:
    names = sorted(path.relative_to(release.path).as_posix() for path in release.path.rglob("*.*"))
    assert names == ["behavior.toml", "lib/notes.py", "policy.py", "prompt.md"]
    assert Release.open(tmp_path / "releases", release.digest) == release


def test_its_limits_are_the_defaults(release: Release) -> None:
    """The file shows every key with its default; it is how an author learns them."""
    assert release.settings.name
    assert release.settings.soul
    plain = BehaviorSettings(name=release.settings.name, soul=release.settings.soul)
    assert release.settings == plain
    shown = tomllib.loads((release.path / "behavior.toml").read_text())
    assert list(shown) == [field.name for field in attrs.fields(BehaviorSettings)]
    for name in ("turn", "cell", "send", "wait"):
        fields = attrs.fields(type(getattr(plain, name)))
        assert list(shown[name]) == [field.name for field in fields]


def test_its_instructions_are_short_and_name_every_act(release: Release) -> None:
    words = re.findall(r"\w[\w'.]*", release.instructions)
    assert len(words) <= 700
    for act in ("local.send", "runtime.wait(seconds=", "until=", "reason=", "runtime.done()"):
        assert act in release.instructions


def test_its_examples_are_python_and_import_what_is_there(release: Release) -> None:
    examples = re.findall(r"```python\n(.*?)```", release.instructions, re.DOTALL)
    assert len(examples) == 3
    imports = [
        node
        for example in examples
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.ImportFrom)
    ]
    notes = ast.parse((release.path / "lib" / "notes.py").read_text())
    known = {
        "klbr": {"local", "runtime"},
        "notes": {node.name for node in notes.body if isinstance(node, ast.FunctionDef)},
    }
    assert imports
    for node in imports:
        assert node.module is not None
        assert {alias.name for alias in node.names} <= known[node.module]


def test_it_is_found_in_the_source_tree_and_in_an_installed_package(tmp_path: Path) -> None:
    assert default_behavior() == _REPO / "behavior"
    package = tmp_path / "lib" / "python" / "klbr_trio"
    package.mkdir(parents=True)
    with pytest.raises(ReleaseRefused, match="reinstall"):
        shipped_with(package)
    shipped = write_folder(package / "_behavior", SMALLEST)
    assert shipped_with(package) == shipped


def test_the_wheel_carries_it() -> None:
    project = tomllib.loads((_REPO / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"behavior": "klbr_trio/_behavior"}
