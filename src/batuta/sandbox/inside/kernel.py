"""System calls by which the sandbox restricts a process.

A refused call raises OSError, except in `landlock_version` and `decide_call`.
"""
# ruff: noqa: PTH112 - no pathlib here, see the package

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
SECCOMP = {"x86_64": 317, "aarch64": 277}
"""The number of the system call `seccomp`, by machine; isolated tiers run on no other machine."""
NEW_LISTENER = 1 << 3
"""Seccomp: the flag to return a listener, which is told of calls before they are made."""
RECEIVE_NOTICE, SEND_VERDICT, CONTINUE = 0xC0502100, 0xC0182101, 1
"""Seccomp: ioctl requests on a listener, and the flag that lets a call continue."""
PIDFD_GETFD = 438
"""The number of the system call `pidfd_getfd`."""
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""The numbers of Landlock's system calls."""
FILES, ALL_NETWORK, ALL_SCOPES = 0xFFFF, 0b11, 0b11
"""Landlock, version 6: all rights on files; all on TCP; the rights to connect to abstract sockets
and to send signals outside."""
READ_FILE, READ, USE_FILE = 0b101, 0b1101, 0b110
"""Landlock: execute and read a file; the same, and list a folder; read and write a file."""
MAKE_DEVICES = 1 << 6 | 1 << 11
"""Landlock: make character and block devices."""


def prctl(option: int, value: int, pointer: int = 0) -> None:
    """Set one attribute of this process.

    Raises:
        OSError: the kernel refuses.
    """
    zero = ctypes.c_ulong(0)
    if LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(pointer), zero, zero):
        raise OSError(ctypes.get_errno(), f"prctl {option} was refused")


def system_call(number: int, *arguments: Any) -> int:
    """Make a system call by its number and return its result.

    Raises:
        OSError: the kernel refuses.
    """
    result = LIBC.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number} was refused")
    return result


def new_ruleset(files: int, network: int, scopes: int) -> int:
    """Return the descriptor of a Landlock ruleset (version 6) that denies these rights.

    Rules that are added later allow them on some paths.
    """
    return system_call(CREATE_RULESET, struct.pack("=QQQ", files, network, scopes), 24, 0)


def allow_path(ruleset: int, descriptor: int, rights: int) -> None:
    """Allow these rights on a file, or on a folder and everything below it.

    `descriptor` is an open descriptor of the file or folder.
    """
    system_call(ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, descriptor), 0)


def new_ruleset_of_paths(readable: list[int], devices: list[int], scratch: list[str]) -> int:
    """Return the descriptor of a Landlock ruleset that allows only these files and folders.

    It also denies TCP, abstract sockets of processes outside, and signals to these processes.

    Args:
        readable: descriptors of what may be read and executed.
        devices: descriptors of what may be read and written.
        scratch: folders in which everything is allowed except creating devices.
    """
    ruleset = new_ruleset(FILES, ALL_NETWORK, ALL_SCOPES)
    for descriptor in readable:
        folder = os.path.isdir(f"/proc/self/fd/{descriptor}")
        allow_path(ruleset, descriptor, READ if folder else READ_FILE)
    for descriptor in devices:
        allow_path(ruleset, descriptor, USE_FILE)
    for folder in scratch:
        descriptor = os.open(folder, os.O_PATH)
        allow_path(ruleset, descriptor, FILES & ~MAKE_DEVICES)
        os.close(descriptor)
    return ruleset


def restrict_self(ruleset: int) -> None:
    """Apply a ruleset to this thread and whatever it starts, permanently."""
    system_call(RESTRICT_SELF, ruleset, 0)


def landlock_version() -> int:
    """Return the version of the kernel's Landlock; 0 if it has none or Landlock is disabled."""
    return max(0, LIBC.syscall(CREATE_RULESET, None, 0, 1))


def install_filter(code: bytes) -> None:
    """Filter the system calls of this thread and whatever it starts, permanently.

    `code` is a compiled BPF program.

    Raises:
        OSError: the kernel refuses.
    """
    instructions = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HP", len(code) // 8, ctypes.addressof(instructions))
    program = ctypes.create_string_buffer(header, len(header))
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(program))


def install_listener(code: bytes) -> int:
    """Filter the system calls as `install_filter`; return the listener's descriptor.

    Raises:
        OSError: the kernel refuses.
    """
    instructions = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HP", len(code) // 8, ctypes.addressof(instructions))
    program = ctypes.create_string_buffer(header, len(header))
    return system_call(SECCOMP[os.uname().machine], 1, NEW_LISTENER, program)


def take_descriptor(process: int, descriptor: int) -> int:
    """Return a copy of a descriptor that the process with this id, a child, has open.

    Raises:
        OSError: the kernel refuses.
    """
    handle = os.pidfd_open(process)
    try:
        return system_call(PIDFD_GETFD, handle, descriptor, 0)
    finally:
        os.close(handle)


def decide_call(listener: int, allowed: Callable[[], bool]) -> None:
    """Wait for the listener's next call; let it continue if `allowed()`, else fail with EAGAIN.

    Nothing happens if the kernel refuses.
    """
    notice = bytearray(80)
    try:
        fcntl.ioctl(listener, RECEIVE_NOTICE, notice)
        (number,) = struct.unpack_from("Q", notice)
        error, flags = (0, CONTINUE) if allowed() else (-errno.EAGAIN, 0)
        fcntl.ioctl(listener, SEND_VERDICT, struct.pack("QqiI", number, 0, error, flags))
    except OSError:
        pass  # the process has just ended, or a signal interrupted its call


def lower_limit(kind: int, most: int, *, hard: bool) -> None:
    """Set a limit of this process to `most`, or to its hard limit if that is lower.

    `kind` is a `resource.RLIMIT_…`, which defines the unit. With `hard`, the hard limit becomes the
    same.
    """
    ceiling = resource.getrlimit(kind)[1]
    most = most if ceiling == resource.RLIM_INFINITY else min(most, ceiling)
    resource.setrlimit(kind, (most, most if hard else ceiling))
