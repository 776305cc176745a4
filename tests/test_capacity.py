"""The simulation of docs/scale.md: its queue obeys theory, and it agrees with what was measured."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bench"))
import capacity  # noqa: E402 # pyright: ignore[reportMissingImports] - a script of bench/

sys.path.remove(str(ROOT / "bench"))  # it has an `engine` too, as tests/ has

PAGE = (ROOT / "docs" / "scale.md").read_text()


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_the_simulated_queue_waits_as_long_as_the_formula_says(busy):
    """Pollaczek and Khinchine's mean, of pieces of two sizes that come at random."""
    work = [(0.002, 0.2), (0.0005, 0.8)]
    mean = sum(s * share for s, share in work)
    square = sum(s * s * share for s, share in work)
    waits = capacity.simulate_waits(busy / mean, work, count=2_000_000)
    expected = (busy / mean) * square / (2 * (1 - busy))
    assert np.mean(waits) == pytest.approx(expected, rel=0.05)
    assert np.mean(waits == 0) == pytest.approx(1 - busy, abs=0.01)


def test_500_streams_wait_no_longer_than_was_measured():
    """bench/serving.py: p50 0.7 ms, p99 6.5 ms from upstream to reader; the queue is a part of it."""
    chunk = capacity.cost("chunk of a slow stream, CPU ms") / 1000
    waits = 1000 * capacity.simulate_waits(2_000, [(chunk, 1.0)])
    assert np.mean(waits == 0) == pytest.approx(1 - 0.35, abs=0.01)
    assert np.quantile(waits, 0.5) < 0.7 and np.quantile(waits, 0.99) < 6.5


def test_a_short_stream_costs_no_more_than_the_model_says():
    """Chunks that come together are cheaper than those that come one by one, which are counted."""
    told = capacity.request_cpu_ms(capacity.Load(streamed=1.0, chunks=22))
    measured = capacity.cost("stream of 22 chunks, key and budgets, CPU ms")
    assert 1.0 <= told / measured <= 2.0


def test_a_million_runs_without_contents_take_what_was_measured_elsewhere():
    """2 GB, of another program's million rows (PostgreSQL, COPY), before rows had two wide indexes."""
    load = replace(capacity.ASSUMED, content=False, kept_days=1)
    assert capacity.plan_fleet(1e6, load).database_gb == pytest.approx(2.0, rel=0.2)


def test_more_requests_need_no_less_and_the_fleet_carries_them():
    before = None
    for number in np.geomspace(1e4, 1e10, 25):
        fleet = capacity.plan_fleet(float(number))
        work = fleet.peak_a_second * fleet.cpu_ms / 1000
        assert work <= (fleet.gateways - 1) * fleet.busy, "also when one is gone"
        assert fleet.in_flight >= fleet.peak_a_second * capacity.ASSUMED.seconds
        if before is not None:
            assert fleet.gateways >= before.gateways and fleet.databases >= before.databases
        before = fleet


def test_an_impatient_reader_leaves_a_core_less_to_do():
    patient = capacity.busiest_core(capacity.ASSUMED)
    hurried = capacity.busiest_core(replace(capacity.ASSUMED, chunk_delay_s=0.002))
    assert hurried < patient <= 0.8
    assert not math.isnan(hurried)


def test_the_page_shows_what_the_simulation_says():
    fleets = [capacity.plan_fleet(number * 1e6) for number in (1, 100, 10_000)]
    for row in capacity.table_rows(fleets):
        assert row in PAGE
    for name, (value, _) in capacity.MEASURED.items():
        assert f"| {name} | {value:,} |" in PAGE
