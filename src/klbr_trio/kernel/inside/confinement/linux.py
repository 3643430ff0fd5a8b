"""The few system calls that Python has no name for."""

from __future__ import annotations

import ctypes
import struct

PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *values: int) -> int:
    """Calls prctl; raises OSError."""
    filled = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    return checked(int(libc.prctl(option, *filled)), f"prctl({option})")


def syscall(number: int, *values: object) -> int:
    """Calls system call `number`; raises OSError."""
    return checked(int(libc.syscall(number, *values)), f"system call {number}")


def checked(result: int, what: str) -> int:
    """`result`, unless it says that `what` has failed."""
    if result == -1:
        raise OSError(ctypes.get_errno(), what)
    return result


def no_new_privileges() -> None:
    """No program that this process executes has more rights than it."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """This process has no capability, in no set, and can get none by executing a program."""
    number = 0
    while True:
        try:
            held = prctl(_PR_CAPBSET_READ, number)
        except OSError:
            break  # the last one is behind us
        if held:
            try:
                prctl(_PR_CAPBSET_DROP, number)
            except PermissionError:
                break  # without CAP_SETPCAP: no_new_privileges does the same
        number += 1
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    checked(int(libc.capset(header, bytes(24))), "capset")
