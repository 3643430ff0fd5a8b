"""The same, when the service's user is nobody special: with a user that this test makes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from kernel_lab import REPO

USER = "klbr-test"
FILES = (
    "test_escapes.py",
    "test_limits.py",
    "test_stop.py",
    "test_network.py",
    "test_workspace.py",
)
LONGEST_S = 900


def as_user(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    words = ["env", "-i", *(f"{name}={value}" for name, value in environ.items()), *command]
    return subprocess.run(
        ["runuser", "-u", USER, "--", *words],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def make_user() -> None:
    known = subprocess.run(["id", USER], capture_output=True, check=False)
    if known.returncode != 0:
        subprocess.run(["useradd", "--create-home", USER], check=True, capture_output=True)


def an_interpreter(**environ: str) -> str:
    """One of this version that the user can run with what is installed here."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, shutil.which(name, path="/usr/local/bin:/usr/bin")):
        if candidate is None:
            continue
        done = as_user(candidate, "-c", "import trio, pytest, xdist, klbr_trio", **environ)
        if done.returncode == 0:
            return candidate
    pytest.skip(f"another user can read no {name} here")


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a user and become it")
def test_a_sandbox_of_an_ordinary_user_holds_as_well() -> None:
    make_user()
    # A copy, since the checkout may lie where only root can go.
    folder = Path("/tmp", f"klbr-user-{os.getpid()}")  # with a name of this process
    try:
        for part in ("src", "tests", "behavior"):
            shutil.copytree(
                REPO / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".*")
            )
        shutil.copy(REPO / "pyproject.toml", folder)
        subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
        subprocess.run(["chown", "-R", USER, str(folder)], check=True)
        environ = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": f"/home/{USER}",
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{folder / 'src'}:{sysconfig.get_path('purelib')}",
            "KLBR_TEST_LEVELS": os.environ.get("KLBR_TEST_LEVELS", ""),
        }
        python = an_interpreter(**environ)
        done = as_user(
            *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2"),
            # The package is installed by pip of an interpreter that may have none.
            *("--rootdir", str(folder), "-c", str(folder / "pyproject.toml")),
            *("--deselect", "tests/kernel/test_escapes.py::test_a_package_is_installed_into_the_workspace_and_stays"),
            *(str(folder / "tests" / "kernel" / name) for name in FILES),
            **environ,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert " passed" in done.stdout
    finally:
        shutil.rmtree(folder, ignore_errors=True)
