"""The system calls that a program may not make, as a filter for the kernel (seccomp BPF).

The filter lists the denied calls, because Python and its libraries use most others. A call that
needs a capability is listed only if a user namespace would grant that capability, since no process
in the sandbox has any.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

from batuta.errors import SandboxError

NAMESPACES = (
    "unshare setns mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount "
    "fspick mount_setattr"
)
KERNEL = (
    "bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl "
    "add_key request_key landlock_create_ruleset landlock_add_rule landlock_restrict_self"
)
"""Calls that widen the attack surface of the kernel. io_uring also makes calls that no filter sees,
and a Landlock ruleset keeps deleted files open."""
OTHER_PROCESSES = (
    "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_open pidfd_getfd "
    "pidfd_send_signal sched_setaffinity sched_setattr sched_setparam sched_setscheduler "
    "setpriority ioprio_set migrate_pages move_pages shmctl msgctl msgsnd msgrcv semctl semop "
    "semtimedop mq_unlink"
)
"""Calls that reach other processes of the same user, or resources shared among them."""
UNCOUNTED_MEMORY = "memfd_create memfd_secret shmget shmat msgget semget mq_open"
"""Calls for memory that belongs to no process, which the memory limit would not count."""
NETWORK = "socket connect bind listen"
OWNERSHIP = (
    "chmod fchmod fchmodat fchmodat2 chown lchown fchown fchownat setxattr lsetxattr fsetxattr "
    "removexattr lremovexattr fremovexattr utime utimes futimesat utimensat inotify_init "
    "inotify_init1 fanotify_init sendmsg sendmmsg"
)
"""Calls that Landlock does not restrict; an ordinary user owns more than the sandbox's folder. The
calls that send messages are listed because a message in transit can hold a deleted open file, which
the check of open files would not find."""

NUMBERS = {
    "x86_64": {
        "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155,
        "chroot": 161, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311,
        "kcmp": 312, "sched_setaffinity": 203, "sched_setattr": 314, "sched_setparam": 142,
        "sched_setscheduler": 144, "setpriority": 141, "ioprio_set": 251, "migrate_pages": 256,
        "move_pages": 279, "prlimit64": 302, "bpf": 321, "perf_event_open": 298,
        "userfaultfd": 323, "keyctl": 250, "add_key": 248, "request_key": 249,
        "memfd_create": 319, "shmget": 29, "shmat": 30, "msgget": 68, "semget": 64, "mq_open": 240,
        "mmap": 9, "clone": 56, "socket": 41, "connect": 42, "bind": 49, "listen": 50,
        "socketpair": 53, "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92, "lchown": 94,
        "fchown": 93, "fchownat": 260, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
        "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "utime": 132, "utimes": 235,
        "futimesat": 261, "utimensat": 280, "inotify_init": 253, "inotify_init1": 294,
        "fanotify_init": 300, "sendmsg": 46, "sendmmsg": 307, "shmctl": 31, "msgsnd": 69,
        "ioctl": 16, "msgrcv": 70, "msgctl": 71, "semop": 65, "semctl": 66, "semtimedop": 220,
        "mq_unlink": 241,
    },
    "aarch64": {
        "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "sched_setaffinity": 122, "sched_setattr": 274, "sched_setparam": 118,
        "sched_setscheduler": 119, "setpriority": 140, "ioprio_set": 30, "migrate_pages": 238,
        "move_pages": 239, "prlimit64": 261, "bpf": 280, "perf_event_open": 241,
        "userfaultfd": 282, "keyctl": 219, "add_key": 217, "request_key": 218,
        "memfd_create": 279, "shmget": 194, "shmat": 196, "msgget": 186, "semget": 190,
        "mq_open": 180, "mmap": 222, "clone": 220, "socket": 198, "connect": 203, "bind": 200,
        "listen": 201, "socketpair": 199, "fchmod": 52, "fchmodat": 53, "fchown": 55,
        "fchownat": 54, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14,
        "lremovexattr": 15, "fremovexattr": 16, "utimensat": 88, "inotify_init1": 26,
        "fanotify_init": 262, "sendmsg": 211, "sendmmsg": 269, "shmctl": 195, "msgsnd": 189,
        "ioctl": 29, "msgrcv": 188, "msgctl": 187, "semop": 193, "semctl": 191, "semtimedop": 192,
        "mq_unlink": 181,
    },
}  # fmt: skip
"""System call numbers below 424 by architecture; a missing call does not exist there."""
COMMON_NUMBERS = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431,
    "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "landlock_create_ruleset": 444,
    "landlock_add_rule": 445, "landlock_restrict_self": 446, "memfd_secret": 447, "fchmodat2": 452,
}  # fmt: skip
"""System call numbers from 424 on, the same on all architectures."""
NEWEST_NUMBER = 452
"""Calls with a higher number, unknown to this filter, fail with ENOSYS."""

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEW_NAMESPACES = 0x7E020000
"""All CLONE_NEW* flags of clone."""
SHARED_ANONYMOUS = 0x21
TERMINAL_REQUESTS = 0x5400
"""The second byte of the ioctl requests for terminals, some of which Python makes on any file."""
STREAM_SOCKET = 1

LOAD, AND, EQUAL, GREATER, RETURN = 0x20, 0x54, 0x15, 0x25, 0x06
"""BPF: load a word, mask it, jump if equal, jump if greater, return."""
ALLOW, KILL, ERRNO, NOTIFY = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
PROCESS_CREATION = {"x86_64": (56, 57, 58), "aarch64": (220,)}
"""The numbers of clone, fork and vfork; aarch64 has clone alone, and the filter refuses clone3."""
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
"""Offsets in the `seccomp_data` that a filter reads, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A call that is allowed only if one argument satisfies `argument & mask == value`.

    With `equal` False it is allowed only if they differ.
    """

    name: str
    argument: int
    """The index of the argument, of which only the low 32 bits are read."""
    mask: int
    value: int
    equal: bool = True

    def code(self, number: int) -> bytes:
        """Return instructions that decide this call; other calls continue after them."""
        yes, no = (1, 0) if self.equal else (0, 1)
        return (
            _bpf_jump(EQUAL, number, 0, 5)
            + _bpf_statement(LOAD, ARGUMENTS_AT + 8 * self.argument)
            + _bpf_statement(AND, self.mask)
            + _bpf_jump(EQUAL, self.value, yes, no)
            + _bpf_statement(RETURN, ERRNO | errno.EPERM)
            + _bpf_statement(RETURN, ALLOW)
        )


CONDITIONS = (
    Condition(name="clone", argument=0, mask=NEW_NAMESPACES, value=0),
    # Only limits of the caller itself: a low limit could cripple another process of the user.
    Condition(name="prlimit64", argument=0, mask=0xFFFFFFFF, value=0),
    # A datagram socket of a pair could be reconnected to any socket in the file system.
    Condition(name="socketpair", argument=1, mask=0xF, value=STREAM_SOCKET),
    # Some file systems accept ioctls on read-only files, such as sealing them permanently.
    Condition(name="ioctl", argument=1, mask=0xFF00, value=TERMINAL_REQUESTS),
    # Pages that a dead child touched count for no process while its parent maps them.
    Condition(name="mmap", argument=3, mask=SHARED_ANONYMOUS, value=SHARED_ANONYMOUS, equal=False),
)


def seccomp_filter(machine: str | None = None, *, ownership: bool) -> bytes:
    """Return the filter for that architecture (None: this one's), as an array of `sock_filter`.

    Args:
        machine: the architecture, as `platform.machine()` returns it.
        ownership: whether to allow the calls of `OWNERSHIP`; only if the files are isolated in
            another way.

    Raises:
        SandboxError: the system call numbers of this architecture are not known.
    """
    machine = machine or platform.machine()
    if machine not in NUMBERS:
        known = ", ".join(NUMBERS)
        raise SandboxError(f"the sandbox does not support {machine}, only {known}")
    numbers = NUMBERS[machine] | COMMON_NUMBERS
    denied = f"{NAMESPACES} {KERNEL} {OTHER_PROCESSES} {UNCOUNTED_MEMORY} {NETWORK}".split()
    denied += [] if ownership else OWNERSHIP.split()
    code = _bpf_statement(LOAD, ARCHITECTURE_AT)
    code += _bpf_jump(EQUAL, AUDIT[machine], 1, 0) + _bpf_statement(RETURN, KILL)
    code += _bpf_statement(LOAD, NUMBER_AT)
    code += _bpf_jump(GREATER, NEWEST_NUMBER, 0, 1) + _bpf_statement(RETURN, ERRNO | errno.ENOSYS)
    # No filter can read the flags of clone3, which lie in memory; the C library falls back.
    code += _refuse_call(numbers["clone3"], errno.ENOSYS)
    for name in denied:
        if name in numbers:
            code += _refuse_call(numbers[name], errno.EPERM)
    for condition in CONDITIONS:
        code += condition.code(numbers[condition.name])
    return code + _bpf_statement(RETURN, ALLOW)


def count_filter() -> bytes:
    """Return the filter that makes the kernel ask a listener about each new process or thread."""
    code = _bpf_statement(LOAD, NUMBER_AT)
    for number in PROCESS_CREATION[platform.machine()]:
        code += _bpf_jump(EQUAL, number, 0, 1) + _bpf_statement(RETURN, NOTIFY)
    return code + _bpf_statement(RETURN, ALLOW)


def _refuse_call(number: int, error: int) -> bytes:
    return _bpf_jump(EQUAL, number, 0, 1) + _bpf_statement(RETURN, ERRNO | error)


def _bpf_statement(code: int, operand: int) -> bytes:
    return _bpf_jump(code, operand, 0, 0)


def _bpf_jump(code: int, operand: int, if_true: int, if_false: int) -> bytes:
    """Return one instruction; the jumps count instructions from the next one."""
    return struct.pack("=HBBI", code, if_true, if_false, operand)
