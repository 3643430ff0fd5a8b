# Importing pathlib would be a good part of the warden's start.
# ruff: noqa: PTH115, PTH116, PTH123, PTH208
"""The limits of a whole kernel that no single process has: memory and disk.

Run by the warden, outside the sandbox, so that a cell can't stop it, and beside the service, so
that it costs the service nothing. Polling: what a kernel takes between two looks is not seen.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

TYPE_CHECKING = False  # typing itself would be a good part of the warden's start
if TYPE_CHECKING:
    from collections.abc import Callable

    Breach = tuple[str, int, int]  # what, how much, of how much
    Processes = Callable[[], list[str]]  # the folders in /proc of a kernel's processes

LIMITS = ("memory", "disk", "files", "free")
BUSY_S = 0.2  # between two looks at the memory while a cell runs
IDLE_S = 5.0
_SHARE = 20  # a look takes at most this part of the time, however many processes there are
_FREE_S = 1.0
_DISK_FIRST_S, _DISK_S = 1.0, 10.0
_SHARED_MEMORY = ("/memfd:", "/dev/zero (deleted)", "/SYSV")


class Watch:
    """What one kernel takes, looked at now and then."""

    def __init__(self, limits: dict[str, int], *, workspace: str, processes: Processes) -> None:
        self._limits = limits
        self._workspace = workspace
        self._processes = processes
        self.busy = False
        self._disk: DiskUse | None = None
        self._next_memory = time.monotonic() + BUSY_S
        self._next_free = self._next_disk = self._next_memory
        self._had_free = False

    def cell_begins(self) -> None:
        now = time.monotonic()
        self.busy = True
        self._next_memory = min(self._next_memory, now + BUSY_S)
        self._next_free, self._next_disk = now + _FREE_S, now + _DISK_FIRST_S
        self._had_free = self._free() >= self._limits["free"]

    def cell_ended(self) -> None:
        self.busy = False

    def seconds_left(self) -> float:
        """How long until the next look."""
        times = [self._next_memory]
        if self.busy:
            times += [self._next_free, self._next_disk]
        return max(0.0, min(times) - time.monotonic())

    def memory(self) -> Breach | None:
        """Whether the kernel has more memory than it may, if it is time to look."""
        began = time.monotonic()
        if began < self._next_memory:
            return None
        used, limit = (
            memory_of(self._processes(), enough=self._limits["memory"]),
            self._limits["memory"],
        )
        now = time.monotonic()
        pause = BUSY_S if self.busy or used > limit // 2 else IDLE_S
        self._next_memory = now + max(pause, _SHARE * (now - began))
        return ("memory", used, limit) if used > limit else None

    def disk(self) -> Breach | None:
        """Whether the workspace holds more than it may, or too little is free."""
        now = time.monotonic()
        if not self.busy:
            return None
        if now >= self._next_free:
            self._next_free = now + _FREE_S
            free = self._free()
            if self._had_free and free < self._limits["free"]:
                return ("free", free, self._limits["free"])
        if self._disk is None and now >= self._next_disk:
            self._disk = DiskUse(self._workspace)
            self._next_disk = now + _FREE_S
        elif self._disk is not None and now >= self._next_disk:
            return self._measured(now)
        return None

    def _measured(self, now: float) -> Breach | None:
        assert self._disk is not None
        found = self._disk.take()
        self._next_disk = now + (_FREE_S if found is None else _DISK_S)
        if found is None:
            return None
        self._disk = None
        for what, used in zip(("disk", "files"), found, strict=True):
            if used > self._limits[what]:
                return (what, used, self._limits[what])
        return None

    def _free(self) -> int:
        try:
            state = os.statvfs(self._workspace)
        except OSError:
            return 0
        return state.f_bavail * state.f_frsize


def memory_of(processes: list[str], *, enough: int) -> int:
    """The bytes that no file backs, of all of them.

    Shared pages are counted once only if the quick sum, which counts them for each process, comes
    to more than `enough`.
    """
    used = sum(_quick(process) for process in processes)
    held = _shared_files(processes)
    if used + held > enough:
        used = sum(_exact(process) for process in processes)
    return used + held


def _quick(process: str) -> int:
    return _sum(f"{process}/status", b"RssAnon:", b"RssShmem:") or 0


def _exact(process: str) -> int:
    found = _sum(f"{process}/smaps_rollup", b"Pss_Anon:", b"Pss_Shmem:")
    return _quick(process) if found is None else found


def _sum(path: str, *names: bytes) -> int | None:
    """The sum of some lines of a file of procfs, in bytes; None if it can't be read."""
    try:
        with open(path, "rb") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(names))
    except OSError:
        return None


def _shared_files(processes: list[str]) -> int:
    """The memory behind descriptors: it is there whether or not somebody maps it."""
    found: dict[tuple[int, int], int] = {}
    for process in processes:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"{process}/fd"):
                path = f"{process}/fd/{name}"
                with contextlib.suppress(OSError):
                    if os.readlink(path).startswith(_SHARED_MEMORY):
                        state = os.stat(path)
                        found[state.st_dev, state.st_ino] = state.st_blocks * 512
    return sum(found.values())


class DiskUse:
    """What lies in a folder, counted by a child process that nobody waits for."""

    def __init__(self, folder: str) -> None:
        self._read, end = os.pipe()
        os.set_blocking(self._read, False)
        self._child = os.fork()
        if self._child == 0:
            _count_and_exit(folder, end)
        os.close(end)

    def take(self) -> tuple[int, int] | None:
        """Bytes and files, once they have been counted."""
        try:
            text = os.read(self._read, 100).decode()
        except BlockingIOError:
            return None
        os.close(self._read)
        size, _, files = text.partition(" ")
        return (int(size), int(files)) if files else (0, 0)


def _count_and_exit(folder: str, end: int) -> None:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.nice(14)
        size, files = count(folder)
        os.write(end, f"{size} {files}".encode())
    finally:
        os._exit(0)


def count(folder: str) -> tuple[int, int]:
    """The bytes on disk and the entries in and below `folder`, without following a link."""
    size = files = 0
    seen: set[tuple[int, int]] = set()
    for _, folders, names, here in os.fwalk(folder):
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                state = os.stat(name, dir_fd=here, follow_symlinks=False)
                files += 1
                if state.st_nlink > 1 and name not in folders:
                    if (state.st_dev, state.st_ino) in seen:
                        continue
                    seen.add((state.st_dev, state.st_ino))
                size += state.st_blocks * 512
    return size, files
