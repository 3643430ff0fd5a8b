"""The host's handle of a kernel's processes: started here, ended here, all of them.

Started by `subprocess.Popen` in the thread that runs Trio. `trio.lowlevel.open_process` forks in
a worker thread, and the warden's death signal is tied to the thread that forked it: Trio retires
idle threads after ten seconds, and with the thread goes the kernel.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.errors import KernelStartFailed
from klbr_trio.kernel.limits import Breach
from klbr_trio.kernel.marks import MARK_VARIABLE, adopt_orphans, fresh_mark, sweep
from klbr_trio.kernel.network import Network
from klbr_trio.kernel.network.way_out import Exit, open_exit
from klbr_trio.kernel.sandbox.enclosure import Outside, enclose

if TYPE_CHECKING:
    from klbr_trio.kernel.config import KernelSpec, WorkerConfig
    from klbr_trio.kernel.sandbox.enclosure import Enclosure

_BY_SIGNAL: Final = 128
_WARDEN_S: Final = 2.0
"""A warden that takes longer to kill everything is stopped or stuck: the host does it."""
END_S: Final = 6.0
"""The bound of `end` as a whole: the warden's time, then two seconds for a sweep, and some."""


@attrs.frozen(kw_only=True)
class Killed:
    """What ending a kernel came to."""

    processes: int
    """How many were found and reaped."""
    survivors: tuple[int, ...]
    """What was still there when the time was over: normally nothing."""
    ms: float
    """From the kill's beginning to the last process's end."""


@attrs.define(eq=False)
class Warden:
    """One warden process, the worker under it, and whatever that has started."""

    _process: subprocess.Popen[bytes]
    _pidfd: int
    _control: socket.socket
    _mark: int
    _namespaced: bool
    on_breach: Callable[[Breach], None] = lambda _: None
    """Told a limit of the whole kernel that is broken."""
    worker: int | None = None
    """The worker's process id, once the warden has stated it."""
    _exit: tuple[int, int] | None = None
    _gone: int | None = None
    _rest: bytes = b""
    _asked_at: float | None = None
    announced: trio.Event = attrs.field(factory=trio.Event)
    """Set once `worker` is known."""
    worker_ended: trio.Event = attrs.field(factory=trio.Event)
    """Set once the warden has said how the worker ended."""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def listen(self) -> None:
        """Takes the warden's words until it has closed its end."""
        while True:
            await trio.lowlevel.wait_readable(self._control)
            if not self._hear():
                return

    def _hear(self) -> bool:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line.decode("ascii", "replace").split())
        return bool(data)

    def _take(self, words: list[str]) -> None:
        match words:
            case ["worker", pid]:
                self.worker = int(pid)
                self.announced.set()
            case ["exit", status, peak_kib]:
                self._exit = (int(status), int(peak_kib))
                self.worker_ended.set()
            case ["limit", what, used, limit]:
                self.on_breach(Breach(what, int(used), int(limit)))
            case ["gone", count]:
                self._gone = int(count)
            case _:
                pass

    def how_worker_ended(self) -> str | None:
        """How the worker ended, in words, if the warden has said so."""
        if self._exit is None:
            return None
        status, peak_kib = self._exit
        code = os.waitstatus_to_exitcode(status)
        if self._namespaced and code > _BY_SIGNAL:
            code = _BY_SIGNAL - code  # bubblewrap's way to say so
        text = describe_exit(code)
        if code == -signal.SIGKILL:
            text += f" (its memory had peaked at {peak_kib // 1024:,} MB)"
        return text

    async def how_warden_ended(self) -> str:
        """How the warden ended, in words. Waits a moment for it."""
        with trio.move_on_after(0.25):
            await trio.lowlevel.wait_readable(self._pidfd)
        code = self._process.poll()
        how = "closed its control socket" if code is None else f"was {describe_exit(code)}"
        return f"its warden {how}"

    def note_busy(self, *, busy: bool) -> None:
        """The warden looks closer while a cell runs."""
        with contextlib.suppress(OSError):  # it is gone, which is seen elsewhere
            self._control.send(b"busy\n" if busy else b"idle\n")

    def ask_to_end(self) -> None:
        """The warden begins to kill everything. Returns at once; may be called again."""
        if self._asked_at is None:
            self._asked_at = trio.current_time()
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)

    async def end(self) -> Killed:
        """Nothing of this kernel is alive, and all of it is reaped, when this returns.

        Cancellation: must be called under a shield of `END_S`; without the end of its work it
        leaves the rest to the death signals.
        """
        self.ask_to_end()
        assert self._asked_at is not None
        if not await self._warden_exits(_WARDEN_S):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await self._warden_exits(_WARDEN_S / 2)
        while self._gone is None and self._hear():
            if self._process.poll() is None:
                break
        swept, survivors = 0, tuple[int, ...]()
        if self._gone is None:
            swept, survivors = await sweep(self._mark, deadline=trio.current_time() + 2.0)
        return Killed(
            processes=(self._gone or 0) + swept,
            survivors=survivors,
            ms=(trio.current_time() - self._asked_at) * 1000,
        )

    async def _warden_exits(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await trio.lowlevel.wait_readable(self._pidfd)
        return self._process.poll() is not None

    def close(self) -> None:
        os.close(self._pidfd)
        self._control.close()


@attrs.frozen
class Launched:
    """A kernel's processes, this host's ends of what connects it to them, and what to start with."""

    warden: Warden
    channel: socket.socket
    output: int
    start: dict[str, object]
    exit: Exit


def launch(config: WorkerConfig, spec: KernelSpec) -> Launched:
    """Starts a kernel's processes. Blocks for a millisecond or two.

    Raises:
        KernelStartFailed: They can't be started, or the sandbox is less than is asked for; nothing
            is left of the attempt.
    """
    config.check_sandbox()
    try:
        return _launch(config, spec)
    except OSError as error:
        raise KernelStartFailed(f"the kernel can't be started: {error}") from error


def _launch(config: WorkerConfig, spec: KernelSpec) -> Launched:
    way_out = open_exit(config)
    mark = fresh_mark()
    control, warden_end = socket.socketpair()
    channel, worker_end = socket.socketpair()
    output, output_end = os.pipe2(os.O_CLOEXEC)
    enclosure: Enclosure | None = None
    try:
        adopt_orphans()
        enclosure = enclose(config.sandbox, _outside(config, spec, way_out))
        if enclosure.uid is not None:
            os.fchown(output_end, enclosure.uid, -1)  # /dev/stdout is opened, not inherited
        passed = [worker_end.fileno(), *enclosure.fds, *way_out.passed]
        kept = [warden_end.fileno()]
        if enclosure.info_fd is not None:
            kept.append(enclosure.info_fd)
        process = subprocess.Popen(  # noqa: S603  # our own command line
            [
                *(str(config.python), "-I", "-S", str(config.inside / "warden.py")),
                *_options(config, spec, enclosure, mark=mark, control=kept[0], passed=passed),
                *("--", *enclosure.argv, str(worker_end.fileno())),
            ],
            cwd="/" if enclosure.uid is not None else spec.workspace,
            env=environment(config, enclosure, mark=mark) | way_out.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output_end,
            stderr=output_end,
            pass_fds=(*passed, *kept),
            start_new_session=True,
        )
        pidfd = os.pidfd_open(process.pid)
    except BaseException:
        control.close()
        channel.close()
        os.close(output)
        way_out.close()
        raise
    finally:
        warden_end.close()
        worker_end.close()
        os.close(output_end)
        way_out.handed_over()
        if enclosure is not None:
            enclosure.close()
    for end in (control, channel):
        end.setblocking(False)  # noqa: FBT003
    os.set_blocking(output, False)
    warden = Warden(process, pidfd, control, mark, config.sandbox.level.namespaced)
    return Launched(warden, channel, output, _start(enclosure, way_out), way_out)


def _outside(config: WorkerConfig, spec: KernelSpec, way_out: Exit) -> Outside:
    return Outside(
        python=config.python,
        inside=config.inside,
        workspace=spec.workspace,
        release=spec.release,
        limits=config.limits,
        share_net=config.network is Network.OPEN,
        proxy_port=way_out.port,
    )


def _start(enclosure: Enclosure, way_out: Exit) -> dict[str, object]:
    return {
        "op": "start",
        "release": enclosure.release,
        "release_source": enclosure.release_source,
        "workspace": enclosure.workspace,
        "cage": enclosure.cage,
        "proxy": way_out.worker_fd,
    }


def _options(
    config: WorkerConfig,
    spec: KernelSpec,
    enclosure: Enclosure,
    *,
    mark: int,
    control: int,
    passed: list[int],
) -> list[str]:
    """What the warden is told; its own file has their names."""
    limits = config.limits
    options: dict[str, object] = {
        "control": control,
        "pass": ",".join(map(str, passed)),
        "host": os.getpid(),
        "mark": mark,
        "workspace": spec.workspace,
        "memory": limits.memory_bytes,
        "disk": limits.disk_bytes,
        "files": limits.disk_files,
        "free": limits.free_bytes,
    }
    if enclosure.info_fd is not None:
        options["info"] = enclosure.info_fd
    if enclosure.keeps_signals_inside:
        options["inside"] = 1
    return [f"{name}={value}" for name, value in options.items()]


def environment(config: WorkerConfig, enclosure: Enclosure, *, mark: int) -> dict[str, str]:
    """The environment of a kernel: built from nothing, so that no secret of the host's is in it."""
    path = f"{config.python.parent}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
    found = {
        "PATH": path,
        "HOME": enclosure.home,
        "USER": "klbr",
        "LOGNAME": "klbr",
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "PIP_TARGET": f"{enclosure.workspace}/.lib",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        MARK_VARIABLE: str(mark),
    }
    return found if enclosure.temporary is None else {**found, "TMPDIR": enclosure.temporary}


def describe_exit(code: int) -> str:
    """`code` as subprocess has it, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
