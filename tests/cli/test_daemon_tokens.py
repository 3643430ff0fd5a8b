"""The tokens' files: added to, replaced, refused."""

from __future__ import annotations

import stat
import threading
from typing import TYPE_CHECKING

import pytest

from klbr_trio.daemon.token import (
    MOST_READ_TOKENS,
    add_read_token,
    keep_token,
    load_read_tokens,
    read_token,
    rotate_token,
)
from klbr_trio.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_rotated_token_is_another_and_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = keep_token(path)
    second = rotate_token(path)
    assert first != second == read_token(path) == keep_token(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["token"]


def test_read_only_tokens_are_added_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "read-tokens"
    assert load_read_tokens(path) == ()
    first, second = add_read_token(path), add_read_token(path)
    assert load_read_tokens(path) == (first, second)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    alone = add_read_token(path, alone=True)
    assert load_read_tokens(path) == (alone,)
    assert len({first, second, alone}) == 3


def test_tokens_added_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "read-tokens"
    added: list[str] = []
    threads = [
        threading.Thread(target=lambda: added.append(add_read_token(path))) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(load_read_tokens(path)) == sorted(added)


def test_there_is_a_most(tmp_path: Path) -> None:
    path = tmp_path / "read-tokens"
    path.write_text("a" * 40 + "\n" + f"{'b' * 40}\n" * (MOST_READ_TOKENS - 1))
    path.chmod(0o600)
    before = path.read_text()
    with pytest.raises(ConfigError, match="rotate --read-only"):
        add_read_token(path)
    assert path.read_text() == before
    add_read_token(path, alone=True)
    assert len(load_read_tokens(path)) == 1


@pytest.mark.parametrize("content", ["short\n", "a" * 40 + "\n?\n", "ä" * 40])
def test_what_holds_no_tokens_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "read-tokens"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="does not hold tokens"):
        load_read_tokens(path)


def test_read_only_tokens_that_others_know_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "read-tokens"
    add_read_token(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="open to other users"):
        load_read_tokens(path)
    with pytest.raises(ConfigError, match="open to other users"):
        add_read_token(path)
