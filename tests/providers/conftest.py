"""A provider that nobody here wrote and that breaks on demand: `llmock`, in a folder of its own.

It grades its clients, too: what it finds fault with in ours fails the test.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

LLMOCK = "llmock==0.2.2"
CACHE = Path(__file__).parents[2] / ".cache"
_START = "import sys; from llmock.cli import app; app(sys.argv[1:])"


@pytest.fixture(scope="session")
def llmock_packages() -> Path:
    """Where it is installed, apart from the project's own packages; fetched once."""
    home = CACHE / LLMOCK.replace("==", "-")
    if not home.is_dir():
        _fetch(home)
    return home


def _fetch(home: Path) -> None:
    part = home.with_name(f"{home.name}.{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(part), LLMOCK]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        if os.environ.get("CI"):
            pytest.fail(f"{LLMOCK} can't be fetched: {done.stderr}")
        pytest.skip(f"{LLMOCK} can't be fetched; it needs a package index")
    try:
        part.rename(home)
    except OSError:  # another worker was quicker
        shutil.rmtree(part)


@pytest.fixture(scope="session")
def llmock_url(llmock_packages: Path) -> Generator[str]:
    """The address of a server that runs until the tests are over."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _START, "serve", "--port", str(port), "--log-level", "warning"],
        env={**os.environ, "PYTHONPATH": str(llmock_packages)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(f"{url}/_llmock/verdict", process)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        assert process.poll() is None, "llmock has ended"
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    pytest.fail("llmock did not come up")
