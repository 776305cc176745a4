"""A page of the list of runs, and each of its filters, in a store of millions: milliseconds.

    python bench/listing.py postgresql://postgres@127.0.0.1/runs [--fill ROWS] [--days DAYS]

With `--fill` the rows are made in the database first, over so many days up to now, without what they
say; that is for a database of its own. Then it reads, and writes 20 batches of 200 runs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil
from pathlib import Path

import asyncpg

from batuta.core import Outcome, RunId
from batuta.store import Store
from batuta.store.models import RUNS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from store.strategies import make_run

REPEATS = 7
DAY = 86_400
BATCHES, BATCH = 20, 200
TURNS = 2
"""Days that are made at the same time."""

ROW = """
SELECT 'run_' || md5(n::text), 'tenant ' || n % 50, NULL, {start} + n * {pace},
  CASE WHEN n % 100000 = 7 THEN 'worker/rare' WHEN n % 3 = 0 THEN 'batuta-mini' ELSE 'batuta-ultra' END,
  'prompted', CASE WHEN n % 1000 = 5 THEN 'failed' WHEN n IN (10, 20, 30) THEN 'refused' ELSE 'answered' END,
  NULL, 'question ' || n || ': begin at ' || n % 97 || '; square it; what comes out?', 'Answer: ' || n % 8191,
  3, 1, 4, 1200, 0, 400, 0, 0.001234, 0, 1.5, NULL, NULL
FROM generate_series({first}, {last}) AS n
"""


async def fill_store(url, rows, days):
    """Each day as a table of its own, whose indexes are built once it is full: what a COPY of one's own would do."""
    start = int(time.time()) // DAY * DAY - (days - 1) * DAY
    pace = (time.time() - start) / rows
    names = ", ".join(column.name for column in RUNS.columns)
    began = time.perf_counter()
    waiting = iter(range(days))

    async def fill_days():
        connection = await asyncpg.connect(url)
        await connection.execute("SET maintenance_work_mem = '512MB'; SET synchronous_commit = off")
        for number in waiting:
            low, high = start + number * DAY, start + (number + 1) * DAY
            day = low // DAY
            # Rows whose time is in [low, high).
            first, last = ceil((low - start) / pace), min(rows, ceil((high - start) / pace) - 1)
            name = f"runs_{datetime.fromtimestamp(day * DAY, UTC):%Y%m%d}"
            query = ROW.format(start=start, pace=pace, first=max(first, 1), last=last)
            async with connection.transaction():
                await connection.execute(f"CREATE TABLE {name} (LIKE runs INCLUDING DEFAULTS)")
                await connection.execute(f"INSERT INTO {name} ({names}) {query}", timeout=None)
                bounds = f"FOR VALUES FROM ({low}) TO ({high})"
                contents = name.replace("runs", "run_contents", 1)
                await connection.execute(
                    f"CREATE TABLE {contents} (LIKE run_contents INCLUDING ALL)"
                )
                await connection.execute(
                    f"ALTER TABLE run_contents ATTACH PARTITION {contents} {bounds}"
                )
                await connection.execute(f"ALTER TABLE runs ATTACH PARTITION {name} {bounds}")
        await connection.close()

    await asyncio.gather(*(fill_days() for _ in range(TURNS)))
    print(f"{rows:,} rows over {days} days made in {time.perf_counter() - began:.0f} s", flush=True)


async def vacuum_tables(url):
    """As the autovacuum would soon, on a connection without the store's limits of time."""
    connection = await asyncpg.connect(url)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


async def time_cases(store):
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
        "a rare word": {"search": "question 424242:"},
        "a word that none has": {"search": "zyzzyva"},
        "a tenant's word that none has": {"search": "zyzzyva", "tenant": middle.tenant},
    }
    slowest = 0.0
    for name, filters in cases.items():
        times, found = await time_calls(lambda filters=filters: store.list(limit=50, **filters))
        slowest = max(slowest, statistics.median(times))
        print_times(name, found, times)
    times, found = await time_calls(lambda: store.summary(middle.id))
    print_times("one run by its id", found, times)
    print(f"slowest median {slowest:.1f} ms")


async def time_calls(call):
    """Milliseconds of each call, and what it found."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        try:
            result = await call()
            found = len(result) if isinstance(result, list) else int(result is not None)
        except Exception as error:  # noqa: BLE001 - a statement that takes too long is a figure too
            found = type(error).__name__
        times.append(1000 * (time.perf_counter() - began))
    return times, found


def print_times(name, found, times):
    print(
        f"{name:32} {found!s:>10} runs  median {statistics.median(times):8.1f} ms  worst {max(times):8.1f} ms"
    )


async def time_writing(store):
    """Runs with their contents and money, as the server's writer writes them."""
    run, at = make_run(), time.time()
    tag = f"{time.time_ns():x}"
    times = []
    for batch in range(BATCHES):
        for number in range(BATCH):
            name = RunId(f"run_{tag}_{batch}_{number}")
            await store.append(replace(run, header=replace(run.header, id=name, started=at)))
        began = time.perf_counter()
        await store.flush()
        times.append(1000 * (time.perf_counter() - began))
    each = statistics.median(times)
    print(
        f"{'writing 200 runs with contents':32} {BATCHES:>10} times median {each:8.1f} ms  worst {max(times):8.1f} ms"
        f"  ({1000 * BATCH / each:,.0f} runs a second)"
    )


async def main(options):
    async with Store.open(options.store) as store:
        if options.fill:
            await fill_store(options.store, options.fill, options.days)
            await vacuum_tables(options.store)
        await time_cases(store)
        await time_writing(store)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--fill", type=int, default=0, help="rows to make first")
    parser.add_argument("--days", type=int, default=30, help="over how many days")
    asyncio.run(main(parser.parse_args()))
