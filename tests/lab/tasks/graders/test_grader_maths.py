"""Mathematics: the box, hostile expressions, and processes that die without harm."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from batuta.errors import ConfigError
from batuta.lab.tasks.graders import ComparisonResult, MathsGrader, MathsPool
from batuta.lab.tasks.graders.comparison_pool import require_extra
from batuta.lab.tasks.graders.limits import limit_violation
from batuta.language import answer_extraction

pytestmark = pytest.mark.anyio

ENDLESS = (r"\sum_{k=1}^{10^{9}} \sin(k^2)", r"\sum_{k=1}^{10^{9}} \cos(k^2)")
"""Takes an hour to compare."""

HOSTILE = [
    "9^{9^{9^9}}",
    "(10^{10})!",
    "((10^{10})!)!",
    "2^{2^{2^{2^{2^2}}}}",
    r"\binom{10^9}{5 \cdot 10^8}",
    "0." + "1" * 250,
    "(" * 39 + "x" + ")" * 39,
    r"\frac{" * 20 + "1" + "}{2}" * 20,
    r"\sqrt" * 800 + "2",
    "x" + "+x" * 2000,
    r"\text{" + "a " * 1500 + "}",
    "1," * 2000,
    "," * 4000,
    "<" * 4000,
    "\\" * 4000,
    "1" + " " * 4000 + "2",
    "\x00" * 100 + "5",
    "\ud800",
    r"\begin{pmatrix}" + r"1 & 2 \\" * 400 + r"\end{pmatrix}",
]
REFUSED = ["9" * 300, "{" * 300 + "5" + "}" * 300, "[" * 5000, "x" * 1_000_000]


@pytest.mark.slow
@pytest.mark.parametrize("answer", HOSTILE + REFUSED, ids=lambda text: ascii(text[:20]))
async def test_hostile_answers_come_back_and_the_pool_goes_on(pool, answer):
    grade = await MathsGrader(pool).grade(f"\\boxed{{{answer}}}", r"\sqrt{2}")
    assert grade.score in {0.0, None}
    assert await pool.compare(r"\sqrt{8}", r"2\sqrt{2}") is ComparisonResult.SAME


@pytest.mark.parametrize("answer", REFUSED, ids=lambda text: text[:10])
async def test_beyond_the_limits_nothing_is_compared(answer):
    assert limit_violation(answer)


async def test_a_megabyte_is_read_in_no_time(pool):
    texts = [
        "\\boxed{" * 140_000,
        "\\boxed{5} " * 100_000 + "\\boxed{6}",
        "<answer>" * 125_000,
        " " * 1_000_000 + "\\boxed{6}",
        "<think>" + "x" * 1_000_000,
    ]
    for text in texts:
        started = time.process_time()
        assert (await MathsGrader(pool).grade(text, "7")).score == 0
        assert time.process_time() - started < 4


@pytest.mark.slow
async def test_what_takes_too_long_is_undecided(pool):
    with anyio.fail_after(110):
        grade = await MathsGrader(pool).grade(f"\\boxed{{{ENDLESS[0]}}}", ENDLESS[1])
    assert grade.score is None
    assert grade.extracted == ENDLESS[0]
    assert "too long" in grade.reason


@pytest.mark.slow
async def test_the_pool_outlives_its_processes():
    with MathsPool() as mine:
        assert await mine.compare("x", "x+1") is ComparisonResult.DIFFERENT
        (process,) = mine.process_ids
        os.kill(process, signal.SIGKILL)
        await anyio.sleep(0.3)
        assert await mine.compare(r"\sqrt{8}", r"2\sqrt{2}") is ComparisonResult.SAME
        assert process not in mine.process_ids
    assert not mine.process_ids


@pytest.mark.slow
async def test_a_comparison_whose_process_dies_is_undecided():
    with MathsPool() as mine:
        await mine.compare("x", "y")
        (process,) = mine.process_ids
        async with anyio.create_task_group() as group:

            async def kill():
                await anyio.sleep(0.5)
                os.kill(process, signal.SIGKILL)

            group.start_soon(kill)
            assert await mine.compare(*ENDLESS) is ComparisonResult.OUT_OF_MEMORY


async def test_cancelling_frees_the_process(pool):
    with anyio.move_on_after(0.3) as scope:
        await pool.compare(*ENDLESS)
    assert scope.cancelled_caught
    with anyio.fail_after(110):
        assert await pool.compare(r"\sqrt{8}", r"2\sqrt{2}") is ComparisonResult.SAME


ORPHAN = """
import asyncio, sys
from batuta.lab.tasks.graders import MathsPool

async def main():
    pool = MathsPool()
    await pool.compare("x", "y")
    print(*pool.process_ids, flush=True)
    await pool.compare(*sys.argv[1:])

asyncio.run(main())
"""
"""A script without a guard: no process of the pool runs it again."""


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
def test_no_process_is_left_when_its_owner_is_killed(tmp_path):
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    owner = subprocess.Popen([sys.executable, script, *ENDLESS], stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    time.sleep(0.5)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    until = time.monotonic() + 100
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not is_running(pid)


def test_a_missing_library_is_named_with_its_remedy():
    require_extra("graders", "json")
    with pytest.raises(ConfigError, match=r"nowhere_such is not .*pip install -e '\.\[graders\]'"):
        require_extra("graders", "json", "nowhere_such")


def test_boxes():
    assert answer_extraction.boxed_answer(r"\boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert answer_extraction.boxed_answer(r"\boxed{\{1\}} and \boxed{2}") == r"\{1\}, 2"
    assert answer_extraction.boxed_answer(r"\boxed{1}, but after a longer thought \boxed{2}") == "2"
    assert answer_extraction.boxed_answer(r"\boxed{a\}b}") == r"a\}b"
    assert answer_extraction.boxed_answer(r"\boxed{1} \boxed{2") is None
    assert answer_extraction.boxed_answer("none") is None


async def test_an_answer_is_never_taken_from_prose(pool):
    for text in ("It is 5.\nSo 5.", "The answer is 5, since 2 + 3 = 5.\nThat was all.", ""):
        assert (await MathsGrader(pool).grade(text, "5")).score == 0
