"""The fleet for so many requests a day, from what each part was measured to cost: a simulation.

    python bench/capacity.py [MILLIONS ...]        by default 1 100 10000

Nothing here is measured: `MEASURED` names what was, with the command, and everything else is
computed from it and from `ASSUMED`. The queue of a gateway's core is simulated event by event, to
find how busy a core may be before a chunk waits too long; `tests/test_capacity.py` compares the
simulation with points that were measured apart from it.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

import numpy as np

DAY = 86_400
GB = 1e9

MEASURED = {
    "plain request, key and budgets, CPU ms": (2.17, "bench/gateway.py"),
    "stream of 22 chunks, key and budgets, CPU ms": (3.33, "bench/gateway.py"),
    "chunk of a slow stream, CPU ms": (0.175, "bench/serving.py: 2,000 chunks/s take 35 % of a core"),
    "gateway's memory, MB": (157, "bench/serving.py, after 50,000 requests"),
    "row of a run with indexes, bytes": (1_489, "bench/listing.py --fill 5000000"),
    "line of the ledger, bytes": (274, "bench/listing.py"),
    "run with contents, GB a million": (15, "PostgreSQL, runs of three steps"),
    "runs written a second by one writer": (840, "bench/listing.py, at a load of 16 on 2 cores"),
    "workflows a second of one job worker": (115, "by DBOS, PostgreSQL, three steps; the table of jobs did 6.5 where DBOS did 4.0"),
}  # fmt: skip
"""What was measured on two cores, and by what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is assumed of the requests; replace it by what yours are."""

    streamed: float = 0.7
    chunks: int = 200
    """Of a streamed answer."""
    background: float = 0.02
    """Share of the requests that are background jobs of three steps."""
    seconds: float = 10.0
    """From request to answer."""
    peak: float = 3.0
    """The busiest minute over the mean one."""
    lines: int = 3
    """Of the ledger, a run."""
    kept_days: int = 30
    content: bool = True
    chunk_delay_s: float = 0.05
    """At p99, at most."""


ASSUMED = Load()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What carries a load."""

    requests_a_day: float
    peak_a_second: float
    in_flight: int
    cpu_ms: float
    """Of the gateway, a request."""
    busy: float
    """How busy a gateway's core may be."""
    gateways: int
    """Processes of one core each, one more than needed."""
    gateway_memory_gb: float
    job_workers: int
    databases: int
    """PostgreSQL servers that take the writes, by the rate of one writer each."""
    database_gb: float
    """Of the days that are kept."""
    ledger_gb_a_year: float


def cost(name):
    """A measured cost."""
    return MEASURED[name][0]


def request_cpu_ms(load):
    """CPU of the gateway, a request: a plain one, or a stream whose chunks come one by one."""
    plain = cost("plain request, key and budgets, CPU ms")
    chunk = cost("chunk of a slow stream, CPU ms")
    return plain + load.streamed * load.chunks * chunk


def simulate_waits(rate, services, count=200_000, seed=7):
    """Seconds that each of `count` pieces of work waits for one core (Lindley's recursion).

    Args:
        rate: pieces a second; they come at random.
        services: seconds of a piece and how often it comes, as pairs.
        count: pieces.
        seed: of the randomness.
    """
    rng = np.random.default_rng(seed)
    seconds, shares = zip(*services, strict=True)
    served = rng.choice(seconds, size=count, p=np.array(shares) / sum(shares))
    between = rng.exponential(1 / rate, size=count)
    steps = np.concatenate(([0.0], np.cumsum(served[:-1] - between[1:])))
    return steps - np.minimum.accumulate(steps)


def pieces_of_work(load):
    """What a core does: pieces of so many seconds, and how many of each a request has."""
    chunk = cost("chunk of a slow stream, CPU ms") / 1000
    plain = cost("plain request, key and budgets, CPU ms") / 1000
    return [(plain, 1.0), (chunk, load.streamed * load.chunks)]


def busiest_core(load):
    """The share of a core that may be used before chunks wait too long; at most 0.8."""
    work = pieces_of_work(load)
    mean = sum(seconds * number for seconds, number in work) / sum(number for _, number in work)
    low, high = 0.05, 0.8  # above, a replica's death is too much for the others
    for _ in range(12):
        middle = (low + high) / 2
        waits = simulate_waits(middle / mean, work)
        good = np.quantile(waits, 0.99) <= load.chunk_delay_s
        low, high = (middle, high) if good else (low, middle)
    return low


def plan_fleet(requests_a_day, load=ASSUMED):
    """The fleet for that many requests a day."""
    mean = requests_a_day / DAY
    peak = mean * load.peak
    cpu_ms, busy = request_cpu_ms(load), busiest_core(load)
    gateways = math.ceil(peak * cpu_ms / 1000 / busy) + 1
    streams = peak * load.seconds
    bytes_each = cost("row of a run with indexes, bytes") + load.lines * cost("line of the ledger, bytes")  # fmt: skip
    each = cost("run with contents, GB a million") * GB / 1e6 if load.content else bytes_each
    ledger = requests_a_day * 365 * load.lines * cost("line of the ledger, bytes")
    return Fleet(
        requests_a_day=requests_a_day,
        peak_a_second=peak,
        in_flight=math.ceil(streams),
        cpu_ms=cpu_ms,
        busy=busy,
        gateways=gateways,
        gateway_memory_gb=gateways * cost("gateway's memory, MB") / 1000,
        job_workers=math.ceil(
            peak * load.background / cost("workflows a second of one job worker")
        ),
        databases=math.ceil(peak / cost("runs written a second by one writer")),
        database_gb=requests_a_day * load.kept_days * each / GB,
        ledger_gb_a_year=ledger / GB,
    )


def table_rows(fleets):
    """The fleets as rows of docs/scale.md."""
    rows = [
        ("requests a second at the peak", [f"{one.peak_a_second:,.0f}" for one in fleets]),
        ("answers in flight at the peak", [f"{one.in_flight:,}" for one in fleets]),
        ("gateway processes, a core each", [f"{one.gateways:,}" for one in fleets]),
        ("their memory, GB", [f"{one.gateway_memory_gb:,.1f}" for one in fleets]),
        ("workers for background jobs", [f"{one.job_workers:,}" for one in fleets]),
        ("PostgreSQL servers for the writes", [f"{one.databases:,}" for one in fleets]),
        ("kept with contents, 30 days, TB", [f"{one.database_gb / 1000:,.2f}" for one in fleets]),
        ("the ledger, TB a year", [f"{one.ledger_gb_a_year / 1000:,.2f}" for one in fleets]),
    ]
    return [f"| {name} | {' | '.join(values)} |" for name, values in rows]


def main(millions):
    fleets = [plan_fleet(number * 1e6) for number in millions]
    for name, (value, by) in MEASURED.items():
        print(f"measured  {name:48} {value:>9,}  {by}")
    print(f"assumed   {ASSUMED}")
    print(
        f"a request takes {fleets[0].cpu_ms:.1f} ms of the gateway; a core may be {fleets[0].busy:.0%} busy"
    )
    print(f"without contents a million runs take {plan_fleet(1e6, replace(ASSUMED, content=False, kept_days=1)).database_gb:.2f} GB")  # fmt: skip
    print("\n".join(["| millions a day | " + " | ".join(f"{number:,}" for number in millions) + " |", *table_rows(fleets)]))  # fmt: skip


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1, 100, 10_000])
