"""Mutated replies of upstreams in large numbers: `python bench/mutated_replies.py [COUNT] [FIRST]`

Every exchange of tests/wires, its reply cut, joined, repeated, reordered, corrupted and sent in bad
ways, asked for in every dialect, streamed and whole, passed through and conducted. A fault is an error
of ours, an answer of more than two seconds, the loop held for more than 50 ms by one callback
(processor time), words of the upstream that are in no answer that is no error, or a cost below what
the upstream stated. Each reply depends on its number alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import aiohttp
import anyio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from batuta.clients import HttpTransport
from batuta.gateway.serve import reduce_collections
from gateway.loop_steps import watched_steps  # pyright: ignore[reportMissingImports]
from mutated import (
    HELD,
    SLOW,
    UNDECIDED,
    Collections,
    figures,
    seconds_without_a_core,
    wait_between,
)
from wires import bent_replies as bent  # pyright: ignore[reportMissingImports]
from wires.client_view import read_answer  # pyright: ignore[reportMissingImports]

ABREAST = 5
PATIENCE = 60.0


class Hunt:
    """The answers so far."""

    def __init__(self):
        self.began, self.sent = time.monotonic(), 0
        self.faults, self.starved = [], Counter()
        self.statuses, self.errors = Counter(), 0
        self.slowest = self.slowest_own = 0.0

    async def send(self, server, upstream, store, number):
        one = bent.asked(number)
        at, waited = time.monotonic(), seconds_without_a_core()
        try:
            async with asyncio.timeout(PATIENCE):
                status, raw = await bent.tell(server, upstream, one)
        except (TimeoutError, aiohttp.ClientError) as error:
            self.faults.append(f"{one.place}: no answer: {error!r}")
            return
        took = time.monotonic() - at
        own = took
        if took > SLOW:
            own = max(0.0, took - wait_between(waited, seconds_without_a_core()))
        self.slowest, self.slowest_own = max(self.slowest, took), max(self.slowest_own, own)
        if own > SLOW:
            self.faults.append(f"{one.place}: {own:.1f} s")
        elif took > SLOW:
            self.starved[one.place] += 1
        self.sent += 1
        self.statuses[status] += 1
        run, given = await bent.stored(store, number), upstream.given.pop(number, [])
        del upstream.ready[number]
        try:
            self.errors += read_answer(one.dialect, status, raw, streamed=one.mode == "streamed").error is not None  # fmt: skip
            fault = bent.judge(one, status, raw, run, given)
        except (AssertionError, LookupError, TypeError, ValueError) as error:
            fault = f"{error!r:.300} of {raw[-500:]!r}"
        if fault:
            self.faults.append(f"{one.place}: {fault}")


async def hunt(count, first):
    hunted = Hunt()
    with tempfile.TemporaryDirectory() as folder:
        async with bent.KeepingStore(Path(folder) / "runs.db") as store, HttpTransport() as http:
            numbers = range(first, first + count)
            with reduce_collections(), watched_steps() as steps:
                collections = Collections()
                for start in range(first, first + count, bent.BLOCK):
                    block = numbers[start - first : start - first + bent.BLOCK]
                    await ask_block(
                        hunted, store, http, [n for n in block if not bent.asked(n).throttles]
                    )
                    for number in block:  # who is asked to wait does so with the next ones, too
                        if bent.asked(number).throttles:
                            await ask_block(hunted, store, http, [number])
                    if steps.longest > HELD:
                        hunted.faults.append(f"from {start} on: the loop was held for {steps.take() * 1e3:.0f} ms: {steps.where}")  # fmt: skip
                collections.close()
    return {
        "dialects_of_upstreams": sorted({dialect for dialect, _ in bent.BODIES}),
        "replies": hunted.sent,
        "answers_that_are_errors": hunted.errors,
        **figures(hunted, steps, collections),
    }


async def ask_block(hunted, store, http, numbers):
    """Asks some questions of one server, a few at a time."""
    if not numbers:
        return
    async with bent.served(bent.case_of(numbers[0]), store, http) as (server, upstream):
        gc.collect()  # of the blocks before, which no server has
        gc.freeze()
        todo = iter(numbers)

        async def send():
            for number in todo:
                await hunted.send(server, upstream, store, number)

        # Made so, their own steps are not timed: bending replies is no work of the server.
        await asyncio.gather(*(asyncio.Task(send()) for _ in range(ABREAST)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    count, first = ([int(word) for word in sys.argv[1:]] + [1_000, 0][len(sys.argv) - 1 :])[:2]
    result = anyio.run(hunt, count, first, backend_options={"use_uvloop": True})
    print(json.dumps(result, indent=1))
    undecided = UNDECIDED if result["over_2_s_only_for_want_of_a_core"] else 0
    sys.exit(1 if result["faults_in_all"] else undecided)
