"""The sandbox: cold start and tests a second on two cores, for each tier that holds here.

`cold` is one program after another, each with two tests: `start` is the time until the first test
could begin (the first outcome less the time of the second test), `whole` ends when nothing is left;
both are medians.
`warm` is 400 tests of each of two programs side by side. The CPU time of all processes says more
than wall time on a machine that does other things. `python bench/sandbox.py`
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import time

from batuta.errors import SandboxError
from batuta.tasks.sandbox import Call, End, Program, Sandbox, Script, Tier

FUNCTION = Program("import math\ndef f(n):\n    return sum(math.isqrt(i) for i in range(n))")
SCRIPT = Program("n = int(input())\nprint(sum(int(x) for x in input().split()[:n]))")
TEST = Call("f", (10,))
COLD, WARM = 40, 400


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
        assert outcome.end is End.RETURNED
    row = {
        "start": statistics.median(starts),
        "whole": statistics.median(wholes),
        "whole_min": min(wholes),
        "cpu": (cpu() - before) / COLD,
    }
    return {name: round(value * 1000, 1) for name, value in row.items()}


async def warm(sandbox):
    """Tests a second, and CPU milliseconds a test."""
    before, began = cpu(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        group.create_task(sandbox.run(FUNCTION, (Call("f", (100,)),) * WARM))
        group.create_task(sandbox.run(SCRIPT, (Script("3\n1 2 3\n"),) * WARM))
    took = time.perf_counter() - began
    return {
        "tests_s": round(2 * WARM / took),
        "cpu_ms": round((cpu() - before) * 1000 / (2 * WARM), 2),
    }


async def measure(tier):
    try:
        async with Sandbox.open(tier) as sandbox:
            return {"tier": tier, "cold_ms": await cold(sandbox), "warm": await warm(sandbox)}
    except SandboxError as error:
        return {"tier": tier, "refused": str(error)}


def run():
    for tier in (Tier.BUBBLEWRAP, Tier.LANDLOCK, Tier.NONE):
        print(json.dumps(asyncio.run(measure(tier))), flush=True)


if __name__ == "__main__":
    run()
