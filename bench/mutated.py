"""Mutated requests in large numbers: `python bench/mutated.py [COUNT] [FIRST]`

Good requests of every route, bent at random, sent over sockets by every role to a server of this
process. A fault is a 5xx of ours, an answer that takes more than two seconds, the loop held for more
than 50 ms by one callback (processor time), or anything told that must not be told; exit status 1.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from batuta.store import Store
from gateway.hunting import watched_steps
from gateway.mutations import requests
from gateway.test_mutated import ABREAST, Village

SLOW, HELD = 2.0, 0.05


async def hunt(count, first):
    faults, statuses = [], {}
    slowest, began = 0.0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        async with Store(Path(folder) / "runs.db") as store, Village(store) as village:
            await village.settle()
            todo = iter(requests(first, count, village.ids))

            async def send():
                nonlocal slowest
                for role, plain in todo:
                    sent = village.signed(role, plain)
                    at = time.monotonic()
                    try:
                        answer = await village.send(sent)
                        if answer is not None:
                            village.judge(role, sent, answer)
                            statuses[answer.status] = statuses.get(answer.status, 0) + 1
                    except AssertionError as error:
                        faults.append(f"{role} {sent.place}: {error}")
                    took = time.monotonic() - at
                    slowest = max(slowest, took)
                    if took > SLOW:
                        faults.append(f"{role} {sent.place}: {took:.1f} s")

            with watched_steps() as steps:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(ABREAST):
                        tasks.create_task(send())
                longest = steps.longest
                if longest > HELD:
                    faults.append(f"the loop was held for {longest * 1e3:.0f} ms")
    return {
        "requests": count,
        "seconds": round(time.monotonic() - began),
        "statuses": dict(sorted(statuses.items())),
        "slowest_s": round(slowest, 2),
        "longest_step_ms": round(longest * 1e3, 1),
        "faults": faults[:50],
        "faults_in_all": len(faults),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    given = [int(word) for word in sys.argv[1:]]
    result = anyio.run(
        hunt, *(given + [10_000, 1_000_000][len(given) :]), backend_options={"use_uvloop": True}
    )
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["faults_in_all"] else 0)
