"""What has no place in a behaviour is refused, with its name and what to do."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from behavior_folders import SMALLEST, files_in, write_folder

from klbr_trio.errors import ReleaseRefused
from klbr_trio.release import Release

if TYPE_CHECKING:
    from collections.abc import Callable


def _link(root: Path) -> None:
    (root / "lib").mkdir()
    (root / "lib" / "a.py").symlink_to("/etc/passwd")


def _linked_folder(root: Path) -> None:
    (root / "lib").symlink_to("/etc")


def _dangling(root: Path) -> None:
    (root / "gone").symlink_to("nowhere")


def _pipe(root: Path) -> None:
    os.mkfifo(root / "pipe")


def _socket(root: Path) -> None:
    # Bound by a relative name: a path in a temporary folder may be too long for one.
    before = Path.cwd()
    os.chdir(root)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind("sock")
    finally:
        os.chdir(before)


def _device(root: Path) -> None:
    try:
        os.mknod(root / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


def _not_utf8(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9")).write_bytes(b"")


def _named(*names: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for name in names:
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(b"")

    return make


def _too_big(root: Path) -> None:
    for name, size in {"a": 12 * 2**20, "b": 4 * 2**20}.items():
        with (root / name).open("wb") as stream:
            stream.truncate(size)


def _too_many(root: Path) -> None:
    (root / "lib").mkdir()
    for n in range(2_000):
        (root / "lib" / str(n)).touch()


def _too_deep(root: Path) -> None:
    (root / "/".join("x" * 20)).mkdir(parents=True)


def _too_many_folders(root: Path) -> None:
    for n in range(1_001):
        (root / f"d{n}").mkdir()


def _written(name: str, data: bytes) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        (root / name).write_bytes(data)

    return make


def _without(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_link, ["lib/a.py", "symbolic link", "put the file itself"]),
        (_linked_folder, ["/lib:", "symbolic link"]),
        (_dangling, ["/gone:", "symbolic link"]),
        (_pipe, ["/pipe:", "a pipe", "remove it"]),
        (_socket, ["/sock:", "a socket", "remove it"]),
        (_device, ["/null:", "a device", "remove it"]),
        (_not_utf8, ["caf\\udce9", "rename it"]),
        (_named("a\nb"), ["a\\nb", "rename it"]),
        (_named("a\x1bb"), ["a\\x1bb", "rename it"]),
        (_named("a\u2028b"), ["a\\u2028b", "rename it"]),
        (_named("a\\b"), ["a\\b", "rename it"]),
        (_named("Lib.py", "lib.py"), ["lib.py", "'Lib.py'", "rename one"]),
        (_named("lib/a", "LIB/b"), ["/lib:", "'LIB'", "rename one"]),
        (_named("\u00e9.md", "e\u0301.md"), ["only in spelling", "rename one"]),
        (_too_big, ["16 MiB", "being a;"]),
        (_too_many, ["2000 files"]),
        (_too_deep, ["16 levels"]),
        (_too_many_folders, ["1000 folders"]),
        (_without("behavior.toml"), ["behavior.toml", "missing"]),
        (_without("prompt.md"), ["prompt.md", "missing"]),
        (_written("prompt.md", b" \n"), ["prompt.md", "empty"]),
        (_written("prompt.md", b"\xff"), ["prompt.md", "not UTF-8"]),
        (_written("prompt.md", b"x" * 262_145), ["prompt.md", "256 KiB"]),
        (_written("behavior.toml", b"name ="), ["behavior.toml", "not valid TOML"]),
        (_written("behavior.toml", b"nmae = 'x'"), ["behavior.toml", "nmae", "name"]),
        (_written("policy.py", b"x = 1\ndef f(:\n"), ["policy.py", "line 2"]),
        (_written("policy.py", b"x = '\0'\n"), ["policy.py"]),
        (_written("policy.py", b"-" * 200_000 + b"1"), ["policy.py"]),
    ],
)
def test_it_is_refused_by_name(
    tmp_path: Path, spoil: Callable[[Path], None], says: list[str]
) -> None:
    source = write_folder(tmp_path / "source", SMALLEST)
    spoil(source)
    with pytest.raises(ReleaseRefused) as refusal:
        Release.publish(source, tmp_path / "releases")
    for words in [str(source), *says]:
        assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "releases").exists(), "nothing is written for a refused folder"


def test_a_source_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReleaseRefused, match="does not exist"):
        Release.publish(tmp_path / "missing", tmp_path / "releases")
    with pytest.raises(ReleaseRefused, match="is not a folder"):
        Release.publish(tmp_path / "file", tmp_path / "releases")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ReleaseRefused, match="loop: "):
        Release.publish(tmp_path / "loop", tmp_path / "releases")


def test_a_source_that_contains_the_releases_is_refused(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", SMALLEST)
    for releases in (source, source / "releases", source / ".." / "source" / "x" / "releases"):
        with pytest.raises(ReleaseRefused, match="keep the two apart"):
            Release.publish(source, releases)
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(ReleaseRefused, match="keep the two apart"):
        Release.publish(source, tmp_path / "link" / "releases")
    assert files_in(source) == SMALLEST


def test_a_releases_folder_that_is_a_link_or_a_file_is_refused(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", SMALLEST)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for releases in (tmp_path / "link", tmp_path / "file", tmp_path / "file" / "releases"):
        with pytest.raises(ReleaseRefused, match=str(releases)):
            Release.publish(source, releases)
    assert list((tmp_path / "real").iterdir()) == []


def test_the_source_itself_may_be_reached_by_a_link(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", SMALLEST)
    (tmp_path / "link").symlink_to(source)
    release = Release.publish(tmp_path / "link", tmp_path / "releases")
    assert release == Release.publish(source, tmp_path / "releases")


def test_hard_links_are_plain_files(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", SMALLEST)
    (source / "copy.md").hardlink_to(source / "prompt.md")
    release = Release.publish(source, tmp_path / "releases")
    assert files_in(release.path) == {**SMALLEST, "copy.md": SMALLEST["prompt.md"]}


def test_what_tools_drop_is_left_out_and_nothing_else(tmp_path: Path) -> None:
    kept = {**SMALLEST, ".env.example": b"", "lib/a.py": b"", "git": b"", "lib/.hidden": b"x"}
    noise = {
        "__pycache__/policy.cpython-311.pyc": b"x",
        "lib/__pycache__/a.cpython-311.pyc": b"x",
        "lib/b.pyc": b"x",
        ".git/HEAD": b"x",
        ".gitignore": b"x",
        "prompt.md~": b"x",
        ".prompt.md.swp": b"x",
        "#prompt.md#": b"x",
        ".DS_Store": b"x",
        ".vscode/settings.json": b"x",
    }
    source = write_folder(tmp_path / "source", {**kept, **noise})
    (source / ".#prompt.md").symlink_to("me@host.123")  # an editor's lock is a link to nowhere
    (source / "empty").mkdir()
    release = Release.publish(source, tmp_path / "releases")
    assert files_in(release.path) == kept
    assert Release.open(tmp_path / "releases", release.digest) == release


def test_the_policy_is_read_but_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    policy = f"open({str(marker)!r}, 'w')\nraise SystemExit\n"
    source = write_folder(tmp_path / "source", {**SMALLEST, "policy.py": policy.encode()})
    release = Release.publish(source, tmp_path / "releases")
    Release.open(tmp_path / "releases", release.digest)
    assert not marker.exists()
