"""The sandbox: cold start and tests a second on two cores, for each tier that holds here.

`cold` is one program after another, each with two tests: `start` is the time until the first test
could begin (the first outcome less the time of the second test), `whole` ends when nothing is left;
both are medians, `least` is the least of them. `cpu` is that of all processes, whole.
`warm` is 400 tests of each of two programs side by side. Wall time is of a machine that may do other
things, so beside it stands what two cores do that do nothing else: two seconds over the CPU time a
test. `python` is CPU time of the bare alternative: an interpreter a test, without any isolation.
`python bench/sandbox.py`
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from batuta.errors import SandboxError
from batuta.sandbox import CallTest, EndReason, Program, Sandbox, SandboxBackend, ScriptTest

FUNCTION = Program("import math\ndef f(n):\n    return sum(math.isqrt(i) for i in range(n))")
SCRIPT = Program("n = int(input())\nprint(sum(int(x) for x in input().split()[:n]))")
TEST, STDIN = CallTest("f", ("100",)), "3\n1 2 3\n"
COLD, WARM, BARE = 40, 400, 20


def cpu():
    """CPU seconds of this process and those that ended below it."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


async def cold(sandbox):
    """Milliseconds a program."""
    starts, wholes, before = [], [], cpu()
    for _ in range(COLD):
        began = time.perf_counter()
        async with sandbox.load(FUNCTION) as ready:
            await ready.run(TEST)
            first = time.perf_counter()
            outcome = await ready.run(TEST)
            starts.append(2 * first - time.perf_counter() - began)
        wholes.append(time.perf_counter() - began)
        assert outcome.end is EndReason.RETURNED
    row = {
        "start": statistics.median(starts),
        "least": min(starts),
        "whole": statistics.median(wholes),
        "cpu": (cpu() - before) / COLD,
    }
    return {name: round(value * 1000, 1) for name, value in row.items()}


async def warm(sandbox):
    """Tests a second, and CPU milliseconds a test."""
    before, began = cpu(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        group.create_task(sandbox.run(FUNCTION, (TEST,) * WARM))
        group.create_task(sandbox.run(SCRIPT, (ScriptTest(STDIN),) * WARM))
    took, spent = time.perf_counter() - began, (cpu() - before) / (2 * WARM)
    return {
        "tests_s": round(2 * WARM / took),
        "tests_s_of_two_idle_cores": round(2 / spent),
        "cpu_ms": round(spent * 1000, 2),
    }


def bare():
    """CPU milliseconds of an interpreter that runs the script and ends."""
    before = cpu()
    for _ in range(BARE):
        subprocess.run([sys.executable, "-c", SCRIPT.source], input=STDIN.encode(), check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    return round((cpu() - before) * 1000 / BARE, 1)


async def measure(tier):
    try:
        async with Sandbox.open(tier) as sandbox:
            return {"cold_ms": await cold(sandbox), "warm": await warm(sandbox)}
    except SandboxError as error:
        return {"refused": str(error)}


def run():
    for tier in (SandboxBackend.BUBBLEWRAP, SandboxBackend.LANDLOCK, SandboxBackend.NONE):
        row = {"tier": tier, **asyncio.run(measure(tier)), "python_ms": bare()}
        print(json.dumps(row | {"load": os.getloadavg()[0], "cores": os.cpu_count()}), flush=True)


if __name__ == "__main__":
    run()
