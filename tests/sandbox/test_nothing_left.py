"""When a run is cancelled, or the host dies, everything a program started ends with it."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import pytest

from batuta.sandbox import EndReason, Program, SandboxBackend, SandboxLimits, ScriptTest
from batuta.sandbox.inside.usage import descendant_processes

STUBBORN = Program("""
import os, signal, time
for number in range(1, 32):
    if number not in (9, 19): signal.signal(number, signal.SIG_IGN)
for _ in range(4):
    if not os.fork():
        os.setsid()
        os.fork()
        break
open("file", "w").write("x")
time.sleep(600)
""")
HOST = """
import anyio, sys
from batuta.sandbox import Program, Sandbox, SandboxLimits, ScriptTest
async def main(tier, source):
    async with Sandbox.open(tier) as sandbox:
        print("open", flush=True)
        await sandbox.run(Program(source), (ScriptTest(""),), SandboxLimits(seconds=600))
anyio.run(main, *sys.argv[1:])
"""

PATIENCE = 120
"""Seconds that a loaded machine may take; nobody waits for longer than it takes."""


@pytest.fixture
def temporary():
    """A folder for temporary files, like /tmp, that nobody else writes to meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        before, tempfile.tempdir = tempfile.tempdir, folder
        yield folder
        tempfile.tempdir = before


async def grown(parent, before=()):
    """The new processes below `parent`, once the program has started all of its own."""
    with anyio.fail_after(PATIENCE):
        while len(found := [p for p in descendant_processes(parent) if p not in before]) < 9:
            await anyio.sleep(0.05)
    return found


def alive(processes):
    """Those that still run; one that has ended and waits for init to read its end does not."""
    return [process for process in processes if state(process) not in {None, "Z", "X"}]


def state(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def leftovers(folder):
    return list(Path(folder).iterdir())


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_cancelled_run_ends_and_leaves_nothing(sandbox, temporary):
    processes, before = [], descendant_processes(os.getpid())

    async def cancel(scope):
        processes.extend(await grown(os.getpid(), before))
        scope.cancel()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(cancel, scope)
            await sandbox.run(STUBBORN, (ScriptTest(""),), SandboxLimits(seconds=600))
    assert alive(processes) == []
    assert leftovers(temporary) == []


async def test_who_stops_listening_does_not_hear_the_answer_later(sandbox):
    async with sandbox.load(Program("print(input())"), SandboxLimits(seconds=60)) as ready:
        for delay in (0, 0.005, 0.01, 0.02, 0.05, 0.1):
            await ready.run(ScriptTest("warm"))
            with anyio.move_on_after(delay):
                await ready.run(ScriptTest("old"))
            assert (await ready.run(ScriptTest("new"))).stdout == "new\n"


async def test_cancelling_at_any_moment_leaves_nothing(sandbox):
    before = descendant_processes(os.getpid())
    for delay in (0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2):
        with anyio.move_on_after(delay):
            await sandbox.run(STUBBORN, (ScriptTest(""),), SandboxLimits(seconds=600))
    assert descendant_processes(os.getpid()) == before
    (outcome,) = await sandbox.run(Program("print(1)"), (ScriptTest(""),))
    assert outcome.stdout == "1\n", "a slot was lost"


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
async def test_a_killed_host_leaves_nothing(sandbox, temporary, way):
    with host(sandbox.backend, temporary) as process:
        assert await anyio.to_thread.run_sync(process.stdout.readline) == "open\n"
        processes = await grown(process.pid)
        process.send_signal(way)
        process.wait()
    await gone(processes, temporary)


async def test_a_host_that_is_killed_while_it_opens_a_sandbox_leaves_nothing(sandbox, temporary):
    """Whether it has a folder, a process, both or none by then."""
    for delay in (0.2, 0.3, 0.4, 0.5, 0.6, 0.8):
        with host(sandbox.backend, temporary) as process:
            await anyio.sleep(delay)
            processes = descendant_processes(process.pid)
            process.kill()
            process.wait()
        await gone(processes, temporary)


def host(tier, temporary):
    """A process that has a sandbox, and its temporary files there."""
    command = [sys.executable, "-c", HOST, tier.value, STUBBORN.source]
    environment = {**os.environ, "TMPDIR": temporary}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


async def gone(processes, temporary):
    """Returns once these processes have ended and the folder is empty."""
    with anyio.fail_after(PATIENCE):
        while alive(processes) or leftovers(temporary):
            await anyio.sleep(0.02)


async def test_a_killed_warden_is_an_outcome_not_an_accident(sandbox):
    """As the kernel may do when the machine runs out of memory."""
    program = Program("import sys, time\nif input(): print('ran')\nelse: time.sleep(600)")
    ancestors = 2 if sandbox.backend is SandboxBackend.BUBBLEWRAP else 1
    before = descendant_processes(os.getpid())

    async def kill_warden():
        while (
            len(processes := [p for p in descendant_processes(os.getpid()) if p not in before])
            <= ancestors
        ):
            await anyio.sleep(0.01)
        os.kill(processes[ancestors - 1], signal.SIGKILL)

    async with sandbox.load(program, SandboxLimits(seconds=60)) as ready:
        async with anyio.create_task_group() as group:
            group.start_soon(kill_warden)
            assert (await ready.run(ScriptTest("\n"))).end is EndReason.LOST
        assert (await ready.run(ScriptTest("again\n"))).stdout == "ran\n"
    assert descendant_processes(os.getpid()) == before


async def test_many_programs_leave_no_process_file_or_descriptor(sandbox, temporary):
    await sandbox.run(Program("print(1)"), (ScriptTest(""),))  # what is opened once and for all
    descriptors, before = open_files(), descendant_processes(os.getpid())
    async with anyio.create_task_group() as group:
        for _ in range(12):
            group.start_soon(sandbox.run, Program("print(1)"), (ScriptTest(""),))
    assert descendant_processes(os.getpid()) == before
    assert open_files() == descriptors
    assert leftovers(temporary) == []
