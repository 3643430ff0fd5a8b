"""The host reads a workspace that a cell has prepared for it."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from klbr_trio.kernel.workspace import WorkspaceRefused, read_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A workspace beside a secret, with every way to it that a cell could make."""
    (tmp_path / "secret").write_text("secret")
    workspace = tmp_path / "workspace"
    (workspace / "folder").mkdir(parents=True)
    (workspace / "plain").write_text("plain")
    (workspace / "folder" / "deep").write_text("deep")
    (workspace / "inner").symlink_to("folder/deep")
    (workspace / "outer").symlink_to(tmp_path / "secret")
    (workspace / "up").symlink_to("../secret")
    (workspace / "dir").symlink_to(tmp_path)
    (workspace / "root").symlink_to("/")
    (workspace / "loop").symlink_to("loop")
    (workspace / "magic").symlink_to("/proc/self/environ")
    (workspace / "nowhere").symlink_to("missing")
    os.mkfifo(workspace / "pipe")
    here = os.open(workspace, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/sock")  # its own path may be too long for a socket
    os.close(here)
    return workspace


@pytest.mark.parametrize(
    ("name", "content"), [("plain", b"plain"), ("folder/deep", b"deep"), ("inner", b"deep")]
)
def test_what_is_inside_is_read(planted: Path, name: str, content: bytes) -> None:
    assert read_file(planted, name, most=100) == content
    assert read_file(planted, name, most=2) == content[:2]


@pytest.mark.parametrize(
    "name",
    [
        "outer", "up", "dir/secret", "root/etc/passwd", "loop", "magic", "nowhere", "missing",
        "pipe", "sock", "folder", ".", "", "..", "../secret", "folder/../../secret", "/etc/passwd",
        "plain/x", "a\0b", "x" * 5000, "\udc00\ud800",
    ],
)  # fmt: skip
def test_nothing_else_is(planted: Path, name: str) -> None:
    with pytest.raises(WorkspaceRefused):
        read_file(planted, name, most=100)


def test_a_workspace_that_is_a_link_is_none(planted: Path) -> None:
    link = planted.with_name("link")
    link.symlink_to(planted)
    with pytest.raises(WorkspaceRefused, match="can't be opened"):
        read_file(link, "plain", most=10)


def test_a_folder_that_is_exchanged_for_a_link_leads_nowhere(planted: Path) -> None:
    """A thread changes it all the time; what is read is the file inside, or nothing."""
    target = planted / "changing"
    (planted / "a").mkdir()
    (planted / "a" / "secret").write_text("inside")
    going_on = threading.Event()

    def exchange() -> None:
        while not going_on.is_set():
            target.symlink_to("a")
            target.unlink()
            target.symlink_to("..")
            target.unlink()

    thread = threading.Thread(target=exchange)
    thread.start()
    found = set()
    try:
        for _ in range(3000):
            try:
                found.add(read_file(planted, "changing/secret", most=10))
            except WorkspaceRefused:
                continue
    finally:
        going_on.set()
        thread.join()
    assert found <= {b"inside"}
