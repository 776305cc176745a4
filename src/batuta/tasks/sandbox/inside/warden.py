"""The warden: forks a child for each test, watches it, and ends all that is left of it.

Orders come in on standard input, replies leave on standard output; when the input ends, so does
the warden, and everything it started with it.
"""
# ruff: noqa: PTH102, PTH112, PTH118, PTH208 - no pathlib here, see the package

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

from .asking import GONE
from .child import answer, perform, run, test_program
from .kernel import (
    ALL_NETWORK,
    ALL_SCOPES,
    FILES,
    MAKE_DEVICES,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    READ,
    READ_FILE,
    USE_FILE,
    allow,
    decide_call,
    install,
    install_listener,
    lower,
    new_ruleset,
    prctl,
    restrict,
    take_descriptor,
)
from .pipes import Test, close, volunteer
from .usage import family, hidden, removal, remove, stored, tasks, threads_of_user, used
from .wire import end_of_orders, exactly, packed, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn

TICK = 0.02
"""Seconds between two looks at what a test uses."""
STACK = 8 << 20
OPEN_FILES = 256
MESSAGE = 16
"""Bytes of memory for each byte of a message: to read one takes many times its length."""
RESERVED = 4
"""Bytes that a process may reserve for each byte that the test may use."""
COMPANY = 512
"""Processes and threads that a user who does other things as well may start meanwhile."""


class Warden:
    """One sandbox, from the inside."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.tier: str = order["tier"]
        self.limits: dict[str, Any] = order["limits"]
        self.scratch: list[str] = order["scratch"]
        self.filter = bytes.fromhex(order["filter"])
        self.count = bytes.fromhex(order["count"])
        """The filter that lets the warden decide about new processes; empty: the kernel does."""
        self.listeners: list[int] = []
        self.ruleset = -1
        """Landlock's rules for the children; -1: none."""
        self.running = 0
        """The present test's process; 0: none."""
        self.program = 0
        """The process of a program whose tests run in another one; 0: none."""
        if order["folder"] is not None:  # made here, or a host that is killed leaves it behind
            os.mkdir(order["folder"], 0o700)
            if order["uid"] is not None:
                os.chown(order["folder"], order["uid"], order["uid"])
        self.settle(order["uid"])
        if self.tier == "landlock":
            self.fence(order["readable"], order["devices"])
        self.look_around()
        os.chdir(self.scratch[0])
        sys.path.extend(order["packages"])
        site.setquit()  # the builtins that -S leaves out: exit, quit
        for name in order["preload"]:  # once here instead of once a test
            with suppress(Exception):  # the program will see for itself
                __import__(name)
        alone = order["uid"] is not None or self.tier == "bubblewrap"
        self.threads = threads_of_user() + (0 if alone else COMPANY)
        gc.freeze()  # or the first collection in a child copies every page

    def settle(self, uid: int | None) -> None:
        """What holds in every tier."""
        volunteer(900)
        if uid is not None:  # limits on processes do not bind root
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans come back here to be ended
        prctl(PR_SET_DUMPABLE, 0)  # closes /proc/<warden>/mem to the children
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self.tier == "bubblewrap":
            # The first process of a namespace hears no signal from inside that it does not handle.
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        else:
            signal.signal(signal.SIGTERM, end_of_orders)
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def fence(self, readable: list[int], devices: list[int]) -> None:
        """Keep signals among this process and its children; prepare the children's own rules.

        There is no process namespace here: this is what `kill(-1)` stops at, ours and a test's.
        """
        outer = new_ruleset(0, 0, ALL_SCOPES)
        restrict(outer)
        os.close(outer)
        self.ruleset = new_ruleset(FILES, ALL_NETWORK, ALL_SCOPES)
        for descriptor in readable:
            folder = os.path.isdir(f"/proc/self/fd/{descriptor}")
            allow(self.ruleset, descriptor, READ if folder else READ_FILE)
        for descriptor in devices:
            allow(self.ruleset, descriptor, USE_FILE)
        for folder in self.scratch:
            descriptor = os.open(folder, os.O_PATH)
            allow(self.ruleset, descriptor, FILES & ~MAKE_DEVICES)
            os.close(descriptor)

    def look_around(self) -> None:
        """Be sure of the walls: `kill(-1)` and `tidy` would not stop at ones that are missing."""
        if self.tier == "bubblewrap" and os.getpid() != 1:
            sys.exit("there is no process namespace")
        if self.tier == "landlock":
            with suppress(PermissionError):
                os.kill(os.getppid(), 0)
                sys.exit("Landlock does not keep signals inside")
        for folder in self.scratch:
            if os.listdir(folder):
                sys.exit(f"{folder} is not a fresh one")

    def serve(self) -> NoReturn:
        """Play tests until the orders end."""
        send(1, packed({"ready": True}))
        while True:
            send(1, packed(self.play(receive())))

    def play(self, order: dict[str, Any]) -> dict[str, Any]:
        """One test, and nothing left of it."""
        test = Test(order)
        began = time.monotonic()
        if order["kind"] == "check":
            self.start_apart(test)
        else:
            self.running = self.start(test, lambda: perform(lambda: run(order), test.writers[2]))
        close(test.stdin, *test.writers)
        ended = self.watch(test, began + self.limits["seconds"])
        seconds = time.monotonic() - began
        status = self.end_all()
        close(*self.listeners)
        self.listeners.clear()
        for reader in test.readers:
            while not self.excess(test) and test.listen(reader):
                pass
        close(*test.readers)
        ended = ended or self.excess(test) or ("files" if self.full() else "")
        # So many files are removed with the sandbox, after the reply.
        spent = ended == "files" or not self.tidy()
        reply = {"ended": ended, "status": status, "seconds": seconds, "spent": spent}
        return reply | test.texts()

    def start(self, test: Test, main: Callable[[], int]) -> int:
        """A process that nobody trusts; its number."""
        if self.ruleset >= 0:  # the warden must see what it keeps open, from its first moment on
            prctl(PR_SET_DUMPABLE, 1)
        heard, tells, waits, taken = (*os.pipe(), *os.pipe())
        process = os.fork()
        if not process:
            close(heard, taken)
            self.become(test, main, (tells, waits))
        close(tells, waits)
        if self.count and (number := os.read(heard, 16)):
            self.listeners.append(take_descriptor(process, int(number)))
        close(heard, taken)
        prctl(PR_SET_DUMPABLE, 0)
        return process

    def start_apart(self, test: Test) -> None:
        """A process for the program, and one for its tests, which the program cannot look into.

        The text of the tests follows their order. Their own process reads it, and nobody else: a
        program finds in its memory all that the warden had in its own.
        """
        size: int = test.order["size"]
        asks, calls, answers, says, begun, begins = (*os.pipe(), *os.pipe(), *os.pipe())
        longest = max(self.limits["output"], self.limits["memory"] // MESSAGE)

        def program() -> int:
            close(calls, answers, begun, begins, test.writers[2])
            return answer(test.order, (asks, says, longest))

        def tests() -> int:
            close(asks, says)
            order, pipes = test.order, (answers, calls, longest)
            return perform(lambda: test_program(order, code, pipes), test.writers[2])

        self.program = self.start(test, program)
        self.running = os.fork()
        if not self.running:
            code = exactly(size).decode("utf-8", "surrogatepass")
            close(begun, begins)
            self.become(test, tests)
        close(asks, calls, answers, says, begins)
        os.read(begun, 1)  # nothing: the end of it, since the tests have been read
        close(begun)

    def watch(self, test: Test, deadline: float) -> str:
        """Wait for the end of the test's process; the limit that was overstepped, if one.

        The end of its pipes is not waited for: what it left behind may hold them.
        """
        process = os.pidfd_open(self.running)
        poll = select.poll()
        for descriptor in (0, process, *test.readers, *self.listeners):
            poll.register(descriptor, select.POLLIN)
        ended, look = "", time.monotonic() + TICK
        while not ended and (now := time.monotonic()) < deadline:
            ready = [one for one, _ in poll.poll(max(0, min(look, deadline) - now) * 1000)]
            if 0 in ready:  # no order comes during a test, so this is the end of them
                sys.exit()
            for over in filter(lambda one: self.is_over(test, one), ready):
                poll.unregister(over)
            ended = self.excess(test)
            if process in ready:
                break
            if time.monotonic() >= look:
                ended = ended or self.overstepped()
                look = time.monotonic() + TICK
        else:
            ended = ended or "time"
        os.close(process)
        return ended

    def is_over(self, test: Test, descriptor: int) -> bool:
        """Whether nothing more can come from there, after what has come was dealt with."""
        if descriptor in self.listeners:
            decide_call(descriptor, self.has_room)
        return descriptor in test.heard and not test.listen(descriptor)

    def has_room(self) -> bool:
        """Whether one more process or thread may start; the first too many ends the test."""
        threads = sum(len(tasks(process)) for process in family(os.getpid()))
        return threads <= self.limits["processes"] + (self.program > 0)

    def excess(self, test: Test) -> str:
        """`output`, if there is too much of it."""
        most = max(len(data) for data in test.heard.values())
        return "output" if most > self.limits["output"] else ""

    def overstepped(self) -> str:
        """The limit that the test is beyond at this moment, if one."""
        processes = family(os.getpid())
        threads, memory = used(processes)
        if threads > self.limits["processes"] + (self.program > 0):
            return "processes"
        if memory > self.limits["memory"]:
            return "memory"
        if self.program:  # what the tests keep open cannot be seen, and is not the program's
            processes = [process for process in processes if process != self.running]
        return "files" if self.full(processes) else ""

    def full(self, processes: Iterable[int] = ()) -> bool:
        """Whether the scratch holds as much as it may, with what these processes keep of it."""
        total = sum(map(stored, self.scratch))
        if self.ruleset >= 0:  # elsewhere, what is removed still counts where the scratch is
            total += hidden(processes, self.scratch[0])
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
        status = ends.get(self.running)
        if self.program and status == GONE:
            status = ends.get(self.program, status)
        self.running = self.program = 0
        return status

    def kill(self) -> None:
        """Kill all in one call, so that none can fork meanwhile; unisolated, one by one."""
        for target in family(os.getpid()) if self.tier == "none" else [-1]:
            with suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)

    def tidy(self) -> bool:
        """Empty the scratch; whether that was possible."""
        try:
            for folder in self.scratch:
                for name in os.listdir(folder):
                    remove(os.path.join(folder, name))
        except (OSError, RecursionError):
            return False
        return True

    def leave(self) -> None:
        """End what runs and remove a scratch that is a folder of the machine."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.end_all()
        if self.tier != "bubblewrap":
            command = removal(self.scratch[0])
            os.execv(command[0], command)  # noqa: S606 - there is nothing to quote

    # -- the child ----------------------------------------------------------------------------

    def become(
        self, test: Test, main: Callable[[], int], watched: tuple[int, int] | None = None
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
                volunteer(1000)
            os.setsid()
            for target, source in enumerate((test.stdin, *test.writers[:2])):
                os.dup2(source, target)
            close(test.stdin, *test.writers[:2], *test.readers)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # An exception out of nowhere could end a test that waits for one.
            signal.signal(signal.SIGINT, signal.SIG_DFL if trusted else signal.default_int_handler)
            self.shut_in(watched)
            sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 - for all its life
            sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
            status = main()
        except BaseException as error:  # noqa: BLE001 - it must not become a second warden
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(status)

    def be_counted(self, tells: int, waits: int) -> None:
        """Let the warden decide about new processes, and keep nothing of the means to do so."""
        if self.count:
            listener = install_listener(self.count)
            send(tells, str(listener).encode())
            os.close(tells)
            os.read(waits, 1)  # nothing: the end of it, once the warden has taken its copy
            close(waits, listener)
        else:
            close(tells, waits)

    def shut_in(self, watched: tuple[int, int] | None) -> None:
        """The limits and the walls; nothing undoes them."""
        for kind, most in (
            (resource.RLIMIT_AS, RESERVED * self.limits["memory"]),
            (resource.RLIMIT_NPROC, self.threads + self.limits["processes"] + 1),
            (resource.RLIMIT_FSIZE, self.limits["files"]),
            (resource.RLIMIT_NOFILE, OPEN_FILES),
            (resource.RLIMIT_CORE, 1),  # 0 would still start a program that takes in cores
        ):
            lower(kind, most, hard=True)
        lower(resource.RLIMIT_STACK, STACK, hard=False)  # scripts raise it for deep recursion
        if self.ruleset >= 0:
            restrict(self.ruleset)
            os.close(self.ruleset)  # with it, a program could widen the walls of the next test
        if watched is not None:
            self.be_counted(*watched)
        if self.filter:
            install(self.filter)


def main() -> None:
    """Serve to the end of the orders; leave nothing."""
    send(1, packed({"started": True}))
    warden = Warden(receive())
    try:
        warden.serve()
    finally:
        warden.leave()
