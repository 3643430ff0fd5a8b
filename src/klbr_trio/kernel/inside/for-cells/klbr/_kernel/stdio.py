"""File descriptors 0 to 2 and `sys.std*`, put right before every cell.

Descriptors 1 and 2 are one pipe to the host, so the order of what is written is kept. Nothing is
buffered in Python: what a cell has printed is in the pipe, whatever happens to the process next.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import os
import select
import sys

_KEPT_FROM = 200  # the duplicate's number: out of the way of cells that close low descriptors


class PipeWriter(io.BufferedIOBase):
    """Writes everything to a descriptor that it does not own, at once."""

    def __init__(self, fd: int, *, name: str) -> None:
        self._fd = fd
        self.name = name

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # whatever has a buffer
        rest = view
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # some subprocess has made the pipe non-blocking
                select.select([], [self._fd], [])
        return len(view)


class Stdio:
    """Keeps a duplicate of the pipe, and repairs what a cell has closed or replaced."""

    def __init__(self) -> None:
        self._kept = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _KEPT_FROM)
        self._pipe = _identity(self._kept)
        self._libc = ctypes.CDLL(None)
        self._c_stdout = ctypes.c_void_p.in_dll(self._libc, "stdout")
        self._in, self._out, self._err = _reader(), _writer(1), _writer(2)
        self.restore()

    def restore(self) -> None:
        """Descriptors 0 to 2 and the three `sys` objects are what a cell expects."""
        self._restore_descriptors()
        if self._in.closed:
            self._in = _reader()
        if self._out.closed:
            self._out = _writer(1)
        if self._err.closed:
            self._err = _writer(2)
        sys.stdin, sys.stdout, sys.stderr = self._in, self._out, self._err
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = self._in, self._out, self._err  # type: ignore[misc]

    def _restore_descriptors(self) -> None:
        if _identity(0) is None:
            null = os.open(os.devnull, os.O_RDONLY)
            if null != 0:
                os.dup2(null, 0)
                os.close(null)
        if _identity(self._kept) != self._pipe:
            return
        for fd in (1, 2):
            if _identity(fd) != self._pipe:
                os.dup2(self._kept, fd, inheritable=True)

    def flush(self) -> None:
        """What the cell wrote is in the pipe, by C code too."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        # Not fflush(NULL): that waits for a stream which another thread is reading from.
        self._libc.fflush(self._c_stdout)


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _reader() -> io.TextIOWrapper:
    return open(0, encoding="utf-8", errors="replace", closefd=False)


def _writer(fd: int) -> io.TextIOWrapper:
    pipe = PipeWriter(fd, name=("<stdin>", "<stdout>", "<stderr>")[fd])
    return io.TextIOWrapper(
        pipe,
        encoding="utf-8",
        errors="backslashreplace",
        write_through=True,
    )
