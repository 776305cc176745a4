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
