"""The system calls that no cell needs, refused by the kernel before they do anything.

A list of what is denied, not of what is allowed: libraries come with calls that nobody has heard
of, and the other walls stand behind this one. It takes away what has nothing to do with a cell's
work and much to do with escapes: mounts, namespaces, other processes' memory, kernel modules.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from confinement import linux

# Names with their numbers on x86_64 and aarch64; None: not there.
_DENIED: tuple[tuple[str, int | None, int | None], ...] = (
    ("ptrace", 101, 117),
    ("process_vm_readv", 310, 270),
    ("process_vm_writev", 311, 271),
    ("process_madvise", 440, 440),
    ("pidfd_getfd", 438, 438),
    ("kcmp", 312, 272),
    ("mount", 165, 40),
    ("umount2", 166, 39),
    ("pivot_root", 155, 41),
    ("chroot", 161, 51),
    ("open_tree", 428, 428),
    ("move_mount", 429, 429),
    ("fsopen", 430, 430),
    ("fsconfig", 431, 431),
    ("fsmount", 432, 432),
    ("fspick", 433, 433),
    ("mount_setattr", 442, 442),
    ("open_tree_attr", 467, 467),
    ("setns", 308, 268),
    ("unshare", 272, 97),
    ("bpf", 321, 280),
    ("perf_event_open", 298, 241),
    ("userfaultfd", 323, 282),
    ("add_key", 248, 217),
    ("request_key", 249, 218),
    ("keyctl", 250, 219),
    ("io_uring_setup", 425, 425),
    ("io_uring_enter", 426, 426),
    ("io_uring_register", 427, 427),
    ("kexec_load", 246, 104),
    ("kexec_file_load", 320, 294),
    ("init_module", 175, 105),
    ("finit_module", 313, 273),
    ("delete_module", 176, 106),
    ("create_module", 174, None),
    ("swapon", 167, 224),
    ("swapoff", 168, 225),
    ("reboot", 169, 142),
    ("sethostname", 170, 161),
    ("setdomainname", 171, 162),
    ("open_by_handle_at", 304, 265),
    ("name_to_handle_at", 303, 264),
    ("fanotify_init", 300, 262),
    ("syslog", 103, 116),
    ("acct", 163, 89),
    ("quotactl", 179, 60),
    ("quotactl_fd", 443, 443),
    ("personality", 135, 92),
    ("clock_settime", 227, 112),
    ("clock_adjtime", 305, 266),
    ("settimeofday", 164, 170),
    ("adjtimex", 159, 171),
    ("iopl", 172, None),
    ("ioperm", 173, None),
    ("lookup_dcookie", 212, 18),
    ("nfsservctl", 180, 42),
    ("vhangup", 153, 58),
    ("uselib", 134, None),
    ("ustat", 136, None),
    ("sysfs", 139, None),
    ("_sysctl", 156, None),
    ("modify_ldt", 154, None),
    ("migrate_pages", 256, 238),
    ("move_pages", 279, 239),
)

# What acts on any process of the same user, by its number in the first argument (0: itself).
# Landlock keeps signals inside, not these; in a process namespace there is nobody else to name.
_OF_OTHERS: tuple[tuple[str, int, int], ...] = (
    ("prlimit64", 302, 261),
    ("sched_setaffinity", 203, 122),
    ("sched_setscheduler", 144, 119),
    ("sched_setparam", 142, 118),
    ("sched_setattr", 314, 274),
)
# Landlock has no rules for modes and owners, and the user owns more than the workspace. These say
# that they have succeeded and change nothing: what unpacks or copies files goes on.
_MODES: tuple[tuple[int | None, int | None], ...] = (
    (90, None),  # chmod
    (91, 52),  # fchmod
    (268, 53),  # fchmodat
    (452, 452),  # fchmodat2
    (92, None),  # chown
    (93, 55),  # fchown
    (94, None),  # lchown
    (260, 54),  # fchownat
)
_ATTRIBUTES = ((188, 5), (189, 6), (190, 7), (197, 14), (198, 15), (199, 16))  # extended ones
_SETPRIORITY, _IOPRIO_SET = (141, 140), (251, 30)
_SHMGET, _SYSTEM_V = (29, 194), ((64, 190), (68, 186))  # segments outlive everybody who used them
# With this flag they connect, and Landlock is not asked; the number is that of its argument.
_MSG_FASTOPEN = 0x20000000
_SENDS = ((44, 206, 3), (46, 211, 2), (307, 269, 3))
_CLONE, _CLONE3, _IOCTL, _SOCKET = (56, 220), (435, 435), (16, 29), (41, 198)

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
_CLONE_NEW = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_TYPE = 1, 0xF
_TCP = 6

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; arguments take 8 bytes
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def supported() -> bool:
    """Whether the numbers above are those of this machine."""
    return os.uname().machine in _AUDIT_ARCH


def install(*, shared: bool, open_net: bool) -> None:
    """The calls above are refused from here on, in this thread and what it starts.

    Args:
        shared: Other users' and sessions' processes are within reach, since there is no
            namespace: then no sockets but those of TCP, and no calls that act on others.
        open_net: Sockets of every internet protocol, whatever `shared` says.

    Raises:
        OSError: The kernel refuses, or this machine is of another kind.
    """
    machine = os.uname().machine
    if machine not in _AUDIT_ARCH:
        raise OSError(errno.ENOSYS, f"no filter for {machine}")
    steps = program(machine, shared=shared, open_net=open_net)
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    filled = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(buffer)))
    linux.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(filled))


def program(machine: str, *, shared: bool, open_net: bool) -> list[Instruction]:
    """The filter for one kind of machine."""
    at = 0 if machine == "x86_64" else 1
    steps: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, _X32), _refuse(errno.EPERM)]
    for _, *numbers in _DENIED:
        number = numbers[at]
        if number is not None:
            steps += _when(number, [_refuse(errno.EPERM)])
    steps += _when(_SHMGET[at], [_refuse(errno.EPERM)])
    steps += _when(_CLONE3[at], [_refuse(errno.ENOSYS)])  # glibc then takes clone
    steps += _when(_CLONE[at], [*_argument(0), (_ANY_BIT, 0, 1, _CLONE_NEW), _refuse(errno.EPERM)])
    steps += _when(_IOCTL[at], _refuse_if(1, _TIOCSTI, _TIOCLINUX))
    steps += _when(_SOCKET[at], _sockets(shared=shared, open_net=open_net))
    if shared:
        steps += _on_others(at)
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _argument(number: int) -> list[Instruction]:
    return [(_LOAD, 0, 0, _ARGUMENT + 8 * number)]  # the low half, on a little-endian machine


def _when(number: int, steps: list[Instruction]) -> list[Instruction]:
    """`steps` for that system call; what falls out of them is allowed."""
    inner = [*steps, (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(inner), number), *inner]


def _refuse_if(argument: int, *values: int) -> list[Instruction]:
    steps = _argument(argument)
    for value in values:
        steps += [(_EQUAL, 0, 1, value), _refuse(errno.EPERM)]
    return steps


def _sockets(*, shared: bool, open_net: bool) -> list[Instruction]:
    if not shared:
        return _families(_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)
    return _families(_AF_INET, _AF_INET6) if open_net else _tcp_only()


def _families(*families: int) -> list[Instruction]:
    """Anything else may reach past the namespaces, as AF_VSOCK reaches a virtual machine's host."""
    steps = _argument(0)
    for index, family in enumerate(families):
        steps.append((_EQUAL, len(families) - index, 0, family))
    return [*steps, _refuse(errno.EAFNOSUPPORT)]


def _tcp_only() -> list[Instruction]:
    """The one kind of socket that Landlock has rules for; MPTCP and SCTP would pass them by."""
    refused = _refuse(errno.EAFNOSUPPORT)
    return [
        *_argument(0),
        (_EQUAL, 2, 0, _AF_INET),
        (_EQUAL, 1, 0, _AF_INET6),
        refused,
        *_argument(1),
        (_AND, 0, 0, _SOCK_TYPE),
        (_EQUAL, 1, 0, _SOCK_STREAM),
        refused,
        *_argument(2),
        (_EQUAL, 2, 0, 0),
        (_EQUAL, 1, 0, _TCP),
        refused,
    ]


def _on_others(at: int) -> list[Instruction]:
    steps: list[Instruction] = []
    for semaphores_or_queues in _SYSTEM_V:
        steps += _when(semaphores_or_queues[at], [_refuse(errno.EPERM)])
    for send in _SENDS:
        with_flag = [*_argument(send[2]), (_ANY_BIT, 0, 1, _MSG_FASTOPEN), _refuse(errno.EPERM)]
        steps += _when(send[at], with_flag)
    for mode in _MODES:
        number = mode[at]
        if number is not None:
            steps += _when(number, [_refuse(0)])
    for attribute in _ATTRIBUTES:
        steps += _when(attribute[at], [_refuse(errno.EPERM)])
    unless_itself = [*_argument(0), (_EQUAL, 1, 0, 0), _refuse(errno.EPERM)]
    for call in _OF_OTHERS:
        steps += _when((call[1], call[2])[at], unless_itself)
    # Which (a process, 0, or 1 for I/O; else a group or a user), then who.
    for numbers, of_a_process in ((_SETPRIORITY, 0), (_IOPRIO_SET, 1)):
        which = [*_argument(0), (_EQUAL, 1, 0, of_a_process), _refuse(errno.EPERM)]
        who = [*_argument(1), (_EQUAL, 1, 0, 0), _refuse(errno.EPERM)]
        steps += _when(numbers[at], [*which, *who])
    return steps
