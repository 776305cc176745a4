"""What is old is removed by a clock that may be wrong: a jump ahead removes nothing."""

from dataclasses import replace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.strategies import make_run

from batuta.core import RunId
from batuta.errors import StoreError
from batuta.store import Store
from batuta.store.audit import AuditEntry
from batuta.store.models import AUDIT
from batuta.store.retention import RetentionSweeper
from batuta.store.steady_clock import (
    SETTING_SECONDS,
    STEADY_CLOCK,
    SteadyClock,
    sweep_hourly,
    unvouched_seconds,
)

pytestmark = pytest.mark.anyio
DAY, YEAR = 86_400.0, 365 * 86_400.0
NOW = 2_000_000_000.0


class Clocks:
    """The system's clock, which may be set, and the time that passes."""

    def __init__(self, wall=NOW):
        self.wall, self.passed = wall, 0.0
        self.steady = SteadyClock(lambda: self.wall, lambda: self.passed)

    def wait(self, seconds):
        self.wall += seconds
        self.passed += seconds


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e8, 1e8)), max_size=20))
def test_it_is_never_ahead_of_the_clock_nor_of_the_time_that_passed(moves):
    clocks = Clocks()
    for passes, jumps in moves:
        clocks.wait(passes)
        clocks.wall += jumps
        told = clocks.steady()
        assert told <= clocks.wall
        assert told <= NOW + clocks.passed + 1e-3


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_of_a_clock_that_is_right_it_is_the_time(waits):
    clocks = Clocks()
    for seconds in waits:
        clocks.wait(seconds)
        assert clocks.steady() == pytest.approx(clocks.wall)


async def test_a_clock_that_is_a_year_ahead_for_a_minute_cuts_no_record_and_forgets_no_run(
    tmp_path,
):
    clocks = Clocks()
    async with Store.open(tmp_path / "runs.db") as store:
        for days in (40, 20, 0):
            await store.audit.append(AuditEntry(actor="admin", action="x"), at=NOW - days * DAY)
            run = make_run()
            header = replace(run.header, id=RunId(f"run_{days}"), started=NOW - days * DAY)
            await store.append(replace(run, header=header))
        await store.flush()
        sweeper = RetentionSweeper(store.database, 30, clock=clocks.steady)
        assert await sweeper.sweep() == (1, 0)
        assert await store.audit.cut(30, now=clocks.steady()) == 1
        clocks.wall += YEAR
        for _ in range(60):
            clocks.wait(1)
            assert await sweeper.sweep() == (0, 0)
            assert await store.audit.cut(30, now=clocks.steady()) == 0
        clocks.wall -= YEAR
        clocks.wait(11 * DAY)
        assert await sweeper.sweep() == (1, 0)
        assert await store.audit.cut(30, now=clocks.steady()) == 1
        assert [row.id for row in await store.list()] == ["run_0"]


async def test_a_start_that_nothing_vouches_for_waits_until_the_clock_may_be_set(tmp_path):
    async with Store.open(tmp_path / "runs.db") as store:
        assert await unvouched_seconds(store.database, AUDIT.c.at, NOW) == 0  # nothing to remove
        await store.audit.append(AuditEntry(actor="admin", action="x"), at=NOW - DAY)
        assert await unvouched_seconds(store.database, AUDIT.c.at, NOW) == 0
        await store.audit.append(AuditEntry(actor="server", action="x"), at=NOW + YEAR)
        wrong = await unvouched_seconds(store.database, AUDIT.c.at, NOW + YEAR)
        assert wrong == SETTING_SECONDS  # what the wrong clock has written itself does not vouch


@pytest.mark.parametrize(("days", "sweeps"), [(1, 1), (8, 0)])
async def test_nothing_is_swept_after_such_a_start_and_an_error_ends_no_sweeping(
    tmp_path, caplog, days, sweeps
):
    swept = anyio.Event()
    times = []

    async def sweep():
        times.append(1)
        swept.set()
        raise StoreError("it is locked")

    async with Store.open(tmp_path / "runs.db") as store:
        at = STEADY_CLOCK.started - days * DAY
        await store.audit.append(AuditEntry(actor="admin", action="x"), at=at)
        with anyio.move_on_after(20 if sweeps else 0.5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sweep_hourly, store.database, AUDIT.c.at, sweep, "not swept now")
                await swept.wait()
                await anyio.sleep(0.1)
                tasks.cancel_scope.cancel()
    assert len(times) == sweeps
    assert [record.getMessage() for record in caplog.records] == ["not swept now: it is locked"] * sweeps  # fmt: skip
