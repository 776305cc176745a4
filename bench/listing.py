"""A page of the list of runs, and each of its filters, in a store of millions: milliseconds.

    python bench/listing.py postgresql://postgres@127.0.0.1/runs [--fill ROWS] [--days DAYS]
    python bench/listing.py runs.db [--fill ROWS] [--days DAYS] [--cpu]

With `--cpu` it tells milliseconds of CPU, the client's and (of a PostgreSQL on this machine) the server's together, which say
more where others use the machine too. With `--fill` the rows are made in the database first, over so many days up to now, without what they
say; that is for a database of its own. Then it reads, and writes 20 batches of 200 runs.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import statistics
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from math import ceil
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from batuta.core import RunId
from batuta.store import Store
from batuta.store.models import RUNS
from batuta.store.run_filter import RunFilter, parse_run_filter
from batuta.store.run_list import RunPage, RunTotals
from batuta.store.writer import insert_rows

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from store.strategies import make_run

REPEATS = 7
DAY = 86_400
BATCHES, BATCH = 20, 200
TURNS = 2
"""Days that are made at the same time."""
FILLED = """
id, tenant, created, model, conductor, outcome, question_preview, answer_preview, steps, rounds, calls, input_tokens, cached_tokens,
output_tokens, reasoning_tokens, usd, unpriced_calls, seconds, score, session, labels
"""
"""Columns of a run that are made; the others keep what the schema gives them."""

ROW = """
SELECT 'run_' || md5(n::text), 'tenant ' || n % 50, {start} + n * {pace},
  CASE WHEN n % 100000 = 7 THEN 'worker/rare' WHEN n % 3 = 0 THEN 'batuta-mini' ELSE 'batuta-ultra' END,
  'prompted', CASE WHEN n % 1000 = 5 THEN 'failed' WHEN n IN (10, 20, 30) THEN 'refused' ELSE 'answered' END,
  'question ' || n || ': begin at ' || n % 97 || '; square it; what comes out?', 'Answer: ' || n % 8191,
  3, 1, 4, 1200 + n % 900, 0, 400, 0, 0.0005 + (n::bigint * 7919 % 100000) * 1e-6, 0, 0.5 + (n::bigint * 104729 % 9973) / 100.0,
  CASE WHEN n % 20 = 0 THEN n / 20 % 2 END, 'ses_' || md5((n / 20)::text),
  E'\nworker:gpt-large\nworker:claude-ish' || CASE WHEN n % 100000 = 8 THEN E'\nworker:retired' ELSE '' END
    || E'\nuser:user-' || n % 20011 || E'\ntag:app=app-' || n % 7 || E'\n'
FROM generate_series({first}, {last}) AS n
"""


async def fill_store(url, rows, days):
    """Each day as a table of its own, whose indexes are built once it is full: what a COPY of one's own would do."""
    start = int(time.time()) // DAY * DAY - (days - 1) * DAY
    pace = (time.time() - start) / rows
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
                await connection.execute(f"INSERT INTO {name} ({FILLED}) {query}", timeout=None)
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


def make_row(number, start, pace):
    """The same row for SQLite, which cannot make it itself."""
    rare = "worker:retired\n" if number % 100_000 == 8 else ""
    outcome = (
        "failed" if number % 1000 == 5 else "refused" if number in {10, 20, 30} else "answered"
    )
    model = "batuta-ultra" if number % 3 else "batuta-mini"
    return {
        "id": f"run_{hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()}",
        "tenant": f"tenant {number % 50}",
        "created": start + number * pace,
        "model": "worker/rare" if number % 100_000 == 7 else model,
        "conductor": "prompted",
        "outcome": outcome,
        "question_preview": f"question {number}: begin at {number % 97}; square it; what comes out?",
        "answer_preview": f"Answer: {number % 8191}",
        "steps": 3, "rounds": 1, "calls": 4, "input_tokens": 1200 + number % 900, "cached_tokens": 0,
        "output_tokens": 400, "reasoning_tokens": 0,
        "usd": Decimal("0.0005") + Decimal(number * 7919 % 100_000) / 1_000_000,
        "unpriced_calls": 0,
        "seconds": 0.5 + (number * 104729 % 9973) / 100,
        "score": float(number // 20 % 2) if number % 20 == 0 else None,
        "session": f"ses_{hashlib.md5(str(number // 20).encode(), usedforsecurity=False).hexdigest()}",
        "labels": f"\nworker:gpt-large\nworker:claude-ish\n{rare}user:user-{number % 20011}\ntag:app=app-{number % 7}\n",
    }  # fmt: skip


async def fill_file(store, rows, days):
    start = time.time() - days * DAY
    began, pace = time.perf_counter(), days * DAY / rows
    for first in range(1, rows + 1, 5000):
        made = [make_row(n, start, pace) for n in range(first, min(first + 5000, rows + 1))]
        await store.database.run_write(lambda one, made=made: insert_rows(one, RUNS, made))
    print(f"{rows:,} rows over {days} days made in {time.perf_counter() - began:.0f} s", flush=True)


async def vacuum_tables(url):
    """As the autovacuum would soon, on a connection without the store's limits of time."""
    connection = await asyncpg.connect(url)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


def name_cases(first, middle):
    """Parameters of each case, as the API, the command line and the page give them."""
    return {
        "first page": {},
        "a tenant": {"tenant": middle.tenant},
        "a model": {"model": first[0].model},
        "a rare model": {"model": "worker/rare"},
        "a model that nobody asked": {"model": "worker/none"},
        "failed (1 in 1,000)": {"outcome": "failed"},
        "refused (3 of all)": {"outcome": "refused"},
        "a tenant's failed": {"tenant": middle.tenant, "outcome": "failed"},
        "an id": {"q": middle.id},
        "a word that all have": {"q": "comes out"},
        "a rare word": {"q": "question 42424:"},
        "a word that none has": {"q": "zyzzyva"},
        "a tenant's word that none has": {"q": "zyzzyva", "tenant": middle.tenant},
        "the slowest of yesterday": {"since": "yesterday", "until": "yesterday", "sort": "seconds"},
        "the dearest": {"sort": "cost"},
        "a tenant's dearest": {"tenant": middle.tenant, "sort": "cost"},
        "the dearest of a model": {"model": first[0].model, "sort": "cost"},
        "most tokens of a worker": {"worker": "gpt-large", "sort": "tokens"},
        "judged wrong, cheapest first": {"max_score": "0", "sort": "cost", "order": "asc"},
        "a retired worker": {"worker": "retired"},
        "a user": {"user": "user-77", "sort": "seconds"},
        "a common tag": {"tag": "app=app-3"},
        "a session": {"session": middle.session},
        "dear and slow, and there is none": {"min_cost": "99", "min_seconds": "10"},
        "a word that all have, slowest first": {"q": "comes out", "sort": "seconds"},
        "everything at once": {
            "tenant": middle.tenant, "worker": "gpt-large", "tag": "app=app-3", "outcome": "answered",
            "min_cost": "0.02", "max_seconds": "60", "judged": "yes", "since": "20d", "sort": "cost",
        },
    }  # fmt: skip


class CpuClock:
    """Tells the seconds of CPU that this process and its database's on this machine have taken."""

    def __init__(self, store):
        self.mark = f" {urlsplit(store).path[1:]} ".encode() if "://" in store else None
        """The database in the title of a process of PostgreSQL; None: a file has none.

        Others' databases may be busy too, and their seconds are not ours.
        """
        self.ticks = {}
        """What each process of the database has taken, those too that have ended."""
        self.looking = 0.0
        """Seconds of CPU that looking at them took, which are left out."""

    def __call__(self):
        if self.mark is None:
            return time.process_time()
        began = time.process_time()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                title = process.joinpath("cmdline").read_bytes()
                if title.startswith(b"postgres:") and self.mark in title:
                    fields = process.joinpath("stat").read_text().rpartition(") ")[2].split()
                    self.ticks[process.name] = int(fields[11]) + int(fields[12])
            except OSError:
                continue  # it has ended meanwhile
        self.looking += time.process_time() - began
        server = sum(self.ticks.values()) / os.sysconf("SC_CLK_TCK")
        return time.process_time() - self.looking + server


clock = time.perf_counter


async def time_cases(store):
    first = (await store.find(RunFilter(model="batuta-ultra"), limit=50)).rows
    (middle,) = await store.list(limit=1, tenant="tenant 7")
    slowest = 0.0
    for name, given in name_cases(first, middle).items():
        wanted = parse_run_filter(given.items())
        times, found = await time_calls(lambda wanted=wanted: store.find(wanted, 50))
        sums, totals = await time_calls(lambda wanted=wanted: store.totals(wanted))
        slowest = max(slowest, statistics.median(times), statistics.median(sums))
        print_times(name, found, times)
        print_times("  its totals", totals, sums)
    times, found = await time_calls(lambda: store.summary(middle.id))
    print_times("one run by its id", found, times)
    print(f"slowest median {slowest:.1f} ms")


async def time_calls(call):
    """Milliseconds of each call, and what it found."""
    times = []
    for _ in range(REPEATS):
        began = clock()
        try:
            found = count_found(await call())
        except Exception as error:  # noqa: BLE001 - a statement that takes too long is a figure too
            found = type(error).__name__
        times.append(1000 * (clock() - began))
    return times, found


def count_found(result):
    """How many runs; with + where older ones were not looked at."""
    if isinstance(result, RunPage):
        return f"{len(result.rows)}{'+' if result.searched_to else ''}"
    if isinstance(result, RunTotals):
        return f"{result.runs:,}{'+' if result.searched_to else ''}"
    return int(result is not None)


def print_times(name, found, times):
    print(
        f"{name:36} {found!s:>10} runs  best {min(times):8.1f} ms  median {statistics.median(times):8.1f} ms  worst {max(times):8.1f} ms"
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
        began = clock()
        await store.flush()
        times.append(1000 * (clock() - began))
    each = statistics.median(times)
    print(
        f"{'writing 200 runs with contents':36} {BATCHES:>10} times median {each:8.1f} ms  worst {max(times):8.1f} ms"
        f"  ({1000 * BATCH / each:,.0f} runs a second)"
    )


async def main(options):
    async with Store.open(options.store) as store:
        if options.fill and "://" not in options.store:
            await fill_file(store, options.fill, options.days)
        elif options.fill:
            await fill_store(options.store, options.fill, options.days)
            await vacuum_tables(options.store)
        await time_cases(store)
        await time_writing(store)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--fill", type=int, default=0, help="rows to make first")
    parser.add_argument("--days", type=int, default=30, help="over how many days")
    parser.add_argument("--cpu", action="store_true", help="tell milliseconds of CPU")
    given = parser.parse_args()
    if given.cpu:
        clock = CpuClock(given.store)
    asyncio.run(main(given))
