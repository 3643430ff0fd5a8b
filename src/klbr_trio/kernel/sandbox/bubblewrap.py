"""bubblewrap's arguments: which paths a kernel sees, and as what."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import attrs

from klbr_trio.errors import KernelStartFailed
from klbr_trio.kernel.limits import Limits
from klbr_trio.kernel.sandbox.level import Interpreter

WORKSPACE: Final = "/workspace"
RELEASE: Final = "/klbr/release"
INSIDE: Final = "/klbr/inside"
HOME: Final = "/home/klbr"
USER_ID: Final = 1000
"""What a user namespace shows the kernel as."""

_MIB: Final = 1024 * 1024
_LIBRARY_FOLDERS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC: Final = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl", "ca-certificates",
    "ca-certificates.conf", "pki", "crypto-policies", "localtime", "timezone", "mime.types",
    "nsswitch.conf", "protocols", "services", "magic", "fonts", "os-release", "debian_version",
    "gai.conf",
)  # fmt: skip


@attrs.frozen(kw_only=True)
class View:
    """What one kernel sees of the machine.

    Attributes:
        workspace: On the host.
        release: On the host; copied by the worker if it drops its user id, since the folder
            may be readable by the service's user alone.
        uid: The user id to drop to, or None for a user namespace.
        with_proc: Whether it gets a /proc.
        share_net: Whether it has the host's network.
    """

    interpreter: Interpreter
    inside: Path
    workspace: Path
    release: Path
    limits: Limits
    uid: int | None
    with_proc: bool = True
    share_net: bool = False


def arguments(
    view: View, *, info_fd: int, passwd_fd: int, group_fd: int, hosts_fd: int
) -> list[str]:
    """Everything up to the command. The descriptors are bubblewrap's to read and close."""
    return [
        *_namespaces(view),
        *_system(),
        *_data(passwd_fd, "/etc/passwd"),
        *_data(group_fd, "/etc/group"),
        *_data(hosts_fd, "/etc/hosts"),
        *(_bind("/etc/resolv.conf") if view.share_net else []),
        *_pseudo(view),
        *_binds(view),
        *("--chdir", "/"),  # the workspace may be the dropped user's alone
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--info-fd", str(info_fd)),
    ]  # fmt: skip


def _namespaces(view: View) -> list[str]:
    # No new user namespaces inside: bubblewrap's own lock needs one itself; the filter does it too.
    who = (
        ["--unshare-user", "--disable-userns", "--uid", str(USER_ID), "--gid", str(USER_ID)]
        if view.uid is None
        else ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    )
    own = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    net = [] if view.share_net else ["--unshare-net"]
    life = ["--die-with-parent", "--new-session", "--hostname", "klbr"]
    return ["--cap-drop", "ALL", *who, *own, *net, *life]


def _system() -> list[str]:
    found = ["--ro-bind", "/usr", "/usr"]
    for name in _LIBRARY_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            found += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            found += ["--ro-bind", str(path), str(path)]
    if Path("/nix/store").is_dir():
        found += ["--ro-bind", "/nix/store", "/nix/store"]
    found += ["--perms", "0755", "--dir", "/etc"]
    names = [*ETC, *(path.name for path in Path("/etc").glob("python3*"))]
    for name in names:
        found += _bind(f"/etc/{name}")
    return found


def _bind(path: str) -> list[str]:
    return ["--ro-bind", os.path.realpath(path), path] if Path(path).exists() else []


def _data(fd: int, path: str) -> list[str]:
    return ["--perms", "0644", "--ro-bind-data", str(fd), path]


def _pseudo(view: View) -> list[str]:
    proc = ["--proc", "/proc"] if view.with_proc else []
    if view.with_proc and os.getuid() == 0:
        proc += ["--ro-bind", "/proc/sys", "/proc/sys"]
    return [
        *proc,
        *("--dev", "/dev"),
        *_tmpfs("/dev/shm", "1777", 64 * _MIB),  # noqa: S108  # the sandbox's own
        *_tmpfs("/tmp", "1777", view.limits.temporary_bytes),  # noqa: S108  # the sandbox's own
        *_tmpfs("/run", "0755", _MIB),
        *_tmpfs(HOME, "1777", 64 * _MIB),
        *("--perms", "0755", "--dir", "/klbr"),
    ]


def _tmpfs(path: str, mode: str, size: int) -> list[str]:
    return ["--perms", mode, "--size", str(size), "--tmpfs", path]


def _binds(view: View) -> list[str]:
    readable: dict[str, str] = {}
    for prefix in view.interpreter.prefixes:
        guard(prefix, view.workspace)
        readable[str(prefix)] = os.path.realpath(prefix)
    for hop in view.interpreter.hops:
        readable.setdefault(str(hop), os.path.realpath(hop))
    readable = {inner: outer for inner, outer in readable.items() if not _is_there(inner, readable)}
    found = _parents([*readable, INSIDE])
    for inner, outer in sorted(readable.items()):
        found += ["--ro-bind", outer, inner]
    found += ["--ro-bind", str(view.inside), INSIDE]
    if view.uid is None:
        found += ["--ro-bind", str(view.release), RELEASE]
    else:
        found += ["--ro-bind", str(view.release), f"{RELEASE}.source"]
        found += ["--perms", "0755", "--size", str(32 * _MIB), "--tmpfs", RELEASE]
    return [*found, "--bind", str(view.workspace), WORKSPACE]


def _is_there(path: str, others: dict[str, str]) -> bool:
    """Whether `path` lies in /usr or in another of the folders."""
    parents = {str(parent) for parent in Path(path).parents}
    return path == "/usr" or "/usr" in parents or any(other in parents for other in others)


def _parents(paths: list[str]) -> list[str]:
    """Makes the folders above `paths`, since bubblewrap's own are for their owner alone."""
    found: dict[str, None] = {}
    for path in paths:
        for parent in reversed(Path(path).parents[:-1]):
            found[str(parent)] = None
    made = {"/dev", "/tmp", "/run", "/home", HOME, "/klbr", "/usr", "/etc"}  # noqa: S108
    return [
        word for path in found if path not in made for word in ("--perms", "0755", "--dir", path)
    ]


def guard(path: Path, workspace: Path) -> None:
    """Refuses to show a folder that holds what no kernel may see."""
    real = path.resolve()
    forbidden = {Path("/"), Path.home().resolve(), *workspace.resolve().parents}
    if real in forbidden:
        raise KernelStartFailed(
            f"the interpreter's folder {path} holds more than an interpreter (it is /, the home "
            "folder, or a parent of the workspaces): install Python or its virtual environment "
            "in a folder of its own"
        )
