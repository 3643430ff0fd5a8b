# Importing pathlib would be a good part of this process's start.
# ruff: noqa: PTH123, PTH208
"""The process between the host and one worker: it outlives the worker and leaves nothing alive.

Started by path: `python -I -S warden.py CONTROL CHANNEL HOST_PID MARK WORKER_ARGV...`.

The warden is a child subreaper: whatever the worker starts, and however often it forks or calls
setsid, becomes the warden's own child at the latest when its parent dies. Having no child left
(ECHILD) therefore proves that nothing of the kernel is left. It ends, killing everything first,
when the worker exits, when the host says so or closes the control socket, and when the host dies.

Control socket, text lines to the host: `worker PID`, `exit WAIT_STATUS MAXRSS_KIB`, `gone COUNT`.
Anything from the host, and the end of its side, means: end now.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Has had no effect since Linux 2.4, is inherited through fork and exec, and can be read.
_RLIMIT_LOCKS = 10
_PASS_S = 0.001  # a pass of the kill loop is repeated at least this often until nothing is left
_HARMLESS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def scan() -> dict[int, list[int]]:
    """Every process's children, by the parent that each process states."""
    by_parent: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fd = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            continue
        try:
            state = os.read(fd, 1024)
        except ProcessLookupError:
            continue
        finally:
            os.close(fd)
        by_parent.setdefault(int(state.rpartition(b")")[2].split()[1]), []).append(int(name))
    return by_parent


def kill_below(top: int) -> None:
    """Sends SIGKILL to every descendant of `top` that one scan finds, parents first.

    What is forked meanwhile, and by a process that has not been reached, is for the next pass.
    """
    by_parent = scan()
    parents = [top]
    while parents:
        for pid in by_parent.get(parents.pop(), ()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            parents.append(pid)


class Warden:
    """One worker and all that comes from it."""

    def __init__(self, *, control: int) -> None:
        self.control = control
        self.worker = 0
        self.worker_ended = False
        self.reaped = 0
        self.wake, wake_end = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, *_HARMLESS):
            signal.signal(number, lambda *_: None)  # caught, not ignored: exec must reset it

    def start(self, argv: list[str], *, channel: int) -> None:
        """Forks and executes the worker in a process group of its own."""
        warden = os.getpid()
        self.worker = os.fork()
        if self.worker == 0:
            self._become(argv, warden=warden, channel=channel)
        os.close(channel)
        self.say(f"worker {self.worker}")

    def _become(self, argv: list[str], *, warden: int, channel: int) -> None:
        try:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != warden:
                return  # it died before the call above; `finally` still ends this process
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the worker has its own handler
            os.nice(5)  # the warden must get its turn among all that the worker starts
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")
            os.set_inheritable(channel, True)  # noqa: FBT003
            os.execv(argv[0], argv)  # noqa: S606  # that is the point
        except OSError as error:
            os.write(2, f"can't start the worker: {error}\n".encode())
        finally:
            os._exit(127)

    def say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the host is gone: that ends this process anyway
            os.write(self.control, line.encode() + b"\n")

    def watch(self) -> None:
        """Returns when the worker has ended or the host wants it to."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.wake, select.POLLIN)
        while not self.worker_ended:
            ready = {fd for fd, _ in poller.poll()}
            if self.control in ready or signal.SIGTERM in self.take_signals():
                return
            self.reap()

    def take_signals(self) -> bytes:
        try:
            return os.read(self.wake, 4096)
        except BlockingIOError:
            return b""

    def reap(self) -> bool:
        """Collects what has died; says whether a child is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.reaped += 1
            if pid == self.worker:
                self.worker_ended = True
                self.say(f"exit {status} {usage.ru_maxrss}")

    def end(self) -> None:
        """Kills until no descendant is left."""
        while self.reap():
            kill_below(os.getpid())
            select.select([self.wake], [], [], _PASS_S)
            self.take_signals()
        self.say(f"gone {self.reaped}")


def main(argv: list[str]) -> None:
    control, channel, host, mark = (int(number) for number in argv[1:5])
    for fd in (control, channel):
        os.set_inheritable(fd, False)  # noqa: FBT003
    warden = Warden(control=control)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.getppid() != host:
        return  # it died before the first call above
    warden.start(argv[5:], channel=channel)
    try:
        warden.watch()
    finally:
        warden.end()


if __name__ == "__main__":
    main(sys.argv)
