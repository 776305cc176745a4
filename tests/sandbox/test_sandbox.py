"""Honest programs: the three kinds of tests, and what a program may count on."""

import site
import textwrap
from pathlib import Path

import anyio
import pytest

from batuta.sandbox import (
    AssertionTest,
    CallTest,
    EndReason,
    Program,
    Sandbox,
    SandboxBackend,
    SandboxLimits,
    ScriptTest,
)

LIMITS = SandboxLimits(seconds=30)


async def execute(sandbox, source, test, limits=LIMITS):
    (outcome,) = await sandbox.run(Program(textwrap.dedent(source)), (test,), limits)
    return outcome


# -- scripts ------------------------------------------------------------------------------------


async def test_a_script_reads_and_prints(sandbox):
    source = "import sys\nfor line in sys.stdin: print(line.strip()[::-1])\nprint(__name__)"
    outcome = await execute(sandbox, source, ScriptTest("ab\nçd\n"))
    assert (outcome.end, outcome.status) == (EndReason.RETURNED, 0)
    assert outcome.stdout == "ba\ndç\n__main__\n"


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
async def test_input_and_output_of_any_size(sandbox, size):
    outcome = await execute(sandbox, "print(len(input()))", ScriptTest("x" * size + "\n"))
    assert outcome.stdout == f"{size}\n"
    outcome = await execute(sandbox, f"print('y' * {size})", ScriptTest(""))
    assert outcome.stdout == "y" * size + "\n"


@pytest.mark.parametrize(
    ("source", "end", "status"),
    [
        ("import sys; sys.exit()", EndReason.RETURNED, 0),
        ("import sys; sys.exit(3)", EndReason.EXITED, 3),
        ("import sys; sys.exit('no')", EndReason.EXITED, 1),
        ("import os; os._exit(0)", EndReason.RETURNED, 0),
        ("exit()", EndReason.RETURNED, 0),
        ("1 / 0", EndReason.RAISED, 1),
        ("raise MemoryError", EndReason.MEMORY, 1),
        ("import os; os.abort()", EndReason.KILLED, -6),
        ("def f(:", EndReason.RAISED, 1),
        ("\udc80", EndReason.RAISED, 1),
    ],
)
async def test_how_scripts_end(sandbox, source, end, status):
    outcome = await execute(sandbox, source, ScriptTest(""))
    assert (outcome.end, outcome.status) == (end, status)


async def test_a_traceback_shows_the_program_only(sandbox):
    outcome = await execute(sandbox, "def f():\n    return {}['k']\nf()", ScriptTest(""))
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
    assert (await execute(sandbox, source, ScriptTest(""))).stdout == "main\nthread\n"


async def test_deep_recursion_in_a_thread(sandbox):
    source = """
        import sys, threading
        sys.setrecursionlimit(10**6)
        threading.stack_size(2**27)
        def depth(n): return n and 1 + depth(n - 1)
        threading.Thread(target=lambda: print(depth(50_000))).start()
    """
    assert (await execute(sandbox, source, ScriptTest(""))).stdout == "50000\n"


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
    outcome = await execute(sandbox, source, ScriptTest(""))
    assert outcome.stdout.split() == ["kept", "slept"], outcome.stderr


async def test_installed_packages_can_be_imported(sandbox):
    if not any(Path(folder, "anyio").exists() for folder in site.getsitepackages()):
        pytest.skip("nothing is installed for this interpreter itself")
    source = "import anyio, sys\nprint(anyio.__name__, [m for m in sys.path if 'src' in m])"
    assert (await execute(sandbox, source, ScriptTest(""))).stdout == "anyio []\n"


async def test_sets_are_in_the_same_order_every_time(sandbox):
    source = "print(list({'one', 'two', 'three', 'four'}))"
    assert len({(await execute(sandbox, source, ScriptTest(""))).stdout for _ in range(3)}) == 1


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
    tests = (
        CallTest("add", ("1", "2.5")),
        CallTest("Solution().double", ("[1, 2]",)),
        CallTest("none"),
    )
    added, doubled, missing = await sandbox.run(program, tests, LIMITS)
    assert added.value == {"sum": 3.5, "pair": [1, 2.5]}
    assert doubled.value == [2, 4]
    assert (missing.end, missing.value) == (EndReason.RAISED, None)
    assert "NameError" in missing.stderr


@pytest.mark.parametrize(
    ("source", "end"),
    [
        ("def f(): return object()", EndReason.RAISED),
        ("def f(): raise SystemExit(0)", EndReason.EXITED),
        ("import os\ndef f(): os._exit(0)", EndReason.EXITED),
        ("def f():\n a = []\n for _ in range(10**5): a = [a]\n return a", EndReason.RAISED),
        ("def f(): print(1)", EndReason.RETURNED),
    ],
)
async def test_how_calls_end(sandbox, source, end):
    outcome = await execute(sandbox, source, CallTest("f"))
    assert (outcome.end, outcome.value) == (end, None)


async def test_annotations_mean_what_they_say(sandbox):
    """The warden's own `from __future__ import annotations` must not reach the program."""
    source = "def f(x: 1 + 1): pass\ndef g(): return f.__annotations__['x']"
    assert (await execute(sandbox, source, CallTest("g"))).value == 2


async def test_only_the_program_s_first_process_reports(sandbox):
    source = "import os, time\ndef f():\n    if os.fork(): time.sleep(0.3)\n    return 'once'"
    assert (await execute(sandbox, source, CallTest("f"))).value == "once"


# -- checks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "code", "end"),
    [
        ("def f(): return 1", "assert f() == 1", EndReason.RETURNED),
        ("def f(): return 2", "assert f() == 1", EndReason.RAISED),
        ("import sys\ndef f(): sys.exit(0)", "assert f() == 1", EndReason.EXITED),
        ("import sys; sys.exit(0)", "assert f() == 1", EndReason.EXITED),
        ("import os\ndef f(): os._exit(0)", "assert f() == 1", EndReason.EXITED),
        (
            "import os, signal\ndef f(): os.kill(os.getpid(), 9)",
            "assert f() == 1",
            EndReason.KILLED,
        ),
        ("raise BaseException", "assert f() == 1", EndReason.RAISED),
        ("x = 1", "assert (", EndReason.RAISED),
    ],
)
@pytest.mark.parametrize("apart", [True, False])
async def test_how_checks_end(sandbox, source, code, end, apart):
    assert (await execute(sandbox, source, AssertionTest(code=code, separate=apart))).end is end


PREAMBLE = """
class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
    def __eq__(self, other): return type(other) is Node and self.value == other.value
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("def f(xs): xs.sort(); xs.append([1]); return xs", "a = [2, 1]; b = f(a); assert b is a == [1, 2, [1]]"),
        ("def f(d): d['k'].add(3); del d['old']", "d = {'k': {1}, 'old': 0}; k = d['k']; f(d); assert d == {'k': {1, 3}} and d['k'] is k"),
        ("def f(n): n.next = Node(n.value + 1); return n.next", "n = Node(1); m = f(n); assert m == Node(2) and n.next is m"),
        ("class Node:\n    def __init__(self, v): self.value = v\ndef f(): return Node(5)", "assert f() == Node(5)"),
        ("def f():\n    a = []; a.append(a); return a", "a = f(); assert a[0] is a"),
        ("def f(): return 1, [2.5, None, True], {'a': (3,)}, {4}, b'x', 2j, range(3), 10**5000",
         "assert f() == (1, [2.5, None, True], {'a': (3,)}, {4}, b'x', 2j, range(3), 10**5000)"),
        ("from collections import *\ndef f(): d = OrderedDict(a=1, b=2); d.move_to_end('a'); return d, Counter('aab'), deque([1], 3), defaultdict(int, a=1)",
         "o, c, d, e = f(); assert list(o) == ['b', 'a'] and c.most_common(1) == [('a', 2)] and d.maxlen == 3 and e['x'] == 0"),
        ("from datetime import *\nfrom decimal import *\nfrom fractions import *\ndef f(): return date(2020, 1, 2), datetime(2020, 1, 2, 3, tzinfo=timezone.utc), timedelta(1), Decimal('1.5'), Fraction(1, 3)",
         "from datetime import *\nfrom decimal import *\nfrom fractions import *\nassert f() == (date(2020, 1, 2), datetime(2020, 1, 2, 3, tzinfo=timezone.utc), timedelta(1), Decimal('1.5'), Fraction(1, 3))"),
        ("from collections import namedtuple\ndef f(): return namedtuple('P', 'x y')(1, 2)", "p = f(); assert p == (1, 2) and p.y == 2"),
        ("def f(x): raise ValueError('bad', x)", "import unittest\ntry: f(3)\nexcept ValueError as e: assert e.args == ('bad', 3)\nelse: assert 0"),
        ("class Own(KeyError): pass\ndef f(): raise Own('k')", "try: f()\nexcept KeyError as e: assert type(e).__name__ == 'Own'\ntry: f()\nexcept Own: pass"),
        ("def f():\n    for n in range(3): yield n * n", "g = f(); assert next(g) == 0 and list(g) == [1, 4]"),
        ("def f(g, xs): return [g(x) for x in xs]", "seen = []; assert f(lambda x: seen.append(x) or x * 2, [1, 2]) == [2, 4] and seen == [1, 2]"),
        ("class Stack:\n    def __init__(self): self.held = []\n    def push(self, x): self.held.append(x)\n    def __len__(self): return len(self.held)\n    def __eq__(self, o): return self.held == o.held",
         "s, t = Stack(), Stack(); s.push(4); assert len(s) == 1 and s.held == [4] and s != t; t.push(4); assert s == t and isinstance(s, Stack)"),
        ("import random\ndef f(): return random.random()", "import random\nrandom.seed(7); a = f(); random.seed(7); assert a == f()"),
        ("def f(): print('seen')", "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as out: f()\nassert out.getvalue() == 'seen\\n'"),
        ("def f(path): open(path, 'w').write('x')", "import os\nf('file'); assert os.path.exists('file') and open('file').read() == 'x'"),
        ("def sum(a, b): return a - b", "assert abs(-1) == 1 and entry(3, 2) == 1"),
    ],
)  # fmt: skip
async def test_tests_that_run_apart_see_what_a_program_does(sandbox, source, code):
    outcome = await execute(
        sandbox,
        source,
        AssertionTest(code=code.replace("entry", "sum"), preamble=PREAMBLE, entry="sum"),
    )
    assert outcome.end is EndReason.RETURNED, outcome.stderr


@pytest.mark.parametrize(
    ("source", "code", "end"),
    [
        ("def f(): raise MemoryError", "f()", EndReason.MEMORY),
        ("def f(): return bytearray(1 << 40)", "f()", EndReason.MEMORY),
        ("class E:\n    @property\n    def __class__(self): raise MemoryError\ndef f(): return [E()]", "f()", EndReason.MEMORY),
        ("def f(): raise MemoryError\ndef g(): return 3", "try: f()\nexcept MemoryError: assert g() == 3", EndReason.RETURNED),
        ("def g(): raise MemoryError\ndef f(call):\n    try: call()\n    except MemoryError: return 3", "assert f(lambda: g()) == 3", EndReason.RETURNED),
    ],
)  # fmt: skip
async def test_a_program_without_memory_says_so_to_its_tests(sandbox, source, code, end):
    assert (await execute(sandbox, source, AssertionTest(code=code))).end is end


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("def f(): return 1", "assert f() is True"),
        ("class E:\n    __eq__ = lambda s, o: True\ndef f(): return E()", "assert f() == 1"),
        ("class E:\n    __sub__ = lambda s, o: 0\ndef f(): return E()", "assert abs(f() - 3) < 1"),
        ("class E:\n    __contains__ = lambda s, o: True\n    __iter__ = lambda s: iter(())\ndef f(): return E()", "assert 3 in f()"),
        ("class E(int):\n    __eq__ = lambda s, o: True\ndef f(): return E(4)", "assert f() == 5"),
        ("class Node:\n    __eq__ = lambda s, o: True\n    value = 0\ndef f(): return Node()", "assert f() == Node(1)"),
        ("def isinstance(*a): return True\ndef abs(x): return 0\ndef f(): return 9", "assert abs(f() - 3) < 1"),
        ("class math:\n    isclose = lambda *a: True\ndef f(): return 9", "assert math.isclose(f(), 3)"),
        ("import os\ndef f(): os._exit(0)", "try: f()\nexcept BaseException: pass"),
    ],
)  # fmt: skip
async def test_what_tests_compare_they_compare_themselves(sandbox, source, code):
    outcome = await execute(sandbox, source, AssertionTest(code=code, preamble=PREAMBLE))
    assert outcome.end in {EndReason.RAISED, EndReason.EXITED}, outcome.stderr


async def test_slots_are_sent_both_ways(sandbox):
    preamble = """
class Base:
    __slots__ = ("left", "__own", "__weakref__")
    def __init__(self): self.left, self.__own = 1, 3
    def own(self): return self.__own

class Pair(Base):
    __slots__ = "right"
    def __init__(self): super().__init__(); self.right = 2

class Further(Pair): pass
"""
    source = """
        def f(pair): del pair.left; pair.right += pair.own()
        def g(pair): del pair.more; del pair.right
    """
    code = """
pair = Pair(); f(pair)
assert not hasattr(pair, "left") and (pair.right, pair.own()) == (5, 3)
pair = Further(); pair.more = 4; g(pair)
assert vars(pair) == {} and not hasattr(pair, "right") and (pair.left, pair.own()) == (1, 3)
"""
    outcome = await execute(sandbox, source, AssertionTest(code=code, preamble=preamble))
    assert outcome.end is EndReason.RETURNED, outcome.stderr


async def test_a_program_finds_no_text_of_its_tests(sandbox):
    source = """
        import gc
        def f():
            # A word that no address or number in a repr can contain, and that stands nowhere in here.
            secret = "".join(reversed("tauqmuk"))
            return any(secret in repr(x) for x in gc.get_objects() if isinstance(x, (dict, list, str)))
    """
    outcome = await execute(sandbox, source, AssertionTest(code="assert f() is False  # kumquat"))
    assert outcome.end is EndReason.RETURNED, outcome.stderr


async def test_a_report_cannot_be_forged_without_the_token(sandbox):
    source = """
        import os
        for descriptor in range(3, 64):
            try: os.write(descriptor, b'{"end": "returned", "token": "guess"}')
            except OSError: pass
        os._exit(0)
    """
    for apart in (True, False):
        check = AssertionTest(code="assert False", separate=apart)
        # What it writes may reach the supervisor, which ends whoever speaks out of turn.
        assert (await execute(sandbox, source, check)).end in {EndReason.EXITED, EndReason.KILLED}


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
    first, second = await sandbox.run(
        Program(textwrap.dedent(source)), (ScriptTest(""),) * 2, LIMITS
    )
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
    for outcome in await sandbox.run(program, (ScriptTest(""),) * 2, LIMITS):
        assert (outcome.end, outcome.stdout) == (EndReason.FILES, "0\n"), outcome.stderr


async def test_programs_run_side_by_side(sandbox):
    program, long = Program("import time\nif input(): time.sleep(600)"), SandboxLimits(seconds=600)
    async with sandbox.load(program, long) as first, sandbox.load(program, long) as second:
        async with anyio.create_task_group() as group:
            group.start_soon(first.run, ScriptTest("sleep\n"))
            assert (await second.run(ScriptTest("\n"))).end is EndReason.RETURNED
            group.cancel_scope.cancel()


async def test_a_caller_can_stop_at_the_first_failure(sandbox):
    async with sandbox.load(Program("def f(n): return 1 // n"), LIMITS) as ready:
        ends = []
        for n in (2, 1, 0, 5):
            ends.append((await ready.run(CallTest("f", (str(n),)))).end)
            if ends[-1] is not EndReason.RETURNED:
                break
    assert ends == [EndReason.RETURNED, EndReason.RETURNED, EndReason.RAISED]


# -- the tier without isolation -----------------------------------------------------------------


async def test_none_runs_the_same_programs_and_keeps_limits(anyio_backend):
    async with Sandbox.open("none") as sandbox:
        assert sandbox.backend is SandboxBackend.NONE
        assert (await execute(sandbox, "print(input())", ScriptTest("x"))).stdout == "x\n"
        forever = "import os\nos.fork()\nwhile True: pass"
        outcome = await execute(sandbox, forever, ScriptTest(""), SandboxLimits(seconds=0.5))
        assert outcome.end is EndReason.TIME
        bomb = "import os, time\nwhile True: os.fork() or time.sleep(9)"
        outcome = await execute(sandbox, bomb, ScriptTest(""), SandboxLimits(processes=8))
        assert outcome.end in {EndReason.PROCESSES, EndReason.RAISED}
