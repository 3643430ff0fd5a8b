"""One kernel's walls: the command line, the environment and the cage that make its level."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from klbr_trio.kernel.limits import Limits
from klbr_trio.kernel.sandbox import bubblewrap
from klbr_trio.kernel.sandbox.level import Level

if TYPE_CHECKING:
    from klbr_trio.kernel.sandbox.level import Interpreter, Sandbox

_FIRST_UID: Final = 1_000_000
_UIDS: Final = 2_000_000_000

_DEVICES: Final = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
_PROC: Final = ("self", "cpuinfo", "meminfo", "stat", "version", "filesystems", "uptime", "loadavg")


@attrs.frozen(kw_only=True)
class Outside:
    """What a kernel is made of, by its paths on the host."""

    python: Path
    inside: Path
    workspace: Path
    release: Path
    limits: Limits
    share_net: bool
    """Whether it has the host's network."""
    proxy_port: int | None = None
    """Where the proxy listens, if it does on the host's loopback."""


@attrs.define(eq=False)
class Enclosure:
    """How one kernel is started. Owns the descriptors until `close`."""

    argv: list[str]
    """Executed by the warden; the channel's number comes after it."""
    workspace: str
    """The paths as the worker has them."""
    release: str
    release_source: str | None
    """Where the worker copies the release from before it gives up the right to read it."""
    home: str
    temporary: str | None
    cage: Mapping[str, object]
    keeps_signals_inside: bool = False
    uid: int | None = None
    info_fd: int | None = None
    """Where bubblewrap states its first process; for the warden to read."""
    fds: list[int] = attrs.field(factory=list)
    """To be passed on."""

    def close(self) -> None:
        """The host's copies of the descriptors are closed."""
        for fd in (*self.fds, *(() if self.info_fd is None else (self.info_fd,))):
            os.close(fd)
        self.fds.clear()
        self.info_fd = None


def enclose(sandbox: Sandbox, outside: Outside) -> Enclosure:
    """The walls of `sandbox`'s level around one kernel; makes the workspace if it is missing.

    Raises:
        OSError: The workspace can't be made, or there is no descriptor left.
        KernelStartFailed: The interpreter's folder must not be shown.
    """
    outside.workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sandbox.level.namespaced:
        return _in_namespaces(sandbox, outside)
    _hand_over(outside.workspace, os.getuid())
    if sandbox.level is Level.REDUCED:
        return _behind_landlock(sandbox, outside)
    return Enclosure(
        argv=_worker(str(outside.python), str(outside.inside)),
        workspace=str(outside.workspace),
        release=str(outside.release),
        release_source=None,
        home=str(outside.workspace),
        temporary=None,
        cage={"limits": _limits(outside.limits)},
    )


def _worker(python: str, inside: str) -> list[str]:
    return [python, "-I", "-X", "utf8", f"{inside}/worker.py"]


def _limits(limits: Limits, *, alone: bool = False) -> dict[str, int]:
    found = {
        "data": limits.process_memory_bytes,
        "fsize": limits.file_bytes,
        "nofile": limits.open_files,
    }
    # It counts the user's processes: with others of the same user around it means nothing.
    return {**found, "nproc": limits.processes} if alone else found


def _in_namespaces(sandbox: Sandbox, outside: Outside) -> Enclosure:
    assert sandbox.interpreter is not None
    uid = session_uid(outside.workspace) if sandbox.drops_uid else None
    _hand_over(outside.workspace, os.getuid() if uid is None else uid)
    info, info_end = os.pipe2(os.O_CLOEXEC)
    fds = [info_end]
    try:
        number = bubblewrap.USER_ID if uid is None else uid
        for name, text in _identities(number).items():
            fds.append(_memory_file(name, text))
        view = bubblewrap.View(
            interpreter=sandbox.interpreter,
            inside=outside.inside,
            workspace=outside.workspace,
            release=outside.release,
            limits=outside.limits,
            uid=uid,
            with_proc=sandbox.level is Level.FULL,
            share_net=outside.share_net,
        )
        words = bubblewrap.arguments(
            view, info_fd=fds[0], passwd_fd=fds[1], group_fd=fds[2], hosts_fd=fds[3]
        )
        fds.append(_memory_file("arguments", "".join(f"{word}\0" for word in words)))
    except BaseException:
        for fd in (info, *fds):
            os.close(fd)
        raise
    cage: dict[str, object] = {
        "limits": _limits(outside.limits, alone=True),
        "seccomp": "namespaced",
        **({} if uid is None else {"uid": uid}),
    }
    return Enclosure(
        argv=[
            *(str(sandbox.bwrap), "--args", str(fds[-1]), "--"),
            *_worker(str(outside.python), bubblewrap.INSIDE),
        ],
        workspace=bubblewrap.WORKSPACE,
        release=bubblewrap.RELEASE,
        release_source=None if uid is None else f"{bubblewrap.RELEASE}.source",
        home=bubblewrap.HOME,
        temporary="/tmp",  # noqa: S108  # the sandbox's own
        cage=cage,
        uid=uid,
        info_fd=info,
        fds=fds,
    )


def _behind_landlock(sandbox: Sandbox, outside: Outside) -> Enclosure:
    assert sandbox.interpreter is not None
    for prefix in sandbox.interpreter.prefixes:
        bubblewrap.guard(prefix, outside.workspace)
    temporary = outside.workspace / ".tmp"
    with contextlib.suppress(FileExistsError):
        temporary.mkdir(mode=0o700)
    reach = {
        "read": [
            *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
            *(f"/etc/{name}" for name in (*bubblewrap.ETC, "passwd", "group", "hosts")),
            *_readable(sandbox.interpreter),
            *map(str, (outside.inside, outside.release)),
            *(f"/proc/{name}" for name in _PROC),
            *(["/etc/resolv.conf"] if outside.share_net else []),
        ],
        "write": [str(outside.workspace)],
        "device": list(_DEVICES),
        "connect": [] if outside.proxy_port is None else [outside.proxy_port],
        "any_port": ["all"] if outside.share_net else [],
    }
    cage: dict[str, object] = {
        "limits": _limits(outside.limits),
        "seccomp": "shared",
        "landlock": reach,
        "open_net": outside.share_net,
        "bare": sandbox.keeps_root,
    }
    return Enclosure(
        argv=_worker(str(outside.python), str(outside.inside)),
        workspace=str(outside.workspace),
        release=str(outside.release),
        release_source=None,
        home=str(outside.workspace),
        temporary=str(temporary),
        cage=cage,
        keeps_signals_inside=True,
    )


def _readable(interpreter: Interpreter) -> list[str]:
    return [str(path) for path in (*interpreter.prefixes, *interpreter.hops)]


def session_uid(workspace: Path) -> int:
    """A user id for the session with this workspace, the same each time.

    Two sessions in a million share one; they are apart by their namespaces, too.
    """
    digest = hashlib.sha256(os.fsencode(workspace.resolve())).digest()
    return _FIRST_UID + int.from_bytes(digest[:8], "big") % _UIDS


def _hand_over(workspace: Path, uid: int) -> None:
    """Everything in the workspace belongs to `uid`, if it belonged to somebody else before."""
    if os.getuid() != 0 or workspace.stat().st_uid == uid:
        return
    for _, folders, files, here in os.fwalk(workspace):
        for name in (*folders, *files):
            os.chown(name, uid, uid, dir_fd=here, follow_symlinks=False)
    os.chown(workspace, uid, uid)


def _identities(uid: int) -> dict[str, str]:
    home = bubblewrap.HOME
    return {
        "passwd": f"root:x:0:0::/:/bin/sh\nklbr:x:{uid}:{uid}::{home}:/bin/sh\n",
        "group": f"root:x:0:\nklbr:x:{uid}:\n",
        "hosts": "127.0.0.1 localhost klbr\n::1 localhost\n",
    }


def _memory_file(name: str, text: str) -> int:
    fd = os.memfd_create(f"klbr {name}", os.MFD_CLOEXEC)
    os.write(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
