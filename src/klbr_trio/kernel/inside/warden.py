# Importing pathlib would be a good part of this process's start.
# ruff: noqa: PTH100, PTH120, PTH123, PTH208
"""The process between the host and one worker: it outlives the worker and leaves nothing alive.

Started by path: `python -I -S warden.py NAME=VALUE... -- WORKER_ARGV...`, with these names:
`control`, `pass` (descriptors for the worker, by commas), `host` (its process id), `mark`,
`info` (where bubblewrap states its first process), `inside` (1: keep signals inside), `workspace`,
and the limits `memory`, `disk`, `files` and `free`.

The warden is a child subreaper: whatever the worker starts, and however often it forks or calls
setsid, becomes the warden's own child at the latest when its parent dies. Having no child left
(ECHILD) therefore proves that nothing of the kernel is left. It ends, killing everything first,
when the worker exits, when the host says so or closes the control socket, and when the host dies.

In a process namespace the kernel's own first process is killed, and everything with it, at once.

Control socket, text lines to the host: `worker PID`, `exit WAIT_STATUS MAXRSS_KIB`,
`limit WHAT USED LIMIT`, `gone COUNT`. From the host: `busy` and `idle`, as cells begin and end; the
end of its side means: end now.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from watch import LIMITS, Watch  # found by the line above

TYPE_CHECKING = False  # typing itself would be a good part of this process's start
if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Has had no effect since Linux 2.4, is inherited through fork and exec, and can be read.
_RLIMIT_LOCKS = 10
_NAMESPACE_S = 0.05  # how long the end of a namespace may take until everything is looked for
_PASS_S = 0.001  # a pass of the kill loop is repeated at least this often until nothing is left
_HARMLESS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def parent_of(pid: str) -> int | None:
    """The parent that a process states; None if it has ended."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        state = os.read(fd, 1024)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    return int(state.rpartition(b")")[2].split()[1])


def scan() -> dict[int, list[int]]:
    """Every process's children, by the parent that each process states."""
    by_parent: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = parent_of(name)
            if parent is not None:
                by_parent.setdefault(parent, []).append(int(name))
    return by_parent


def below(top: int) -> Iterator[int]:
    """Every descendant of `top` that one scan finds, parents first."""
    by_parent = scan()
    parents = [top]
    while parents:
        for pid in by_parent.get(parents.pop(), ()):
            yield pid
            parents.append(pid)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_below(top: int) -> None:
    """Sends SIGKILL to every descendant of `top` that one scan finds.

    What is forked meanwhile, and by a process that has not been reached, is for the next pass.
    """
    for pid in below(top):
        kill(pid)


class Warden:
    """One worker and all that comes from it."""

    def __init__(self, options: dict[str, str]) -> None:
        self.control = int(options["control"])
        self.info = int(options["info"]) if "info" in options else None
        self.keeps_signals_inside = "inside" in options
        self.watcher = Watch(
            {name: int(options[name]) for name in LIMITS},
            workspace=options["workspace"],
            processes=self.processes,
        )
        self.worker = 0
        self.first = 0
        self.first_fd = -1
        self.worker_ended = False
        self.reaped = 0
        self.heard = b""
        self.wake, wake_end = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self.control, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, *_HARMLESS):
            signal.signal(number, lambda *_: None)  # caught, not ignored: exec must reset it

    def start(self, argv: list[str], *, handed_on: list[int]) -> None:
        """Forks and executes the worker in a process group of its own."""
        warden = os.getpid()
        self.worker = os.fork()
        if self.worker == 0:
            self._become(argv, warden=warden, handed_on=handed_on)
        for fd in handed_on:
            os.close(fd)
        self.say(f"worker {self.worker}")

    def _become(self, argv: list[str], *, warden: int, handed_on: list[int]) -> None:
        try:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != warden:
                return  # it died before the call above; `finally` still ends this process
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the worker has its own handler
            os.nice(5)  # the warden must get its turn among all that the worker starts
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")
            for fd in handed_on:
                os.set_inheritable(fd, True)  # noqa: FBT003
            os.execv(argv[0], argv)  # noqa: S606  # that is the point
        except OSError as error:
            os.write(2, f"can't start the worker: {error}\n".encode())
        finally:
            os._exit(127)

    def say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the host is gone: that ends this process anyway
            os.write(self.control, line.encode() + b"\n")

    def watch(self) -> None:
        """Returns when the worker has ended, has broken a limit, or the host wants it to."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.wake, select.POLLIN)
        if self.info is not None:
            poller.register(self.info, select.POLLIN)
        while not self.worker_ended:
            timeout_ms = int(self.watcher.seconds_left() * 1000) + 1
            ready = {fd for fd, _ in poller.poll(timeout_ms)}
            if self.info in ready:
                poller.unregister(self.info)
                self._meet_first()
            if self.control in ready and not self._hear():
                return
            if signal.SIGTERM in self.take_signals():
                return
            self.reap()
            if self._breaks_a_limit():
                return

    def _meet_first(self) -> None:
        """Bubblewrap states the process that its namespace begins and ends with."""
        assert self.info is not None
        _, _, rest = os.read(self.info, 4096).partition(b'"child-pid":')
        digits = rest.split(b",")[0].strip(b" \n}")
        first = int(digits) if digits.isdigit() else 0
        # By descriptor, since the number may be another process's by the time it is killed.
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(first)
            if parent_of(str(first)) == self.worker:
                self.first, self.first_fd = first, fd
        os.close(self.info)
        self.info = None

    def _hear(self) -> bool:
        """Takes the host's words; False if it wants everything to end."""
        try:
            data = os.read(self.control, 4096)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *words, self.heard = (self.heard + data).split(b"\n")
        for word in words:
            if word == b"busy":
                self.watcher.cell_begins()
            elif word == b"idle":
                self.watcher.cell_ended()
        return bool(data)

    def _breaks_a_limit(self) -> bool:
        """Tells what is over its limit; True if that is the end."""
        breach = self.watcher.memory()
        if breach is not None:
            self.say("limit {} {} {}".format(*breach))
            return True
        breach = self.watcher.disk()
        if breach is not None:
            self.say("limit {} {} {}".format(*breach))
        return False

    def processes(self) -> list[str]:
        """The folders in /proc of everything below the worker, itself included."""
        inside = f"/proc/{self.first}/root/proc"
        if self.first:
            with contextlib.suppress(OSError):  # without a procfs of its own, for instance
                found = [f"{inside}/{name}" for name in os.listdir(inside) if name.isdigit()]
                if found:
                    return found
        return [f"/proc/{pid}" for pid in below(os.getpid())]

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
        if self.first:
            self._end_namespace()
        elif self.keeps_signals_inside:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(-1, signal.SIGKILL)  # everybody in this process's own domain
        while self.reap():
            kill_below(os.getpid())
            self._nap(_PASS_S)
        self.say(f"gone {self.reaped}")

    def _end_namespace(self) -> None:
        """With the first process of a process namespace ends everything in it."""
        inside = len(self.processes())
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self.first_fd, signal.SIGKILL)
        if not self.worker_ended:  # until it is reaped its number is its own
            kill(self.worker)
        deadline = time.monotonic() + _NAMESPACE_S
        while self.reap() and time.monotonic() < deadline:
            self._nap(_PASS_S)
        self.reaped = max(self.reaped, inside + 1)  # those inside are reaped by the kernel

    def _nap(self, seconds: float) -> None:
        """Until a child has ended, or so long."""
        select.select([self.wake], [], [], seconds)
        self.take_signals()


def keep_signals_inside(host: int) -> None:
    """This process and what it starts can signal nobody else, and that was seen to be so.

    `kill(-1)` without it would end everything that this user has.
    """
    from confinement import landlock  # noqa: PLC0415  # not needed by most wardens

    landlock.keep_signals_inside()
    try:
        os.kill(host, 0)
    except PermissionError:
        return
    raise OSError(0, "signals don't stay inside")


def main(argv: list[str]) -> None:
    end = argv.index("--")
    options = dict(word.split("=", 1) for word in argv[1:end])
    handed_on = [int(fd) for fd in options["pass"].split(",")]
    for fd in (int(options["control"]), *handed_on):
        os.set_inheritable(fd, False)  # noqa: FBT003
    warden = Warden(options)
    mark, host = int(options["mark"]), int(options["host"])
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.getppid() != host:
        return  # it died before the first call above
    if warden.keeps_signals_inside:
        keep_signals_inside(host)
    warden.start(argv[end + 1 :], handed_on=handed_on)
    try:
        warden.watch()
    finally:
        warden.end()
    os._exit(0)  # the host waits for this process's end: nothing is left to be tidied up


if __name__ == "__main__":
    main(sys.argv)
