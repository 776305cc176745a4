"""A page of the list of runs, and each of its filters, in a store of millions: milliseconds.

`python bench/listing.py postgresql://postgres@127.0.0.1/runs` on a store that is there. It reads.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

from batuta.core import Outcome
from batuta.store import Store

REPEATS = 7


async def main(target):
    async with Store.open(target) as store:
        first = await store.list(limit=50)
        middle = (await store.list(limit=1, search=first[-1].id))[0]
        cases = {
            "first page": {},
            "a page in the middle": {"before": f"{first[0].created - 1e6!r}_run_"},
            "a tenant": {"tenant": middle.tenant},
            "a model": {"model": first[0].model},
            "a rare model": {"model": "worker/rare"},
            "a model that nobody asked": {"model": "worker/none"},
            "failed (1 in 1,000)": {"outcome": Outcome.FAILED},
            "refused (3 of all)": {"outcome": Outcome.REFUSED},
            "a tenant's failed": {"tenant": middle.tenant, "outcome": Outcome.FAILED},
            "an id": {"search": middle.id},
            "a word that all have": {"search": "comes out"},
            "a rare word": {"search": "question 4242424:"},
            "a word that none has": {"search": "zyzzyva"},
            "a tenant's word that none has": {"search": "zyzzyva", "tenant": middle.tenant},
        }
        slowest = 0.0
        for name, filters in cases.items():
            times = []
            for _ in range(REPEATS):
                began = time.perf_counter()
                try:
                    found = len(await store.list(limit=50, **filters))
                except Exception as error:  # noqa: BLE001 - a statement that takes too long is a figure too
                    found = type(error).__name__
                times.append(1000 * (time.perf_counter() - began))
            slowest = max(slowest, statistics.median(times))
            print(
                f"{name:32} {found!s:>10} runs  median {statistics.median(times):8.1f} ms  worst {max(times):8.1f} ms"
            )
        print(f"slowest median {slowest:.1f} ms")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
