"""The supervisor, in a process inside the sandbox: runs tests in child processes and watches them.

`batuta.sandbox.process` starts it, sends orders to its standard input and reads replies from its
standard output. When the input ends, the supervisor and its children end.
"""
# ruff: noqa: PTH102, PTH208 - no pathlib here, see the package

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import site
import sys
import time
from contextlib import suppress

from .kernel import (
    ALL_SCOPES,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    decide_call,
    install_filter,
    install_listener,
    lower_limit,
    new_ruleset,
    new_ruleset_of_paths,
    prctl,
    restrict_self,
    take_descriptor,
)
from .messages import close_orders, pack_message, read_exactly, receive_order, write_all
from .pipes import RunningTest, close_descriptors, set_oom_score
from .test_process import run_and_report, run_program, run_separate_tests, serve_program
from .tests_peer import NO_ANSWER_STATUS
from .usage import (
    deleted_open_bytes,
    descendant_processes,
    empty_folder,
    removal_command,
    stored_bytes,
    thread_folders,
    threads_and_memory,
    threads_of_user,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn

WATCH_INTERVAL = 0.02
"""Seconds between two checks of what a test uses."""
STACK_BYTES = 8 << 20
OPEN_FILES = 256
MEMORY_PER_MESSAGE_BYTE = 16
"""Bytes of memory per byte of a message: parsing it takes many times its length."""
ADDRESS_SPACE_FACTOR = 4
"""Address space that a process may reserve, as a multiple of the test's memory limit."""
OTHER_USER_THREADS = 512
"""Extra processes and threads allowed where the user also runs other programs."""


class Supervisor:
    """Runs the tests of one sandbox, from inside it."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.backend: str = order["tier"]
        self.limits: dict[str, Any] = order["limits"]
        """The fields of `SandboxLimits`."""
        self.scratch: list[str] = order["scratch"]
        """The folders for the files of a test."""
        self.filter = bytes.fromhex(order["filter"])
        """The seccomp filter of the children; empty if none."""
        self.count = bytes.fromhex(order["count"])
        """The filter that reports new processes and threads to this process before they start.

        Empty if the kernel itself limits the number of processes."""
        self.listeners: list[int] = []
        """Descriptors of the listeners of that filter."""
        self.ruleset = -1
        """The Landlock ruleset for the children; -1 if none."""
        self.test_pid = 0
        """The process id of the current test; 0 if none."""
        self.program_pid = 0
        """The process id of the program if its tests run separately; 0 if they do not."""
        if order["folder"] is not None:  # created here: a killed host would leave it behind
            os.mkdir(order["folder"], 0o700)
            if order["uid"] is not None:
                os.chown(order["folder"], order["uid"], order["uid"])
        self.drop_privileges(order["uid"])
        if self.backend == "landlock":
            self.apply_landlock(order["readable"], order["devices"])
        self.check_isolation()
        os.chdir(self.scratch[0])
        sys.path.extend(order["packages"])
        site.setquit()  # the builtins that -S leaves out: exit, quit
        for name in order["preload"]:  # once here instead of once per test
            with suppress(Exception):  # the program's own import will raise
                __import__(name)
        alone = order["uid"] is not None or self.backend == "bubblewrap"
        self.threads = threads_of_user() + (0 if alone else OTHER_USER_THREADS)
        """Number of threads that the user may have besides those of a test."""
        gc.freeze()  # otherwise the first collection in a child would copy every page

    def drop_privileges(self, uid: int | None) -> None:
        """Change to the user `uid`, if any, and set up what every tier needs."""
        set_oom_score(900)
        if uid is not None:  # limits on processes do not bind root
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process
        prctl(PR_SET_DUMPABLE, 0)  # closes /proc/<supervisor>/mem to the children
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self.backend == "bubblewrap":
            # The first process of a namespace gets no signal from inside that it does not handle.
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        else:
            signal.signal(signal.SIGTERM, close_orders)
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def apply_landlock(self, readable: list[int], devices: list[int]) -> None:
        """Confine signals and abstract sockets to this process tree; make the children's ruleset.

        Without a process namespace, only this limits `kill(-1)`, of the supervisor and of a test.
        """
        outer = new_ruleset(0, 0, ALL_SCOPES)
        restrict_self(outer)
        os.close(outer)
        self.ruleset = new_ruleset_of_paths(readable, devices, self.scratch)

    def check_isolation(self) -> None:
        """Exit if the tier does not isolate processes as it must, or the scratch is not empty.

        `kill(-1)` or `empty_folder` would then reach the machine. The tier `none` is not isolated.
        """
        if self.backend == "bubblewrap" and os.getpid() != 1:
            sys.exit("there is no process namespace")
        if self.backend == "landlock":
            with suppress(PermissionError):
                os.kill(os.getppid(), 0)
                sys.exit("Landlock does not keep signals inside")
        for folder in self.scratch:
            if os.listdir(folder):
                sys.exit(f"{folder} is not empty")

    def serve(self) -> NoReturn:
        """Run tests until standard input ends."""
        write_all(1, pack_message({"ready": True}))
        while True:
            write_all(1, pack_message(self.run_test(receive_order())))

    def run_test(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run one test, end its processes, empty the scratch if possible, and return the reply."""
        test = RunningTest(order)
        began = time.monotonic()
        if order["kind"] == "check":
            self.start_separate_tests(test)
        else:
            self.test_pid = self.start_process(
                test, lambda: run_and_report(lambda: run_program(order), test.writers[2])
            )
        close_descriptors(test.stdin, *test.writers)
        ended = self.watch(test, began + self.limits["seconds"])
        seconds = time.monotonic() - began
        status = self.end_all()
        close_descriptors(*self.listeners)
        self.listeners.clear()
        for reader in test.readers:
            while not self.exceeded_output(test) and test.read_available(reader):
                pass
        close_descriptors(*test.readers)
        ended = ended or self.exceeded_output(test) or ("files" if self.is_full() else "")
        # Too many files to remove now: they go with the sandbox, after the reply.
        spent = ended == "files" or not all(map(empty_folder, self.scratch))
        reply = {"ended": ended, "status": status, "seconds": seconds, "spent": spent}
        return reply | test.texts()

    def start_process(self, test: RunningTest, main: Callable[[], int]) -> int:
        """Start an untrusted process and return its process id."""
        if self.ruleset >= 0:  # lets the supervisor see the child's open files from the start
            prctl(PR_SET_DUMPABLE, 1)
        number_reader, number_writer, copied_reader, copied_writer = (*os.pipe(), *os.pipe())
        process = os.fork()
        if not process:
            close_descriptors(number_reader, copied_writer)
            self.run_in_child(test, main, (number_writer, copied_reader))
        close_descriptors(number_writer, copied_reader)
        if self.count and (number := os.read(number_reader, 16)):
            self.listeners.append(take_descriptor(process, int(number)))
        close_descriptors(number_reader, copied_writer)
        prctl(PR_SET_DUMPABLE, 0)
        return process

    def start_separate_tests(self, test: RunningTest) -> None:
        """Start a process for the program, and one for its tests that the program cannot look into.

        The text of the tests follows their order, and only the tests' process reads it: the program
        is a fork of the supervisor and could find the text in a copy of its memory.
        """
        size: int = test.order["size"]
        program_in, tests_out, tests_in, program_out = (*os.pipe(), *os.pipe())
        ready_reader, ready_writer = os.pipe()
        longest = max(self.limits["output"], self.limits["memory"] // MEMORY_PER_MESSAGE_BYTE)

        def program() -> int:
            close_descriptors(tests_out, tests_in, ready_reader, ready_writer, test.writers[2])
            return serve_program(test.order, (program_in, program_out, longest))

        def tests() -> int:
            close_descriptors(program_in, program_out)
            order, pipes = test.order, (tests_in, tests_out, longest)
            return run_and_report(lambda: run_separate_tests(order, code, pipes), test.writers[2])

        self.program_pid = self.start_process(test, program)
        self.test_pid = os.fork()
        if not self.test_pid:
            code = read_exactly(size).decode("utf-8", "surrogatepass")
            close_descriptors(ready_reader, ready_writer)
            self.run_in_child(test, tests)
        close_descriptors(program_in, tests_out, tests_in, program_out, ready_writer)
        os.read(ready_reader, 1)  # returns at end of file, once the tests have been read
        close_descriptors(ready_reader)

    def watch(self, test: RunningTest, deadline: float) -> str:
        """Wait until the test's process ends or a limit is exceeded; return that limit or "".

        Exit if standard input ends. Do not wait until the test's pipes close: processes that it
        left behind may hold them open.
        """
        process = os.pidfd_open(self.test_pid)
        poll = select.poll()
        for descriptor in (0, process, *test.readers, *self.listeners):
            poll.register(descriptor, select.POLLIN)
        ended, next_check = "", time.monotonic() + WATCH_INTERVAL
        while not ended and (now := time.monotonic()) < deadline:
            ready = [one for one, _ in poll.poll(max(0, min(next_check, deadline) - now) * 1000)]
            if 0 in ready:  # no order arrives during a test, so the input has ended
                sys.exit()
            for finished in filter(lambda one: self.handle_ready(test, one), ready):
                poll.unregister(finished)
            ended = self.exceeded_output(test)
            if process in ready:
                break
            if time.monotonic() >= next_check:
                ended = ended or self.exceeded_limit()
                next_check = time.monotonic() + WATCH_INTERVAL
        else:
            ended = ended or "time"
        os.close(process)
        return ended

    def handle_ready(self, test: RunningTest, descriptor: int) -> bool:
        """Decide a pending call, or read a stream; return True at the end of the stream."""
        if descriptor in self.listeners:
            decide_call(descriptor, self.has_room)
        return descriptor in test.received and not test.read_available(descriptor)

    def has_room(self) -> bool:
        """Return True if another process or thread may start.

        The first beyond the limit may start too, so that `exceeded_limit` sees it and ends the
        test.
        """
        threads = sum(len(thread_folders(process)) for process in descendant_processes(os.getpid()))
        return threads <= self.limits["processes"] + (self.program_pid > 0)

    def exceeded_output(self, test: RunningTest) -> str:
        """Return `output` if a stream exceeds its limit, else an empty string."""
        most = max(len(data) for data in test.received.values())
        return "output" if most > self.limits["output"] else ""

    def exceeded_limit(self) -> str:
        """Return which limit (processes, memory or files) the test exceeds now, or ""."""
        processes = descendant_processes(os.getpid())
        threads, memory = threads_and_memory(processes)
        if threads > self.limits["processes"] + (self.program_pid > 0):
            return "processes"
        if memory > self.limits["memory"]:
            return "memory"
        if self.program_pid:  # the tests' open files cannot be seen, and are not the program's
            processes = [process for process in processes if process != self.test_pid]
        return "files" if self.is_full(processes) else ""

    def is_full(self, processes: Iterable[int] = ()) -> bool:
        """Return True if the scratch is full, counting deleted files that `processes` hold open."""
        total = sum(map(stored_bytes, self.scratch))
        if self.ruleset >= 0:  # elsewhere deleted open files count in the scratch itself
            total += deleted_open_bytes(processes, self.scratch[0])
        return total >= self.limits["files"]

    def end_all(self) -> int | None:
        """Kill and reap all processes of the sandbox but this one; return the test's exit status.

        The status is the program's if it did not answer separate tests, and None if unknown.
        """
        ends: dict[int, int] = {}
        while True:
            self.kill()
            try:
                process, ended = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            ends[process] = os.waitstatus_to_exitcode(ended)
        status = ends.get(self.test_pid)
        if self.program_pid and status == NO_ANSWER_STATUS:
            status = ends.get(self.program_pid, status)
        self.test_pid = self.program_pid = 0
        return status

    def kill(self) -> None:
        """Kill all in one call, so that none can fork first; without isolation, kill one by one."""
        for target in descendant_processes(os.getpid()) if self.backend == "none" else [-1]:
            with suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)

    def shut_down(self) -> None:
        """End all tests; become a process that removes the scratch if it is on the machine."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.end_all()
        if self.backend != "bubblewrap":
            command = removal_command(self.scratch[0])
            os.execv(command[0], command)  # noqa: S606 - there is nothing to quote

    # -- the child ----------------------------------------------------------------------------

    def run_in_child(
        self, test: RunningTest, main: Callable[[], int], counter: tuple[int, int] | None = None
    ) -> NoReturn:
        """Confine this forked child, run `main` and exit with the status that it returns.

        `counter` has the pipe ends that `install_process_counter` takes. Without it, the child is
        trusted, and other children cannot read its memory in `/proc`.
        """
        status, trusted = 1, counter is None
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if not trusted:
                prctl(PR_SET_DUMPABLE, 1)  # otherwise it may not set its own score
                set_oom_score(1000)
            os.setsid()
            for target, source in enumerate((test.stdin, *test.writers[:2])):
                os.dup2(source, target)
            close_descriptors(test.stdin, *test.writers[:2], *test.readers)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # A signal must not raise in trusted tests: it could pass for an expected exception.
            signal.signal(signal.SIGINT, signal.SIG_DFL if trusted else signal.default_int_handler)
            self.confine_process(counter)
            sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 - stays open
            sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
            status = main()
        except BaseException as error:  # noqa: BLE001 - it must not become a second supervisor
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(status)

    def install_process_counter(self, number_writer: int, copied_reader: int) -> None:
        """Make the kernel ask the supervisor about new processes; close the listener here.

        Write the listener's number to `number_writer`, and wait until `copied_reader` ends.
        """
        if self.count:
            listener = install_listener(self.count)
            write_all(number_writer, str(listener).encode())
            os.close(number_writer)
            os.read(copied_reader, 1)  # returns at end of file, once the supervisor has its copy
            close_descriptors(copied_reader, listener)
        else:
            close_descriptors(number_writer, copied_reader)

    def confine_process(self, counter: tuple[int, int] | None) -> None:
        """Apply the limits, the Landlock ruleset and the filters to this process."""
        for kind, most in (
            (resource.RLIMIT_AS, ADDRESS_SPACE_FACTOR * self.limits["memory"]),
            (resource.RLIMIT_NPROC, self.threads + self.limits["processes"] + 1),
            (resource.RLIMIT_FSIZE, self.limits["files"]),
            (resource.RLIMIT_NOFILE, OPEN_FILES),
            (resource.RLIMIT_CORE, 1),  # 0 would still start a handler for core dumps
        ):
            lower_limit(kind, most, hard=True)
        lower_limit(
            resource.RLIMIT_STACK, STACK_BYTES, hard=False
        )  # scripts raise it for deep recursion
        if self.ruleset >= 0:
            restrict_self(self.ruleset)
            os.close(self.ruleset)  # with it, a program could widen the next test's rights
        if counter is not None:
            self.install_process_counter(*counter)
        if self.filter:
            install_filter(self.filter)


def serve_orders() -> None:
    """Run the supervisor of this process until standard input ends, then clean up."""
    write_all(1, pack_message({"started": True}))
    supervisor = Supervisor(receive_order())
    try:
        supervisor.serve()
    finally:
        supervisor.shut_down()
