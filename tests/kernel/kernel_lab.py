"""What the kernel tests share: a release, a workspace, a running kernel and its processes."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from klbr_trio.kernel import CellResult, Kernel, KernelSpec, WorkerConfig, run_kernel
from klbr_trio.kernel.marks import MARK_VARIABLE
from klbr_trio.kernel.sandbox import Level
from klbr_trio.kernel.sandbox.probe import find_sandbox

REPO = Path(__file__).parents[2]
PLAIN = WorkerConfig.source_tree(REPO)
WANTED = [Level(name) for name in os.environ.get("KLBR_TEST_LEVELS", "").split(",") if name]
"""The levels that this machine must have; without a word each that it has."""

SANDBOXES = WANTED or [Level.FULL, Level.REDUCED]
"""What the tests of a cell's behaviour run behind, one after another."""


def config_of(level: Level) -> WorkerConfig:
    """Kernels behind exactly that level; a machine that hasn't got it can't show anything."""
    if level is Level.NONE:
        return PLAIN
    sandbox = find_sandbox(PLAIN.python, PLAIN.inside, PLAIN.limits, level)
    if sandbox.level is not level:
        (pytest.fail if level in WANTED else pytest.skip)(sandbox.describe())
    return attrs.evolve(PLAIN, sandbox=sandbox, least=level)


CONFIG = PLAIN
FOR_CELLS = CONFIG.inside / "for-cells"
CEILING_S = 30.0
"""Nothing here takes a second; a loaded machine may take its time."""

sys.path.append(str(FOR_CELLS))
sys.path.append(str(CONFIG.inside))

from klbr._kernel.release import digest  # noqa: E402  # found by the lines above


@attrs.define(eq=False)
class Lab:
    """One kernel, and what its cells have said and printed."""

    kernel: Kernel
    workspace: Path
    config: WorkerConfig
    calls: list[tuple[str, Mapping[str, object]]] = attrs.field(factory=list)
    live: list[str] = attrs.field(factory=list)
    answers: dict[str, Exception] = attrs.field(factory=dict)
    """What a call to this target is refused with."""

    async def on_call(self, target: str, args: Mapping[str, object]) -> object:
        await trio.lowlevel.checkpoint()
        if target in self.answers:
            raise self.answers[target]
        self.calls.append((target, args))
        return {"seq": len(self.calls)}

    async def run(self, code: str, *, timeout_s: float | None = None) -> CellResult:
        with trio.fail_after(CEILING_S):
            return await self.kernel.run(
                "call", code, on_call=self.on_call, on_output=self.live.append, timeout_s=timeout_s
            )

    async def value(self, code: str) -> str | None:
        """The value of a cell that must succeed."""
        result = await self.run(code)
        assert result.ok, result.error
        return result.value

    async def error(self, code: str, *, timeout_s: float | None = None) -> str:
        """The error of a cell that must fail."""
        result = await self.run(code, timeout_s=timeout_s)
        assert not result.ok
        assert result.error is not None
        return result.error

    @property
    def said(self) -> list[object]:
        return [args["text"] for target, args in self.calls if target == "local.send"]

    def mark(self) -> int:
        return mark_of(self.kernel.pid)

    @property
    def idle_processes(self) -> int:
        """The warden and the worker, and bubblewrap's two around that."""
        return 4 if self.config.sandbox.level.namespaced else 2

    @property
    def warden(self) -> int:
        """The process between the host and the kernel's first."""
        state = Path(f"/proc/{self.kernel.pid}/stat").read_text()
        return int(state.rpartition(")")[2].split()[1])


def mark_of(pid: int) -> int:
    """The mark of a living process of a kernel."""
    for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name.decode() == MARK_VARIABLE:
            return int(value)
    raise AssertionError(f"process {pid} carries no mark")


def environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


def make_spec(folder: Path, files: Mapping[str, str] | None = None) -> KernelSpec:
    """A release with `files` in it, and a workspace beside it that does not exist yet."""
    release = folder / "release"
    for name, content in {"behavior.toml": 'name = "test"\n', **(files or {})}.items():
        path = release / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return KernelSpec(workspace=folder / "workspace", release=release, digest=digest(str(release)))


@asynccontextmanager
async def open_lab(spec: KernelSpec, config: WorkerConfig = CONFIG) -> AsyncGenerator[Lab]:
    async with trio.open_nursery() as nursery:
        kernel: Kernel = await nursery.start(run_kernel_in, config, spec)
        lab = Lab(kernel, spec.workspace, config)
        yield lab
        nursery.cancel_scope.cancel()


@pytest.fixture(name="lab", params=SANDBOXES, ids=lambda level: level.value)
async def lab_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Lab]:
    """A kernel with an empty release, at each level; import this, and `lab` is there."""
    async with open_lab(make_spec(tmp_path), config_of(request.param)) as opened:
        yield opened


async def run_kernel_in(
    config: WorkerConfig, spec: KernelSpec, *, task_status: trio.TaskStatus[Kernel]
) -> None:
    await run_kernel(config, spec, task_status=task_status)


def processes_of(workspace: Path) -> list[int]:
    """Living processes that were started as a part of the kernel of this workspace."""
    home, warden = f"HOME={workspace}".encode(), f"workspace={workspace}".encode()
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and (
                home in (path / "environ").read_bytes().split(b"\0")
                or warden in (path / "cmdline").read_bytes().split(b"\0")
            ):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def own_children() -> set[int]:
    """This process's children, dead ones that nobody has reaped too."""
    me = os.getpid()
    found = set()
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit():
                state = (path / "stat").read_text()
                if int(state.rpartition(")")[2].split()[1]) == me:
                    found.add(int(path.name))
        except OSError:
            continue
    return found


def open_descriptors() -> int:
    """How many file descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that other processes do."""
    with trio.fail_after(CEILING_S):
        await trio.lowlevel.checkpoint()
        while not condition():  # noqa: ASYNC110  # they ring no bell
            await trio.sleep(0.002)


DAEMONS = """
import os, subprocess, sys
for _ in range({count}):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sh", ["sh", "-c", "while :; do :; done" if {busy} else "exec sleep 1000"],
                      {{}} if {bare} else os.environ)
        os._exit(0)
    os.wait()
"""


def daemons(count: int, *, bare: bool = False, busy: bool = False) -> str:
    """A cell that starts double-forked daemons in sessions of their own.

    Args:
        count: How many.
        bare: With an empty environment.
        busy: Each takes a processor, as far as it can.
    """
    return DAEMONS.format(count=count, bare=bare, busy=busy)
