"""The measurement of lists fills the database as it is today."""

import runpy
from pathlib import Path

from batuta.store import Store
from batuta.store.run_filter import EVERY_RUN

BENCH = Path(__file__).parents[2] / "bench" / "listing.py"


async def test_a_store_is_filled(target):
    bench = runpy.run_path(str(BENCH), run_name="bench")
    async with Store.open(str(target)) as store:
        if "://" in str(target):
            await bench["fill_store"](target, 200, 2)
        else:
            await bench["fill_file"](store, 200, 2)
        assert (await store.totals(EVERY_RUN)).runs == 200


def test_a_clock_counts_its_own_database_alone():
    """Others' tests use the same PostgreSQL, whose seconds once made a file's lists look slow."""
    make = runpy.run_path(str(BENCH), run_name="bench")["CpuClock"]
    for store in ("runs.db", "postgresql://somebody@127.0.0.1/a_database_that_nobody_has"):
        clock = make(store)
        assert clock() <= clock()
        assert clock.ticks == {}
