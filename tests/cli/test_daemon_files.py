from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from klbr_trio.daemon.announcement import Announcement, announced, read_announcement
from klbr_trio.daemon.folder import prepare
from klbr_trio.daemon.private import write_private
from klbr_trio.daemon.token import keep_token, read_token
from klbr_trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

SAYS = Announcement(
    pid=1, url="http://127.0.0.1:1", socket="/x/klbr.sock", started_ms=2, version="3"
)


@pytest.fixture(autouse=True)
def careless_umask() -> Generator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# The folder


def test_a_missing_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "a" / "state")
    assert mode(folder.path) == 0o700


def test_an_open_folder_that_is_ours_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir(mode=0o755)
    (path / "klbr.toml").touch()
    prepare(path)
    assert mode(path) == 0o700


@pytest.mark.parametrize(("open_mode", "name"), [(0o755, "letters"), (0o777, "klbr.toml")])
def test_an_open_folder_that_may_be_somebodys_is_refused_untouched(
    tmp_path: Path, open_mode: int, name: str
) -> None:
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(open_mode)
    (path / name).touch()
    with pytest.raises(ConfigError, match="chmod 700"):
        prepare(path)
    assert mode(path) == open_mode


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="symbolic link"):
        prepare(tmp_path / "state")


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can't be made"):
        prepare(tmp_path / "file" / "state")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="another user"):
        prepare(path)


# The token


def test_a_token_is_made_once_and_is_this_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(FileNotFoundError):
        read_token(path)
    token = keep_token(path)
    assert len(bytes.fromhex(token)) == 32
    assert mode(path) == 0o600
    assert keep_token(path) == read_token(path) == token
    assert keep_token(tmp_path / "other") != token


@pytest.mark.parametrize("open_mode", [0o640, 0o604, 0o666])
def test_a_token_that_others_may_know_is_refused(tmp_path: Path, open_mode: int) -> None:
    path = tmp_path / "token"
    keep_token(path)
    path.chmod(open_mode)
    with pytest.raises(ConfigError, match="open to other users"):
        keep_token(path)


def test_a_planted_link_is_refused_and_its_target_untouched(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "token").symlink_to(target)
    with pytest.raises(ConfigError, match="symbolic link"):
        keep_token(tmp_path / "token")
    assert target.read_text() == "precious"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="symbolic link"):
        keep_token(dangling)
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_in_the_tokens_place_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token", 0o600)
    with pytest.raises(ConfigError, match="plain file"):
        keep_token(tmp_path / "token")


@pytest.mark.parametrize("content", ["", "short", "x" * 31, "with spaces " * 4, "ü" * 40])
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="does not hold a token"):
        keep_token(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_another_users_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    keep_token(path)
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="another user"):
        keep_token(path)


# The announcement


def test_an_announcement_stands_while_the_block_lasts(tmp_path: Path) -> None:
    path = tmp_path / "service.json"
    assert read_announcement(path) is None
    with announced(path, SAYS):
        assert mode(path) == 0o600
        assert read_announcement(path) == SAYS
        assert set(json.loads(path.read_text())) == {
            "pid", "url", "socket", "started_ms", "version",
        }  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_an_announcement_goes_also_by_an_error(tmp_path: Path) -> None:
    path = tmp_path / "service.json"
    with pytest.raises(RuntimeError), announced(path, SAYS):
        raise RuntimeError
    assert not path.exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"pid": 1}', '{"pid": "1", "url": 2}'])
def test_what_says_nothing_sensible_is_no_announcement(tmp_path: Path, content: str) -> None:
    path = tmp_path / "service.json"
    write_private(path, content.encode())
    assert read_announcement(path) is None


def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, b"old")
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_private(tmp_path / "folder", b"x")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]
