"""What an executor costs: milliseconds a rollout over asyncio, and how grading scales with processes.

    python bench/executors.py [--items N] [--concurrency N] [--cores N] [--in-flight N]

Waits alone: rollouts that wait 20 ms, by the local executor and by Ray with 1 and 2 processes.
Grading: items that compute for 10 ms each, with 1, 2 and 4 processes. In flight: so many rollouts
on two nodes of Ray, two raylets on this machine, each of which waits until all the others have
begun. Needs `batuta-llm[ray]`; a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from contextlib import asynccontextmanager
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray.cluster_utils import Cluster

from batuta.lab.executor import ask_driver, open_executor

WAIT, WORK = 0.020, 0.010
"""Seconds that a rollout waits, and that a grading computes."""
REPEATS = 3


def make_job(kind):
    """Work that travels by value; `kind` is `wait` or `compute`."""

    class Job:
        @asynccontextmanager
        async def open(self):
            async def execute(item):
                if kind == "hold":
                    await ask_driver(item)
                    return ray.get_runtime_context().get_node_id(), memory_mb()
                if kind == "wait":
                    await asyncio.sleep(WAIT)
                else:
                    until = time.thread_time() + WORK
                    while time.thread_time() < until:
                        pass
                return item

            yield execute

    return Job()


async def time_items(executor, kind, items, concurrency):
    """Seconds of the quickest of some tries, and their median."""
    times = []
    for _ in range(REPEATS):
        found = []
        began = time.perf_counter()
        await executor.run_all(
            make_job(kind),
            range(items),
            lambda *pair, found=found: found.append(pair),
            concurrency=concurrency,
        )
        times.append(time.perf_counter() - began)
        assert sorted(found) == [(n, n) for n in range(items)]
    return min(times), statistics.median(times)


def memory_mb():
    """Resident, of this process."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def hold_in_flight(executor, number):
    """So many rollouts, none of which ends before all have begun; seconds until then and to the end."""
    began, all_began, held = time.perf_counter(), asyncio.Event(), 0

    async def answer(_):
        nonlocal held
        held += 1
        if held == number:
            all_began.set()
        await all_began.wait()

    async def note():
        await all_began.wait()
        return time.perf_counter() - began

    noting = asyncio.ensure_future(note())
    found = []
    await executor.run_all(
        make_job("hold"), range(number), lambda _, one: found.append(one),
        concurrency=number, answer=answer,
    )  # fmt: skip
    assert len(found) == number
    return await noting, time.perf_counter() - began, found


async def measure_in_flight(number):
    """On two nodes of one cluster."""
    cluster = Cluster(
        initialize_head=True, connect=True,
        head_node_args={"num_cpus": 1, "object_store_memory": 200 * 2**20, "include_dashboard": False},
    )  # fmt: skip
    cluster.add_node(num_cpus=1, object_store_memory=200 * 2**20)
    cluster.wait_for_nodes()
    async with open_executor("ray", 2) as executor:
        until, took, found = await hold_in_flight(executor, number)
    nodes = {node for node, _ in found}
    most = max(memory for _, memory in found)
    print(
        f"{number:,} rollouts in flight at the same time on {len(nodes)} nodes: all had begun after {until:.1f} s, "
        f"all had ended after {took:.1f} s; a process took {most:.0f} MB"
    )
    ray.shutdown()
    cluster.shutdown()


async def main(options):
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    ray.init(
        address="local", num_cpus=options.cores, include_dashboard=False, log_to_driver=False,
        configure_logging=False, _node_ip_address="127.0.0.1", object_store_memory=200 * 2**20,
    )  # fmt: skip
    ideal = options.items / options.concurrency * WAIT
    print(
        f"{options.items:,} rollouts that wait {1000 * WAIT:.0f} ms, {options.concurrency} at a time: {ideal:.2f} s at best"
    )
    async with open_executor("local") as local:
        best, median = await time_items(local, "wait", options.items, options.concurrency)
        print(f"  asyncio             {best:6.2f} s (median {median:.2f})")
    for processes in (1, 2):
        async with open_executor("ray", processes) as executor:
            took, median = await time_items(executor, "wait", options.items, options.concurrency)
        over = 1000 * (took - best) / options.items
        print(
            f"  Ray, {processes} processes    {took:6.2f} s (median {median:.2f}): {over:+.2f} ms a rollout over asyncio"
        )
    print(f"{options.items // 4:,} gradings that compute {1000 * WORK:.0f} ms")
    first = None
    for processes in (1, 2, 4):
        async with open_executor("ray", processes) as executor:
            took, _ = await time_items(executor, "compute", options.items // 4, 16)
        first = first or took
        print(
            f"  Ray, {processes} processes    {took:6.2f} s: {first / took:.2f} times one process"
        )
    ray.shutdown()
    if options.in_flight:
        await measure_in_flight(options.in_flight)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--in-flight", type=int, default=10_000, help="0: not measured")
    asyncio.run(main(parser.parse_args()))
