"""The supervisor: forks a child for each test, watches it, and ends all that is left of it.

Orders come in on standard input, replies leave on standard output; when the input ends, so does
the supervisor, and everything it started with it.
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
"""Seconds between two looks at what a test uses."""
STACK_BYTES = 8 << 20
OPEN_FILES = 256
MEMORY_PER_MESSAGE_BYTE = 16
"""Bytes of memory for each byte of a message: to read one takes many times its length."""
ADDRESS_SPACE_FACTOR = 4
"""Bytes that a process may reserve for each byte that the test may use."""
OTHER_USER_THREADS = 512
"""Processes and threads that a user who does other things as well may start meanwhile."""


class Supervisor:
    """One sandbox, from the inside."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.backend: str = order["tier"]
        self.limits: dict[str, Any] = order["limits"]
        self.scratch: list[str] = order["scratch"]
        self.filter = bytes.fromhex(order["filter"])
        self.count = bytes.fromhex(order["count"])
        """Lets the supervisor decide about new processes; empty: the kernel does."""
        self.listeners: list[int] = []
        self.ruleset = -1
        """Landlock's rules for the children; -1: none."""
        self.test_pid = 0
        """The present test's process; 0: none."""
        self.program_pid = 0
        """The process of a program whose tests run in another one; 0: none."""
        if order["folder"] is not None:  # made here, or a host that is killed leaves it behind
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
        for name in order["preload"]:  # once here instead of once a test
            with suppress(Exception):  # the program will see for itself
                __import__(name)
        alone = order["uid"] is not None or self.backend == "bubblewrap"
        self.threads = threads_of_user() + (0 if alone else OTHER_USER_THREADS)
        gc.freeze()  # or the first collection in a child copies every page

    def drop_privileges(self, uid: int | None) -> None:
        """Set the limits that hold in every tier."""
        set_oom_score(900)
        if uid is not None:  # limits on processes do not bind root
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans come back here to be ended
        prctl(PR_SET_DUMPABLE, 0)  # closes /proc/<supervisor>/mem to the children
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self.backend == "bubblewrap":
            # The first process of a namespace hears no signal from inside that it does not handle.
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        else:
            signal.signal(signal.SIGTERM, close_orders)
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def apply_landlock(self, readable: list[int], devices: list[int]) -> None:
        """Keep signals among this process and its children; prepare the children's own rules.

        There is no process namespace here: this is what `kill(-1)` stops at, ours and a test's.
        """
        outer = new_ruleset(0, 0, ALL_SCOPES)
        restrict_self(outer)
        os.close(outer)
        self.ruleset = new_ruleset_of_paths(readable, devices, self.scratch)

    def check_isolation(self) -> None:
        """Be sure of the walls: `kill(-1)` and `empty_folder` stop at no missing ones."""
        if self.backend == "bubblewrap" and os.getpid() != 1:
            sys.exit("there is no process namespace")
        if self.backend == "landlock":
            with suppress(PermissionError):
                os.kill(os.getppid(), 0)
                sys.exit("Landlock does not keep signals inside")
        for folder in self.scratch:
            if os.listdir(folder):
                sys.exit(f"{folder} is not a fresh one")

    def serve(self) -> NoReturn:
        """Run tests until the orders end."""
        write_all(1, pack_message({"ready": True}))
        while True:
            write_all(1, pack_message(self.run_test(receive_order())))

    def run_test(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run one test, and leave nothing of it."""
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
        # So many files are removed with the sandbox, after the reply.
        spent = ended == "files" or not all(map(empty_folder, self.scratch))
        reply = {"ended": ended, "status": status, "seconds": seconds, "spent": spent}
        return reply | test.texts()

    def start_process(self, test: RunningTest, main: Callable[[], int]) -> int:
        """Start a process that nobody trusts, and return its number."""
        if self.ruleset >= 0:  # the supervisor must see from the start what it keeps open
            prctl(PR_SET_DUMPABLE, 1)
        counted, tells, waits, taken = (*os.pipe(), *os.pipe())
        process = os.fork()
        if not process:
            close_descriptors(counted, taken)
            self.run_in_child(test, main, (tells, waits))
        close_descriptors(tells, waits)
        if self.count and (number := os.read(counted, 16)):
            self.listeners.append(take_descriptor(process, int(number)))
        close_descriptors(counted, taken)
        prctl(PR_SET_DUMPABLE, 0)
        return process

    def start_separate_tests(self, test: RunningTest) -> None:
        """Start a process for the program, and one for its tests that it cannot look into.

        The text of the tests follows their order. Their own process reads it, and nobody else: a
        program finds in its memory all that the supervisor had in its own.
        """
        size: int = test.order["size"]
        asks, calls, answers, says, begun, begins = (*os.pipe(), *os.pipe(), *os.pipe())
        longest = max(self.limits["output"], self.limits["memory"] // MEMORY_PER_MESSAGE_BYTE)

        def program() -> int:
            close_descriptors(calls, answers, begun, begins, test.writers[2])
            return serve_program(test.order, (asks, says, longest))

        def tests() -> int:
            close_descriptors(asks, says)
            order, pipes = test.order, (answers, calls, longest)
            return run_and_report(lambda: run_separate_tests(order, code, pipes), test.writers[2])

        self.program_pid = self.start_process(test, program)
        self.test_pid = os.fork()
        if not self.test_pid:
            code = read_exactly(size).decode("utf-8", "surrogatepass")
            close_descriptors(begun, begins)
            self.run_in_child(test, tests)
        close_descriptors(asks, calls, answers, says, begins)
        os.read(begun, 1)  # nothing: the end of it, since the tests have been read
        close_descriptors(begun)

    def watch(self, test: RunningTest, deadline: float) -> str:
        """Wait for the end of the test's process; the limit that was overstepped, if one.

        The end of its pipes is not waited for: what it left behind may hold them.
        """
        process = os.pidfd_open(self.test_pid)
        poll = select.poll()
        for descriptor in (0, process, *test.readers, *self.listeners):
            poll.register(descriptor, select.POLLIN)
        ended, look = "", time.monotonic() + WATCH_INTERVAL
        while not ended and (now := time.monotonic()) < deadline:
            ready = [one for one, _ in poll.poll(max(0, min(look, deadline) - now) * 1000)]
            if 0 in ready:  # no order comes during a test, so this is the end of them
                sys.exit()
            for over in filter(lambda one: self.is_over(test, one), ready):
                poll.unregister(over)
            ended = self.exceeded_output(test)
            if process in ready:
                break
            if time.monotonic() >= look:
                ended = ended or self.exceeded_limit()
                look = time.monotonic() + WATCH_INTERVAL
        else:
            ended = ended or "time"
        os.close(process)
        return ended

    def is_over(self, test: RunningTest, descriptor: int) -> bool:
        """Return True if nothing more can come from there, once what has come was dealt with."""
        if descriptor in self.listeners:
            decide_call(descriptor, self.has_room)
        return descriptor in test.received and not test.read_available(descriptor)

    def has_room(self) -> bool:
        """Return True if one more process or thread may start; the first too many ends the test."""
        threads = sum(len(thread_folders(process)) for process in descendant_processes(os.getpid()))
        return threads <= self.limits["processes"] + (self.program_pid > 0)

    def exceeded_output(self, test: RunningTest) -> str:
        """Return `output`, if there is too much of it."""
        most = max(len(data) for data in test.received.values())
        return "output" if most > self.limits["output"] else ""

    def exceeded_limit(self) -> str:
        """Return the limit that the test is beyond at this moment, if one."""
        processes = descendant_processes(os.getpid())
        threads, memory = threads_and_memory(processes)
        if threads > self.limits["processes"] + (self.program_pid > 0):
            return "processes"
        if memory > self.limits["memory"]:
            return "memory"
        if self.program_pid:  # what the tests keep open cannot be seen, and is not the program's
            processes = [process for process in processes if process != self.test_pid]
        return "files" if self.is_full(processes) else ""

    def is_full(self, processes: Iterable[int] = ()) -> bool:
        """Return True if the scratch is full, with what these processes keep of it."""
        total = sum(map(stored_bytes, self.scratch))
        if self.ruleset >= 0:  # elsewhere, what is removed still counts where the scratch is
            total += deleted_open_bytes(processes, self.scratch[0])
        return total >= self.limits["files"]

    def end_all(self) -> int | None:
        """End every process but this one; the exit status of the test's, if there is a test."""
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
        """Kill all in one call, so that none can fork meanwhile; unisolated, one by one."""
        for target in descendant_processes(os.getpid()) if self.backend == "none" else [-1]:
            with suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)

    def shut_down(self) -> None:
        """End what runs and remove a scratch that is a folder of the machine."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.end_all()
        if self.backend != "bubblewrap":
            command = removal_command(self.scratch[0])
            os.execv(command[0], command)  # noqa: S606 - there is nothing to quote

    # -- the child ----------------------------------------------------------------------------

    def run_in_child(
        self, test: RunningTest, main: Callable[[], int], watched: tuple[int, int] | None = None
    ) -> NoReturn:
        """Be a process of the test: shut oneself in, then run `main` to its exit status.

        Without pipes to the one who watches it, it is trusted, and stays closed to those beside it,
        in `/proc` as well.
        """
        status, trusted = 1, watched is None
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if not trusted:
                prctl(PR_SET_DUMPABLE, 1)  # or its own score is closed to it
                set_oom_score(1000)
            os.setsid()
            for target, source in enumerate((test.stdin, *test.writers[:2])):
                os.dup2(source, target)
            close_descriptors(test.stdin, *test.writers[:2], *test.readers)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # An exception out of nowhere could end a test that waits for one.
            signal.signal(signal.SIGINT, signal.SIG_DFL if trusted else signal.default_int_handler)
            self.confine_process(watched)
            sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 - for all its life
            sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
            status = main()
        except BaseException as error:  # noqa: BLE001 - it must not become a second supervisor
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(status)

    def install_process_counter(self, tells: int, waits: int) -> None:
        """Let the supervisor decide about new processes, and keep nothing of the means to do so."""
        if self.count:
            listener = install_listener(self.count)
            write_all(tells, str(listener).encode())
            os.close(tells)
            os.read(waits, 1)  # nothing: the end of it, once the supervisor has taken its copy
            close_descriptors(waits, listener)
        else:
            close_descriptors(tells, waits)

    def confine_process(self, watched: tuple[int, int] | None) -> None:
        """Set the limits and the walls; nothing undoes them."""
        for kind, most in (
            (resource.RLIMIT_AS, ADDRESS_SPACE_FACTOR * self.limits["memory"]),
            (resource.RLIMIT_NPROC, self.threads + self.limits["processes"] + 1),
            (resource.RLIMIT_FSIZE, self.limits["files"]),
            (resource.RLIMIT_NOFILE, OPEN_FILES),
            (resource.RLIMIT_CORE, 1),  # 0 would still start a program that takes in cores
        ):
            lower_limit(kind, most, hard=True)
        lower_limit(
            resource.RLIMIT_STACK, STACK_BYTES, hard=False
        )  # scripts raise it for deep recursion
        if self.ruleset >= 0:
            restrict_self(self.ruleset)
            os.close(self.ruleset)  # with it, a program could widen the walls of the next test
        if watched is not None:
            self.install_process_counter(*watched)
        if self.filter:
            install_filter(self.filter)


def serve_orders() -> None:
    """Serve to the end of the orders; leave nothing."""
    write_all(1, pack_message({"started": True}))
    supervisor = Supervisor(receive_order())
    try:
        supervisor.serve()
    finally:
        supervisor.shut_down()
