"""Programs that mean harm, in every tier that holds here.

`test_users.py` runs these tests again as an ordinary user.
"""

import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from batuta.sandbox import (
    AssertionTest,
    CallTest,
    EndReason,
    Program,
    SandboxBackend,
    SandboxLimits,
    ScriptTest,
)
from batuta.sandbox.inside.usage import descendant_processes
from batuta.sandbox.program import MEGABYTE
from batuta.sandbox.seccomp import COMMON_NUMBERS, NUMBERS

LIMITS = SandboxLimits(
    seconds=30, memory=120 * MEGABYTE, output=MEGABYTE, processes=16, files=4 * MEGABYTE
)
BRIEF = SandboxLimits(seconds=0.5, processes=16)
SECRET = "the-secret-of-the-host"
NUMBER = NUMBERS[platform.machine()] | COMMON_NUMBERS
EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]
"""Ends a thread, not the process."""


async def execute(sandbox, source, test=None, limits=LIMITS):
    program = Program(textwrap.dedent(source))
    outcome, next_one = await sandbox.run(
        program, (test or ScriptTest(""), AssertionTest(code="")), limits
    )
    assert next_one.end is not EndReason.LOST, "the sandbox did not survive the program"
    return outcome


# -- too much -----------------------------------------------------------------------------------

TOO_MUCH = {
    "a fork bomb": (
        EndReason.PROCESSES,
        """
        import os
        while True:
            try: os.fork()
            except OSError: pass
        """,
    ),
    "a fork tree": (
        EndReason.PROCESSES,
        """
        import os, time
        def grow(depth):
            for _ in range(2):
                try:
                    if depth and not os.fork(): grow(depth - 1)
                except OSError: pass
            time.sleep(60)
        grow(12)
        """,
    ),
    "threads": (
        EndReason.PROCESSES,
        """
        import threading, time
        for _ in range(100):
            try: threading.Thread(target=time.sleep, args=(60,)).start()
            except RuntimeError: pass
        """,
    ),
    "a memory bomb": (
        EndReason.MEMORY,
        """
        hoard = []
        while True: hoard.append(bytearray(10**6))
        """,
    ),
    "one great block": (EndReason.MEMORY, "bytearray(1 << 40)"),
    "memory of many": (
        EndReason.MEMORY,
        """
        import os, time
        for _ in range(8):
            if not os.fork():
                hoard = bytearray(os.urandom(1 << 16)) * 500
                time.sleep(60)
        time.sleep(60)
        """,
    ),
    "memory behind a first thread that has ended": (
        EndReason.MEMORY,
        f"""
        import ctypes, threading
        def bomb():
            hoard = []
            while True: hoard.append(bytearray(10**6))
        threading.Thread(target=bomb).start()
        ctypes.CDLL(None).syscall({EXIT}, 0)
        """,
    ),
    "endless output": (EndReason.OUTPUT, "while True: print('x' * 1000)"),
    "endless complaints": (
        EndReason.OUTPUT,
        "import sys\nwhile True: sys.stderr.write('x' * 1000)",
    ),
    "a file of 200 MB": (
        EndReason.FILES,
        """
        with open("big", "wb") as file:
            for _ in range(200): file.write(bytes(10**6))
        """,
    ),
    "many files": (
        EndReason.FILES,
        """
        import time
        for n in range(200):
            with open(str(n), "wb") as file: file.write(bytes(10**6))
        time.sleep(60)
        """,
    ),
    "many empty folders": (
        EndReason.FILES,
        """
        import os
        for n in range(300): os.mkdir(str(n))
        """,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOO_MUCH)
async def test_too_much(sandbox, name):
    end, source = TOO_MUCH[name]
    limits = LIMITS
    if end is EndReason.PROCESSES:
        # Each process counts what it shares with the others: sixteen may be beyond the usual memory
        # before there is a seventeenth. These programs end by their time, whatever it is.
        limits = replace(LIMITS, memory=1024 * MEGABYTE, seconds=8)
    assert (await execute(sandbox, source, limits=limits)).end is end


@pytest.mark.parametrize("fork", [False, True], ids=["threads", "processes"])
async def test_no_more_run_at_a_time_than_may(sandbox, fork):
    """Not even for the moment until somebody looks."""
    source = f"""
        import os, threading, time
        for _ in range(200):
            try:
                if {fork}:
                    if not os.fork():
                        os.write(2, b"x"); time.sleep(60)
                else: threading.Thread(target=lambda: (os.write(2, b"x"), time.sleep(60))).start()
            except (OSError, RuntimeError): pass
            os.write(1, b".")
        time.sleep(60)
    """
    limits = replace(LIMITS, memory=1024 * MEGABYTE)  # each counts what it shares with the others
    (outcome,) = await sandbox.run(Program(textwrap.dedent(source)), (ScriptTest(""),), limits)
    assert outcome.end in {EndReason.PROCESSES, EndReason.RAISED}
    assert outcome.stderr.count("x") <= LIMITS.processes


@pytest.mark.parametrize("keep", ["os.dup(fd)", "mmap(None, 4096, 1, 2, fd, 0)"])
async def test_removed_files_that_are_kept_count(sandbox, keep):
    source = f"""
        import ctypes, os, time
        mmap = ctypes.CDLL(None).mmap
        mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        for _ in range(32):
            fd = os.open("file", os.O_CREAT | os.O_RDWR)
            os.unlink("file")
            os.posix_fallocate(fd, 0, 1 << 20)
            {keep}
            os.close(fd)
        time.sleep(30)
    """
    outcome = await execute(sandbox, source)
    # Apart, the folder for files has no room for more.
    assert outcome.end is EndReason.FILES or "No space left" in outcome.stderr, outcome


async def test_an_endless_loop_that_ignores_signals(sandbox):
    source = """
        import signal
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True: pass
    """
    assert (await execute(sandbox, source, limits=BRIEF)).end is EndReason.TIME


async def test_one_that_stops_itself(sandbox):
    source = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"
    assert (await execute(sandbox, source, limits=BRIEF)).end is EndReason.TIME


async def test_memory_that_belongs_to_nobody_cannot_be_had(sandbox):
    source = """
        import ctypes, mmap, os
        def refused(attempt):
            try: attempt()
            except OSError: return True
        print([refused(lambda: mmap.mmap(-1, 4096)), refused(lambda: os.memfd_create("x"))])
        print(refused(lambda: os.open("/dev/zero", os.O_RDONLY)))
        print(ctypes.CDLL(None).shmget(0, 4096, 0o1600))
    """
    assert (await execute(sandbox, source)).stdout == "[True, True]\nTrue\n-1\n"


# -- the machine's secrets ----------------------------------------------------------------------


@pytest.fixture
def secret():
    """A file that everybody may read, and a process that everybody can see."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "secret")
        path.write_text(SECRET, encoding="ascii")
        path.chmod(0o666)
        other = [sys.executable, "-c", "import time; time.sleep(300)", SECRET]
        with subprocess.Popen(other, env={**os.environ, "KEY": SECRET}) as process:
            yield path
            assert process.poll() is None, "the bystander was killed"
            process.kill()


async def test_nothing_of_the_machine_can_be_read(sandbox, secret):
    source = f"""
        import glob, os
        paths = [{str(secret)!r}, "/etc/passwd", "/etc/shadow", {str(Path.home())!r}]
        for name in ("environ", "cmdline", "mem", "maps", "cwd", "root"):
            paths += glob.glob(f"/proc/[0-9]*/{{name}}") + [f"/proc/{os.getpid()}/{{name}}"]
            paths += [f"/proc/{{os.getppid()}}/{{name}}", f"/proc/1/{{name}}"]
        found = repr(dict(os.environ))
        for path in paths:
            try: found += open(path, errors="replace").read(100000)
            except OSError: pass
            try: found += repr(os.listdir(path)) if "proc" not in path else ""
            except OSError: pass
        print(found)
    """
    outcome = await execute(sandbox, source)
    assert outcome.end is EndReason.RETURNED, outcome.stderr
    assert SECRET not in outcome.stdout
    assert "root:" not in outcome.stdout
    for name, value in os.environ.items():
        if len(value) > 12:
            assert value not in outcome.stdout, name


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/1/environ", "/dev/mem", "/root", "/home"])
async def test_what_cannot_be_opened(sandbox, path):
    outcome = await execute(sandbox, f"import os\nos.listdir({path!r}) and open({path!r})")
    assert outcome.end is EndReason.RAISED
    assert "Error: [Errno" in outcome.stderr


async def test_nothing_of_the_machine_can_be_changed(sandbox, secret):
    before = secret.stat()
    source = f"""
        import os
        path, folder = {str(secret)!r}, {str(secret.parent)!r}
        attempts = [
            lambda: open(path, "w"), lambda: os.truncate(path, 0), lambda: os.unlink(path),
            lambda: os.chmod(path, 0), lambda: os.utime(path, (0, 0)),
            lambda: os.chown(path, os.getuid(), -1), lambda: os.rename(path, path + "2"),
            lambda: os.link(path, "mine"), lambda: os.mkdir(folder + "/new"),
            lambda: os.symlink("/", folder + "/link"), lambda: os.setxattr(path, "user.x", b"1"),
            lambda: open("/usr/new", "w"), lambda: open("/dev/new", "w"), lambda: open("/new", "w"),
        ]
        for attempt in attempts:
            try: attempt()
            except OSError: continue
            print("done")
    """
    outcome = await execute(sandbox, source)
    assert (outcome.end, outcome.stdout) == (EndReason.RETURNED, "")
    after = secret.stat()
    assert (after.st_mode, after.st_mtime, after.st_size, after.st_uid) == (
        before.st_mode, before.st_mtime, before.st_size, before.st_uid,
    )  # fmt: skip
    assert list(secret.parent.iterdir()) == [secret]


async def test_a_test_cannot_widen_the_walls_of_the_next(sandbox, secret):
    """Through a Landlock ruleset that it inherited: add a rule that all below / may be read."""
    source = f"""
        import ctypes, os, struct
        call, rule = ctypes.CDLL(None).syscall, struct.pack("=Qi", 0b1100, os.open("/", os.O_PATH))
        print([n for n in range(3, 256) if not call({NUMBER["landlock_add_rule"]}, n, 1, rule, 0)])
        print(open({str(secret)!r}).read())
    """
    program = Program(textwrap.dedent(source))
    for outcome in await sandbox.run(program, (ScriptTest(""),) * 2, LIMITS):
        assert (outcome.end, outcome.stdout) == (EndReason.RAISED, "[]\n"), outcome.stderr


# -- the network --------------------------------------------------------------------------------


async def test_no_network_not_even_loopback(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        source = f"""
            import ctypes, socket
            for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
                    try: print("opened", socket.socket(family, kind))
                    except OSError: pass
            try: socket.create_connection(("127.0.0.1", {server.getsockname()[1]}))
            except OSError: pass
            try: print("opened", socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
            except OSError: pass
            print(ctypes.CDLL(None).syscall({NUMBER["io_uring_setup"]}, 8, bytes(256)))
        """
        assert (await execute(sandbox, source)).stdout == "-1\n"
        with pytest.raises(TimeoutError):
            server.accept()


# -- other processes ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("target", ["-1", "os.getppid()", "1", "0", "host"])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSTOP", "SIGINT", "SIGHUP"])
async def test_signals_reach_nobody_outside(sandbox, secret, target, name):
    source = f"import os, signal\nos.kill({target}, signal.{name})"
    await execute(sandbox, source.replace("host", str(os.getpid())), limits=BRIEF)
    # The fixture sees that the bystander lives; `run` that the warden does; and so do we.


async def test_other_processes_cannot_be_touched(sandbox):
    source = f"""
        import ctypes, os, resource
        libc = ctypes.CDLL(None, use_errno=True)
        def attempt(name, *arguments):
            if libc.syscall(*arguments) >= 0: print(name)
        for victim in (os.getppid(), {os.getpid()}, 1):
            attempt("ptrace", {NUMBER["ptrace"]}, 16, victim, 0, 0)
            attempt("read", {NUMBER["process_vm_readv"]}, victim, 0, 0, 0, 0, 0)
            attempt("pidfd", {NUMBER["pidfd_open"]}, victim, 0)
            attempt("nice", {NUMBER["setpriority"]}, 0, victim, 19)
            attempt("affinity", {NUMBER["sched_setaffinity"]}, victim, 8, bytes([1] + [0] * 7))
            try: print(resource.prlimit(victim, resource.RLIMIT_CPU, (1, 1)))
            except OSError: pass
            try: print(os.open(f"/proc/{{victim}}/mem", os.O_RDWR))
            except OSError: pass
    """
    outcome = await execute(sandbox, source)
    assert (outcome.end, outcome.stdout) == (EndReason.RETURNED, ""), outcome.stderr


async def test_daemons_end_with_their_test(sandbox):
    marker = f"{time.time_ns() % 10**9 + 10**6}"
    source = f"""
        import os, signal, time
        if not os.fork():
            os.setsid()
            for number in range(1, 32):
                if number not in (9, 19): signal.signal(number, signal.SIG_IGN)
            if not os.fork():
                os.execv("/usr/bin/sleep", ["sleep", "{marker}"])
            os._exit(0)
        time.sleep(0.1)
        print("over")
    """
    async with sandbox.load(Program(textwrap.dedent(source)), LIMITS) as ready:
        assert (await ready.run(ScriptTest(""))).stdout == "over\n"
        commands = [_command(process) for process in descendant_processes(os.getpid())]
        assert any(b"inside.supervisor" in command for command in commands)
        assert not any(marker.encode() in command for command in commands)


def _command(process):
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


# -- the kernel ---------------------------------------------------------------------------------


async def test_no_namespaces_mounts_or_keys(sandbox):
    new_user = 0x10000000
    calls = {
        "unshare": (new_user,),
        "clone": (new_user | signal.SIGCHLD, 0, 0, 0, 0),
        "setns": (0, 0),
        "mount": (b"none", b"/tmp", b"tmpfs", 0, None),
        "umount2": (b"/tmp", 0),
        "pivot_root": (b"/tmp", b"/tmp"),
        "chroot": (b"/tmp",),
        "open_tree": (-100, b"/tmp", 1),
        "fsopen": (b"tmpfs", 0),
        "ptrace": (0, 0, 0, 0),
        "bpf": (0, bytes(128), 128),
        "userfaultfd": (1,),
        "keyctl": (0, -3, 1),
        "add_key": (b"user", b"x", b"x", 1, -3),
        "perf_event_open": (bytes(128), 0, -1, -1, 0),
        "clone3": (bytes(88), 88),
        "landlock_create_ruleset": (bytes([1] + [0] * 23), 24, 0),
        "fanotify_init": (0x200, 0) if sandbox.backend is SandboxBackend.LANDLOCK else (0, 0),
        "shmctl": (0, 0, bytes(128)),
        "msgctl": (0, 0, bytes(128)),
        "semctl": (0, 0, 0, 0),
        "mq_unlink": (b"queue",),
    }
    source = f"""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        for name, (number, arguments) in { ({n: (NUMBER[n], a) for n, a in calls.items()})!r}.items():
            result = libc.syscall(number, *arguments)
            if result == 0 and "clone" in name: os._exit(9)
            if result >= 0 or ctypes.get_errno() not in (1, 38): print(name, ctypes.get_errno())
        for attempt in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0])):
            try: attempt()
            except OSError: continue
            print("became another")
    """
    outcome = await execute(sandbox, source)
    assert (outcome.end, outcome.stdout) == (EndReason.RETURNED, ""), outcome.stderr


async def test_limits_cannot_be_raised(sandbox):
    source = """
        import resource
        def f():
            raised = []
            for name in ("AS", "NPROC", "FSIZE", "NOFILE", "CORE"):
                kind = getattr(resource, "RLIMIT_" + name)
                try: resource.setrlimit(kind, (-1, -1))
                except (OSError, ValueError): continue
                raised.append(name)
            return raised
    """
    assert (await execute(sandbox, source, CallTest("f"))).value == []
