"""Honest programs: the three kinds of tests, and what a program may count on."""

import site
import textwrap
from pathlib import Path

import anyio
import pytest

from batuta.tasks.sandbox import Call, Check, End, Limits, Program, Sandbox, Script, Tier

LIMITS = Limits(seconds=30)


async def play(sandbox, source, test, limits=LIMITS):
    (outcome,) = await sandbox.run(Program(textwrap.dedent(source)), (test,), limits)
    return outcome


# -- scripts ------------------------------------------------------------------------------------


async def test_a_script_reads_and_prints(sandbox):
    source = "import sys\nfor line in sys.stdin: print(line.strip()[::-1])\nprint(__name__)"
    outcome = await play(sandbox, source, Script("ab\nçd\n"))
    assert (outcome.end, outcome.status) == (End.RETURNED, 0)
    assert outcome.stdout == "ba\ndç\n__main__\n"


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
async def test_input_and_output_of_any_size(sandbox, size):
    outcome = await play(sandbox, "print(len(input()))", Script("x" * size + "\n"))
    assert outcome.stdout == f"{size}\n"
    outcome = await play(sandbox, f"print('y' * {size})", Script(""))
    assert outcome.stdout == "y" * size + "\n"


@pytest.mark.parametrize(
    ("source", "end", "status"),
    [
        ("import sys; sys.exit()", End.RETURNED, 0),
        ("import sys; sys.exit(3)", End.EXITED, 3),
        ("import sys; sys.exit('no')", End.EXITED, 1),
        ("import os; os._exit(0)", End.RETURNED, 0),
        ("exit()", End.RETURNED, 0),
        ("1 / 0", End.RAISED, 1),
        ("raise MemoryError", End.MEMORY, 1),
        ("import os; os.abort()", End.KILLED, -6),
        ("def f(:", End.RAISED, 1),
        ("\udc80", End.RAISED, 1),
    ],
)
async def test_how_scripts_end(sandbox, source, end, status):
    outcome = await play(sandbox, source, Script(""))
    assert (outcome.end, outcome.status) == (end, status)


async def test_a_traceback_shows_the_program_only(sandbox):
    outcome = await play(sandbox, "def f():\n    return {}['k']\nf()", Script(""))
    assert "KeyError: 'k'" in outcome.stderr
    assert 'File "program.py", line 2, in f' in outcome.stderr
    assert "inside" not in outcome.stderr


async def test_what_is_printed_late_is_not_lost(sandbox):
    source = """
        import atexit, io, sys, threading, time
        buffer = sys.stdout = io.StringIO()
        atexit.register(lambda: sys.__stdout__.write(buffer.getvalue()))
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
        print("main")
    """
    assert (await play(sandbox, source, Script(""))).stdout == "main\nthread\n"


async def test_deep_recursion_in_a_thread(sandbox):
    source = """
        import sys, threading
        sys.setrecursionlimit(10**6)
        threading.stack_size(2**27)
        def depth(n): return n and 1 + depth(n - 1)
        threading.Thread(target=lambda: print(depth(50_000))).start()
    """
    assert (await play(sandbox, source, Script(""))).stdout == "50000\n"


async def test_a_program_can_write_files_start_processes_and_loops(sandbox):
    source = """
        import asyncio, pathlib, subprocess, tempfile
        pathlib.Path("a").mkdir()
        pathlib.Path("a/b").write_text("kept")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("x")
        print(subprocess.run(["cat", "a/b"], capture_output=True, text=True).stdout)
        async def main():
            return await asyncio.sleep(0, "slept")
        print(asyncio.run(main()))
    """
    outcome = await play(sandbox, source, Script(""))
    assert outcome.stdout.split() == ["kept", "slept"], outcome.stderr


async def test_installed_packages_can_be_imported(sandbox):
    if not any(Path(folder, "anyio").exists() for folder in site.getsitepackages()):
        pytest.skip("nothing is installed for this interpreter itself")
    source = "import anyio, sys\nprint(anyio.__name__, [m for m in sys.path if 'src' in m])"
    assert (await play(sandbox, source, Script(""))).stdout == "anyio []\n"


async def test_sets_are_in_the_same_order_every_time(sandbox):
    source = "print(list({'one', 'two', 'three', 'four'}))"
    assert len({(await play(sandbox, source, Script(""))).stdout for _ in range(3)}) == 1


# -- calls --------------------------------------------------------------------------------------


async def test_calls_give_values(sandbox):
    source = """
        from __future__ import annotations
        def add(a, b): return {"sum": a + b, "pair": (a, b)}
        class Solution:
            def double(self, xs: list[int]) -> list[int]: return [2 * x for x in xs]
        if __name__ == "__main__": raise SystemExit("not a script")
    """
    program = Program(textwrap.dedent(source))
    tests = (Call("add", (1, 2.5)), Call("Solution().double", ([1, 2],)), Call("none"))
    added, doubled, missing = await sandbox.run(program, tests, LIMITS)
    assert added.value == {"sum": 3.5, "pair": [1, 2.5]}
    assert doubled.value == [2, 4]
    assert (missing.end, missing.value) == (End.RAISED, None)
    assert "NameError" in missing.stderr


@pytest.mark.parametrize(
    ("source", "end"),
    [
        ("def f(): return object()", End.RAISED),
        ("def f(): raise SystemExit(0)", End.EXITED),
        ("import os\ndef f(): os._exit(0)", End.EXITED),
        ("def f():\n a = []\n for _ in range(10**5): a = [a]\n return a", End.RAISED),
        ("def f(): print(1)", End.RETURNED),
    ],
)
async def test_how_calls_end(sandbox, source, end):
    outcome = await play(sandbox, source, Call("f"))
    assert (outcome.end, outcome.value) == (end, None)


async def test_annotations_mean_what_they_say(sandbox):
    """The warden's own `from __future__ import annotations` must not reach the program."""
    source = "def f(x: 1 + 1): pass\ndef g(): return f.__annotations__['x']"
    assert (await play(sandbox, source, Call("g"))).value == 2


async def test_only_the_program_s_first_process_reports(sandbox):
    source = "import os, time\ndef f():\n    if os.fork(): time.sleep(0.3)\n    return 'once'"
    assert (await play(sandbox, source, Call("f"))).value == "once"


# -- checks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "code", "end"),
    [
        ("def f(): return 1", "assert f() == 1", End.RETURNED),
        ("def f(): return 2", "assert f() == 1", End.RAISED),
        ("import sys\ndef f(): sys.exit(0)", "assert f() == 1", End.EXITED),
        ("import sys; sys.exit(0)", "assert f() == 1", End.EXITED),
        ("import os\ndef f(): os._exit(0)", "assert f() == 1", End.EXITED),
        ("import os, signal\ndef f(): os.kill(os.getpid(), 9)", "assert f() == 1", End.KILLED),
        ("raise BaseException", "assert f() == 1", End.RAISED),
        ("x = 1", "assert (", End.RAISED),
    ],
)
async def test_how_checks_end(sandbox, source, code, end):
    assert (await play(sandbox, source, Check(code))).end is end


async def test_a_report_cannot_be_forged_without_the_token(sandbox):
    source = """
        import os
        for descriptor in range(3, 64):
            try: os.write(descriptor, b'{"end": "returned", "token": "guess"}')
            except OSError: pass
        os._exit(0)
    """
    assert (await play(sandbox, source, Check("assert False"))).end is End.EXITED


# -- between tests and programs -----------------------------------------------------------------


async def test_a_test_finds_nothing_of_the_one_before(sandbox):
    source = """
        import os, sys
        try:
            print(os.listdir("."), os.listdir("/tmp"), hasattr(sys, "left"))
        except PermissionError:
            print([], [], hasattr(sys, "left"))
        sys.left = True
        os.makedirs("a/b"); open("a/b/c", "w").write("x"); os.symlink("/", "link")
        try: open("/tmp/left", "w")
        except OSError: pass
    """
    first, second = await sandbox.run(Program(textwrap.dedent(source)), (Script(""),) * 2, LIMITS)
    assert first.stdout.startswith("['") is False
    assert first.stdout == second.stdout


@pytest.mark.parametrize(
    "trap",
    [
        "for _ in range(25): os.mkdir('d' * 200); os.chdir('d' * 200)",
        "os.mkdir('d', 0o300); open('d/f', 'w')",
    ],
    ids=["deep", "closed"],
)
async def test_files_that_hide_count_without_end_and_do_not_reach_the_next_test(sandbox, trap):
    program = Program(f"import os\nprint(len(os.listdir('.')), flush=True)\n{trap}")
    for outcome in await sandbox.run(program, (Script(""),) * 2, LIMITS):
        assert (outcome.end, outcome.stdout) == (End.FILES, "0\n"), outcome.stderr


async def test_programs_run_side_by_side(sandbox):
    program, long = Program("import time\nif input(): time.sleep(600)"), Limits(seconds=600)
    async with sandbox.load(program, long) as first, sandbox.load(program, long) as second:
        async with anyio.create_task_group() as group:
            group.start_soon(first.run, Script("sleep\n"))
            assert (await second.run(Script("\n"))).end is End.RETURNED
            group.cancel_scope.cancel()


async def test_a_caller_can_stop_at_the_first_failure(sandbox):
    async with sandbox.load(Program("def f(n): return 1 // n"), LIMITS) as ready:
        ends = []
        for n in (2, 1, 0, 5):
            ends.append((await ready.run(Call("f", (n,)))).end)
            if ends[-1] is not End.RETURNED:
                break
    assert ends == [End.RETURNED, End.RETURNED, End.RAISED]


# -- the tier without isolation -----------------------------------------------------------------


async def test_none_runs_the_same_programs_and_keeps_limits(anyio_backend):
    async with Sandbox.open("none") as sandbox:
        assert sandbox.tier is Tier.NONE
        assert (await play(sandbox, "print(input())", Script("x"))).stdout == "x\n"
        forever = "import os\nos.fork()\nwhile True: pass"
        outcome = await play(sandbox, forever, Script(""), Limits(seconds=0.5))
        assert outcome.end is End.TIME
        bomb = "import os, time\nwhile True: os.fork() or time.sleep(9)"
        outcome = await play(sandbox, bomb, Script(""), Limits(processes=8))
        assert outcome.end in {End.PROCESSES, End.RAISED}
