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
from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.errors import KernelStartFailed
from klbr_trio.kernel.marks import MARK_VARIABLE, adopt_orphans, fresh_mark, sweep

if TYPE_CHECKING:
    from klbr_trio.kernel.config import KernelSpec, WorkerConfig

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
            case ["gone", count]:
                self._gone = int(count)
            case _:
                pass

    def how_worker_ended(self) -> str | None:
        """How the worker ended, in words, if the warden has said so."""
        if self._exit is None:
            return None
        status, peak_kib = self._exit
        text = describe_exit(os.waitstatus_to_exitcode(status))
        if status == signal.SIGKILL:
            text += f" (its memory had peaked at {peak_kib // 1024:,} MB)"
        return text

    async def how_warden_ended(self) -> str:
        """How the warden ended, in words. Waits a moment for it."""
        with trio.move_on_after(0.25):
            await trio.lowlevel.wait_readable(self._pidfd)
        code = self._process.poll()
        how = "closed its control socket" if code is None else f"was {describe_exit(code)}"
        return f"its warden {how}"

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
    """A kernel's processes and this host's ends of what connects it to them."""

    warden: Warden
    channel: socket.socket
    output: int


def launch(config: WorkerConfig, spec: KernelSpec) -> Launched:
    """Starts a kernel's processes. Blocks for a millisecond or two.

    Raises:
        KernelStartFailed: They can't be started; nothing is left of the attempt.
    """
    mark = fresh_mark()
    control, warden_end = socket.socketpair()
    channel, worker_end = socket.socketpair()
    output, output_end = os.pipe2(os.O_CLOEXEC)
    try:
        adopt_orphans()
        spec.workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        process = subprocess.Popen(  # noqa: S603  # our own command line
            warden_argv(
                config, control=warden_end.fileno(), channel=worker_end.fileno(), mark=mark
            ),
            cwd=spec.workspace,
            env=environment(config, spec, mark=mark),
            stdin=subprocess.DEVNULL,
            stdout=output_end,
            stderr=output_end,
            pass_fds=(warden_end.fileno(), worker_end.fileno()),
            start_new_session=True,
        )
        pidfd = os.pidfd_open(process.pid)
    except OSError as error:
        control.close()
        channel.close()
        os.close(output)
        raise KernelStartFailed(f"the kernel can't be started: {error}") from error
    finally:
        warden_end.close()
        worker_end.close()
        os.close(output_end)
    for end in (control, channel):
        end.setblocking(False)  # noqa: FBT003
    os.set_blocking(output, False)
    return Launched(Warden(process, pidfd, control, mark), channel, output)


def warden_argv(config: WorkerConfig, *, control: int, channel: int, mark: int) -> list[str]:
    """The warden's command line; what comes after the mark is what it executes as the worker."""
    own = [control, channel, os.getpid(), mark]
    python = str(config.python)
    return [
        *(python, "-I", "-S", str(config.inside / "warden.py"), *map(str, own)),
        *(python, "-I", "-X", "utf8", str(config.inside / "worker.py"), str(channel)),
    ]


def environment(config: WorkerConfig, spec: KernelSpec, *, mark: int) -> dict[str, str]:
    """The environment of a kernel: built from nothing, so that no secret of the host's is in it."""
    path = f"{config.python.parent}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
    return {
        "PATH": path,
        "HOME": str(spec.workspace),
        "USER": "klbr",
        "LOGNAME": "klbr",
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        MARK_VARIABLE: str(mark),
    }


def describe_exit(code: int) -> str:
    """`code` as subprocess has it, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
