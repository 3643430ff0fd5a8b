"""What a worker gives up before the first line of a release or a cell runs in it.

Imported by path by the worker and the warden, and by nothing that cells import. Everything here
can only be tightened afterwards, by whoever has the process: limits are hard, the user id is the
last one, the filters stay through fork and exec.
"""

from __future__ import annotations

import contextlib
import os
import resource

from confinement import landlock, linux, seccomp

Cage = dict[str, object]

_NEVER = (
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_MEMLOCK, 0),
    (resource.RLIMIT_MSGQUEUE, 0),
    (resource.RLIMIT_SIGPENDING, 256),
)
_BY_NAME = {
    "data": resource.RLIMIT_DATA,
    "fsize": resource.RLIMIT_FSIZE,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
}


def confine(cage: Cage) -> None:
    """This process, and whatever it starts, is held by `cage` for good.

    Args:
        cage: `limits` by name; and where they apply `uid` (to become), `landlock` (see there),
            `seccomp` (`namespaced` or `shared`), `open_net`, `bare` (give up every capability).

    Raises:
        OSError: The operating system refuses a part of it; the process must not go on.
    """
    limits: dict[str, int] = cage.get("limits", {})  # type: ignore[assignment]
    if "uid" in cage:
        _become(int(cage["uid"]))  # type: ignore[call-overload]
    elif cage.get("bare"):
        linux.drop_capabilities()
    if cage.get("seccomp") or "landlock" in cage:
        linux.no_new_privileges()
    for limit, most in _NEVER:
        _lower(limit, most)
    for name, most in limits.items():
        _lower(_BY_NAME[name], most)
    if "landlock" in cage:
        landlock.restrict_files(cage["landlock"])  # type: ignore[arg-type]
    if cage.get("seccomp"):
        seccomp.install(
            shared=cage["seccomp"] == "shared", open_net=bool(cage.get("open_net", False))
        )


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_DUMPABLE, 1)  # else /proc/self belongs to root, /dev/stdout with it


def _lower(limit: int, most: int) -> None:
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    with contextlib.suppress(ValueError):  # this kernel does not know it
        resource.setrlimit(limit, (most, most))
