"""Mutated requests in large numbers: `python bench/mutated.py [COUNT] [FIRST]`

Good requests of every route, bent at random, sent over sockets by every role to a server of this
process. A fault is a 5xx of ours, an answer that takes more than two seconds, the loop held for more
than 50 ms by one callback (processor time), or anything told that must not be told.

An answer's time is by the clock. Where the kernel says how long threads waited for a core
(/proc/self/task), that wait is taken off: an answer that is over two seconds only with it is no
fault, but then it is not shown either that there is none. Exit status: 0 all is well, 1 there was a
fault, 3 no fault, but the machine was too busy to say so.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from batuta.gateway.serve import reduce_collections
from batuta.store import Store
from gateway.loop_steps import watched_steps
from gateway.mutations import requests
from gateway.test_mutated import ABREAST, Village

SLOW, HELD = 2.0, 0.05
UNDECIDED = 3
PROGRESS_SECONDS = 30.0
_TASKS = Path("/proc/self/task")


def seconds_without_a_core():
    """How long each thread of this process has waited for a core; empty where nobody says."""
    waited = {}
    for one in _TASKS.glob("*/schedstat"):
        try:
            waited[one.parent.name] = int(one.read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # a thread that has just ended
            continue
    return waited


def wait_between(before, after):
    """Seconds that threads have waited in between; what one has that ended is not known."""
    return sum(max(0.0, after[name] - before.get(name, 0.0)) for name in after)


class Collections:
    """The longest collection of garbage in the loop's thread."""

    def __init__(self):
        self.longest, self._began, self._thread = 0.0, 0.0, threading.get_ident()
        gc.callbacks.append(self._note)

    def close(self):
        gc.callbacks.remove(self._note)

    def _note(self, phase, _):
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.longest = max(self.longest, time.thread_time() - self._began)


class Hunt:
    """What was seen so far."""

    def __init__(self, count):
        self.count, self.sent, self.began = count, 0, time.monotonic()
        self.faults, self.starved = [], Counter()
        self.statuses = Counter()
        self.slowest, self.slowest_own = 0.0, 0.0

    async def send(self, village, role, sent):
        at, waited = time.monotonic(), seconds_without_a_core()
        try:
            answer = await village.send(sent)
            if answer is not None:
                self.statuses[answer.status] += 1
                village.judge(role, sent, answer)
        except (AssertionError, ValueError) as error:
            self.faults.append(f"{role} {sent.method} {sent.place}: {error}")
        took = time.monotonic() - at
        own = took
        if took > SLOW:
            own = max(0.0, took - wait_between(waited, seconds_without_a_core()))
        self.sent += 1
        self.slowest, self.slowest_own = max(self.slowest, took), max(self.slowest_own, own)
        place = f"{sent.method} {sent.place.partition('?')[0][:40]}"
        if own > SLOW:
            self.faults.append(
                f"{role} {place}: {took:.1f} s, {own:.1f} s of it not for want of a core"
            )
        elif took > SLOW:
            self.starved[place] += 1

    def tell(self, steps):
        rate = self.sent / max(time.monotonic() - self.began, 1e-9)
        told = f"{self.sent} of {self.count} ({rate:.0f}/s), {len(self.faults)} faults, "
        told += f"{self.starved.total()} slow for want of a core, longest step {steps.longest * 1e3:.0f} ms"
        print(told, file=sys.stderr, flush=True)


async def hunt(count, first):
    hunted = Hunt(count)
    with tempfile.TemporaryDirectory() as folder:
        async with Store(Path(folder) / "runs.db") as store, Village(store) as village:
            await village.settle()
            todo = iter(requests(first, count, village.ids))

            async def send():
                for role, plain in todo:
                    await hunted.send(village, role, village.signed(role, plain))
                    if not hunted.sent % 500:
                        village.forget_requests()

            async def tell():
                while True:
                    await asyncio.sleep(PROGRESS_SECONDS)
                    hunted.tell(steps)

            # As `batuta serve` does; the longest step would be a collection of all there is.
            with reduce_collections(), watched_steps() as steps:
                collections = Collections()
                # Made so, their own steps are not timed: bending requests is no work of the server.
                senders = [asyncio.Task(send()) for _ in range(ABREAST)]
                teller = asyncio.Task(tell())
                await asyncio.gather(*senders)
                teller.cancel()
                collections.close()
            hunted.tell(steps)
    if steps.longest > HELD:
        where = (
            f"{steps.where} (the longest collection of garbage: {collections.longest * 1e3:.0f} ms)"
        )
        hunted.faults.append(f"the loop was held for {steps.longest * 1e3:.0f} ms: {where}")
    if hunted.sent != count:
        hunted.faults.append(f"{hunted.sent} of {count} requests were sent")
    return {"requests": hunted.sent, **figures(hunted, steps, collections)}


def figures(hunted, steps, collections):
    """Return what was measured of all requests, whatever was sent."""
    return {
        "seconds": round(time.monotonic() - hunted.began),
        "statuses": dict(sorted(hunted.statuses.items())),
        "slowest_s": round(hunted.slowest, 2),
        "slowest_without_waits_for_a_core_s": round(hunted.slowest_own, 2),
        "over_2_s_only_for_want_of_a_core": dict(hunted.starved.most_common(20)),
        "longest_step_ms": round(steps.longest * 1e3, 1),
        "longest_step": steps.where,
        "longest_collection_ms": round(collections.longest * 1e3, 1),
        "faults": hunted.faults[:60],
        "faults_in_all": len(hunted.faults),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    given = [int(word) for word in sys.argv[1:]]
    result = anyio.run(
        hunt, *(given + [10_000, 1_000_000][len(given) :]), backend_options={"use_uvloop": True}
    )
    print(json.dumps(result, indent=1))
    undecided = UNDECIDED if result["over_2_s_only_for_want_of_a_core"] else 0
    sys.exit(1 if result["faults_in_all"] else undecided)
