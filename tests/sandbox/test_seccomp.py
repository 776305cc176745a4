"""The filter, executed by a small machine of the same kind as the kernel's."""

import errno
import re
import struct
from pathlib import Path

import pytest

from batuta.errors import SandboxError
from batuta.sandbox.seccomp import (
    ALLOW,
    AUDIT,
    COMMON_NUMBERS,
    ERRNO,
    KERNEL,
    KILL,
    NAMESPACES,
    NETWORK,
    NUMBERS,
    OTHER_PROCESSES,
    OWNERSHIP,
    UNCOUNTED_MEMORY,
    seccomp_filter,
)

MACHINES = pytest.mark.parametrize("machine", NUMBERS)
HEADERS = {"x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")}
DENIED, MISSING = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS


def verdict(machine, name, *arguments, ownership=False, audit=None):
    """What the kernel would do with a call, by name or number."""
    number = name if isinstance(name, int) else (NUMBERS[machine] | COMMON_NUMBERS)[name]
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, audit or AUDIT[machine], 0, *padded)
    code = seccomp_filter(machine, ownership=ownership)
    program = list(struct.iter_unpack("<HBBI", code))
    held = at = 0
    while True:
        operation, if_true, if_false, operand = program[at]
        at += 1
        if operation == 0x20:
            (held,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x54:
            held &= operand
        elif operation == 0x15:
            at += if_true if held == operand else if_false
        elif operation == 0x25:
            at += if_true if held > operand else if_false
        else:
            assert operation == 0x06
            return operand


@MACHINES
def test_what_is_listed_is_denied(machine):
    for name in (
        f"{NAMESPACES} {KERNEL} {OTHER_PROCESSES} {UNCOUNTED_MEMORY} {NETWORK} {OWNERSHIP}".split()
    ):
        if name in NUMBERS[machine] or name in COMMON_NUMBERS:
            assert verdict(machine, name) == DENIED, name


@MACHINES
def test_owners_and_modes_may_change_where_files_are_apart(machine):
    assert verdict(machine, "fchmodat", ownership=True) == ALLOW
    assert verdict(machine, "fchmodat", ownership=False) == DENIED


@MACHINES
@pytest.mark.parametrize("flag", range(25, 31))
def test_clone_makes_threads_and_processes_but_no_namespaces(machine, flag):
    assert verdict(machine, "clone", 0x3D0F00) == ALLOW  # pthread_create
    assert verdict(machine, "clone", 0x01200011) == ALLOW  # fork
    assert verdict(machine, "clone", 0x11 | 1 << flag) == DENIED
    assert verdict(machine, "clone", 0x11 | 1 << 17) == DENIED
    assert verdict(machine, "clone3") == MISSING


@MACHINES
def test_arguments_decide(machine):
    assert verdict(machine, "prlimit64", 0) == ALLOW
    assert verdict(machine, "prlimit64", 1) == DENIED
    assert verdict(machine, "socketpair", 1, 1 | 0o2000000) == ALLOW
    assert verdict(machine, "socketpair", 1, 2) == DENIED
    assert verdict(machine, "ioctl", 3, 0x5401) == ALLOW  # is it a terminal?
    assert verdict(machine, "ioctl", 3, 0x40806685) == DENIED  # FS_IOC_ENABLE_VERITY
    assert verdict(machine, "mmap", 0, 4096, 3, 0x22) == ALLOW  # private, anonymous
    assert verdict(machine, "mmap", 0, 4096, 3, 0x01) == ALLOW  # shared, of a file
    assert verdict(machine, "mmap", 0, 4096, 3, 0x21) == DENIED


@MACHINES
def test_what_is_unknown_does_not_exist(machine):
    assert verdict(machine, 453) == MISSING
    assert verdict(machine, 0x40000000 | 56) == MISSING  # the x32 clone
    assert verdict(machine, "clone", audit=0x40000003) == KILL  # i386, with numbers of its own


def test_an_unknown_architecture_is_refused():
    with pytest.raises(SandboxError, match="riscv64"):
        seccomp_filter("riscv64", ownership=False)


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_are_the_kernel_s(machine):
    if not HEADERS[machine].exists():
        pytest.skip("the kernel's headers are not installed")
    text = HEADERS[machine].read_text(encoding="ascii")
    kernel = {name: int(n) for name, n in re.findall(r"#define __NR_(\w+) (\d+)", text)}
    ours = NUMBERS[machine] | COMMON_NUMBERS
    assert {name: kernel[name] for name in ours if name in kernel} == {
        name: number for name, number in ours.items() if name in kernel
    }
    assert len(ours.keys() & kernel.keys()) > 60
