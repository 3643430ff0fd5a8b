"""Landlock: which files, ports and processes this process can reach, from here on.

A rule set denies what it handles, except beneath the paths that it lists. A process that has
restricted itself passes that on to its children and can't undo it.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from confinement import linux

Reach = dict[str, list[str | int]]

NEEDED_ABI = 6
"""The first one that keeps signals inside."""

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture
_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ALL_FILES = (1 << 16) - 1
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = _ALL_FILES & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)

_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_ABSTRACT_UNIX, _SIGNAL = 1 << 0, 1 << 1


def abi() -> int:
    """The version that the running kernel has; 0 if it has none."""
    try:
        return linux.syscall(_CREATE, None, 0, _VERSION)
    except OSError:
        return 0


def keep_signals_inside() -> None:
    """This process and what it starts can signal each other and nobody else.

    Moving a file to another folder stays possible: that is denied by every rule set that does
    not allow it.

    Raises:
        OSError: The kernel has no Landlock of `NEEDED_ABI`.
    """
    rules = _create(files=_REFER, net=0, scoped=_SIGNAL)
    try:
        _allow(rules, "/", _REFER)
        _restrict(rules)
    finally:
        os.close(rules)


def restrict_files(reach: Reach) -> None:
    """Only the listed files can be opened, and only the listed ports of TCP be connected to.

    Args:
        reach: `read`, `write` and `device`: paths, those that are missing are passed over;
            `connect`: port numbers, nothing can be bound; `any_port`: if not empty, no rule
            for ports instead.

    Raises:
        OSError: The kernel has no Landlock of `NEEDED_ABI`.
    """
    net = 0 if reach.get("any_port") else _BIND_TCP | _CONNECT_TCP
    rules = _create(files=_ALL_FILES, net=net, scoped=_ABSTRACT_UNIX | _SIGNAL)
    try:
        for path in reach["read"]:
            _allow(rules, str(path), _READ)
        for path in reach["write"]:
            _allow(rules, str(path), _WRITE)
        for path in reach["device"]:
            _allow(rules, str(path), _READ_FILE | _WRITE_FILE)
        for number in reach["connect"]:
            port = struct.pack("=QQ", _CONNECT_TCP, int(number))
            linux.syscall(_ADD, rules, _NET_PORT, port, 0)
        _restrict(rules)
    finally:
        os.close(rules)


def _create(*, files: int, net: int, scoped: int) -> int:
    attributes = struct.pack("=QQQ", files, net, scoped)
    return linux.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)


def _allow(rules: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return  # it can't be reached anyway
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _OF_A_FILE
        rule = struct.pack("=Qi", access, fd)
        linux.syscall(_ADD, rules, _PATH_BENEATH, rule, 0)
    finally:
        os.close(fd)


def _restrict(rules: int) -> None:
    linux.no_new_privileges()
    linux.syscall(_RESTRICT, rules, 0)
