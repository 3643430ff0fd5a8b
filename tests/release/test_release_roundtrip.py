"""A release is its content: the same in, the same out, and nothing else opens."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from behavior_folders import SMALLEST, files_in, write_folder
from hypothesis import given, settings, strategies as st

from klbr_trio.errors import DigestMismatch
from klbr_trio.release import Release

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = st.text(alphabet="abcXYZ019_-.äßé漢🙂 ", min_size=1, max_size=8).filter(
    lambda name: name.strip(". ") == name
)
_PATH = st.lists(_NAME, min_size=1, max_size=3).map("/".join)


def _fits(files: dict[str, bytes]) -> bool:
    """No path is another one's folder, and none differs from another in case alone."""
    names = {"/".join(path.split("/")[:n]) for path in files for n in range(1, 9)}
    folders = {path.rsplit("/", n)[0] for path in files for n in range(1, path.count("/") + 1)}
    return not folders & files.keys() and len({name.casefold() for name in names}) == len(names)


_FILES = (
    st.dictionaries(_PATH, st.binary(max_size=64), max_size=5)
    .map(lambda extra: {**extra, **SMALLEST})
    .filter(_fits)
)


def _digest_by_the_rule(files: dict[str, bytes]) -> str:
    """The rule once more, from its words."""
    listed = ",".join(
        f'[{json.dumps(path, ensure_ascii=False)},{len(data)},"{hashlib.sha256(data).hexdigest()}"]'
        for path, data in sorted(files.items())
    )
    return hashlib.sha256(f'{{"files":[{listed}]}}'.encode()).hexdigest()


@settings(max_examples=60, deadline=None)
@given(files=_FILES)
def test_what_is_published_is_what_opens(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as temp:
        source = write_folder(Path(temp) / "source", files)
        published = Release.publish(source, Path(temp) / "releases")
        assert files_in(published.path) == files
        assert published.digest == _digest_by_the_rule(files) == published.path.name
        assert Release.open(Path(temp) / "releases", published.digest) == published


def _flip(path: Path, data: st.DataObject) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    at = data.draw(st.integers(0, len(content) - 1), label="at")
    content[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    path.write_bytes(content)


def _grow(path: Path, data: st.DataObject) -> None:
    path.write_bytes(path.read_bytes() + data.draw(st.binary(min_size=1, max_size=1)))


def _remove(path: Path, _data: st.DataObject) -> None:
    path.unlink()


def _rename(path: Path, _data: st.DataObject) -> None:
    path.rename(path.with_name(f"{path.name}x"))


def _add(path: Path, data: st.DataObject) -> None:
    # Also names that a source may have without their being published.
    name = data.draw(st.sampled_from(["new.txt", ".git", "x.pyc", "__pycache__", "a~"]))
    path.with_name(name).write_bytes(b"")


def _add_folder(path: Path, _data: st.DataObject) -> None:
    path.with_name("new").mkdir()


def _link(path: Path, _data: st.DataObject) -> None:
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


_CHANGES = [_flip, _grow, _remove, _rename, _add, _add_folder, _link]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data=st.data(), files=_FILES, change=st.sampled_from(_CHANGES))
def test_a_release_with_any_change_does_not_open(
    data: st.DataObject,
    files: dict[str, bytes],
    change: Callable[[Path, st.DataObject], None],
) -> None:
    with tempfile.TemporaryDirectory() as temp:
        releases = Path(temp) / "releases"
        source = write_folder(Path(temp) / "source", files)
        release = Release.publish(source, releases)
        for folder in [release.path, *release.path.rglob("*")]:
            folder.chmod(0o700)
        change(release.path / data.draw(st.sampled_from(sorted(files))), data)
        with pytest.raises(DigestMismatch):
            Release.open(releases, release.digest)
        # The source is there still: publishing it again makes the release whole.
        assert Release.publish(source, releases) == release
        assert Release.open(releases, release.digest) == release


def test_the_digest_rule_does_not_drift(tmp_path: Path) -> None:
    """Sessions name digests for years: a change of the rule would strand them all."""
    files = {**SMALLEST, "lib/zähler.py": b"n = 1\n", "lib.txt": b"\x00\xff"}
    release = Release.publish(write_folder(tmp_path / "source", files), tmp_path / "releases")
    assert release.digest == "dac38512c19c6f248532c3acfa083bda094e2075470b5b3c0e433cca52393484"


def test_modes_and_places_do_not_count(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "one", SMALLEST)
    first = Release.publish(source, tmp_path / "releases")
    other = Path(shutil.copytree(source, tmp_path / "two"))
    (other / "prompt.md").chmod(0o755)
    assert Release.publish(str(other), str(tmp_path / "releases")) == first


def test_publishing_again_writes_nothing(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", SMALLEST)
    release = Release.publish(source, tmp_path / "releases")
    before = {path: path.stat() for path in [release.path, *release.path.iterdir()]}
    assert Release.publish(source, tmp_path / "releases") == release
    assert {path: path.stat() for path in [release.path, *release.path.iterdir()]} == before


def test_a_release_can_be_published_from(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", SMALLEST)
    release = Release.publish(source, tmp_path / "one")
    assert Release.publish(release.path, tmp_path / "one") == release
    assert Release.publish(release.path, tmp_path / "two").digest == release.digest


def test_what_the_files_say_is_known(tmp_path: Path) -> None:
    files = {"behavior.toml": b"name = 'ada'\n", "prompt.md": "\ufeffSé útil.\r\n".encode()}
    release = Release.publish(write_folder(tmp_path / "source", files), tmp_path / "releases")
    assert release.instructions == "Sé útil.\n"
    assert release.settings.name == "ada"
    assert "útil" not in repr(release)


@pytest.mark.parametrize(
    "digest",
    [
        "",
        "..",
        "../releases",
        "0" * 63,
        "0" * 65,
        "0" * 64 + "\n",
        "A" * 64,
        "g" * 64,
        "٣" * 64,
        "0" * 64,
        "/" + "0" * 63,
    ],
)
def test_what_is_no_digest_or_no_release_does_not_open(tmp_path: Path, digest: str) -> None:
    Release.publish(write_folder(tmp_path / "source", SMALLEST), tmp_path / "releases")
    with pytest.raises(DigestMismatch):
        Release.open(tmp_path / "releases", digest)


def test_a_release_behind_a_link_does_not_open(tmp_path: Path) -> None:
    release = Release.publish(write_folder(tmp_path / "source", SMALLEST), tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / release.digest).symlink_to(release.path)
    with pytest.raises(DigestMismatch):
        Release.open(tmp_path / "two", release.digest)
    whole = Release.publish(release.path, tmp_path / "two")
    assert not whole.path.is_symlink()
    assert release.path.is_dir()
