"""The engine's overhead: DAGs over workers of 20 ms, beside LangGraph, in one run.

Ratios are of wall time to the critical path (20 ms times the longest chain): `burst` for all runs
started in the same instant, until the last has ended; `steady` for the median run while 200 are
always in flight. `bare` is the event loop's own sleeping. CPU is of the whole process, divided by
the steps executed. `python bench/engine.py`
"""

from __future__ import annotations

import asyncio
import json
import operator
import statistics
import subprocess
import sys
import time
from typing import Annotated, TypedDict

from batuta.conductors import FixedConductor
from batuta.core import Pool, Question, Reply, Step, Usage, Worker, WorkerId, Workflow
from batuta.engine import conduct

LATENCY = 0.02
W = WorkerId("w")
POOL = Pool((Worker(id=W, model="m"),))
DAGS = {
    "1 step": ((),),
    "3 steps, tree": ((), (), (0, 1)),
    "5 steps, chain": ((), (0,), (1,), (2,), (3,)),
    "5 steps, DAG": ((), (), (0,), (0, 1), (2, 3)),
}
REPEATS = 7


class Sleeper:
    """A worker of 20 ms."""

    async def complete(self, request, listener=None):
        await asyncio.sleep(LATENCY)
        return Reply(
            text="An answer of some words.",
            usage=Usage(calls=1, input=100, cached=0, cache_write=0, output=10),
        )


def workflow(dag):
    return Workflow(
        tuple(
            Step(subtask=f"Do part {i}.", worker=W, access=access) for i, access in enumerate(dag)
        )
    )


def ours(dag):
    flow = workflow(dag)
    conductor = FixedConductor("bench", lambda pool: flow)
    clients = {W: Sleeper()}
    question = Question.of("What is the answer to the question of the benchmark?")
    return lambda: conduct(question, conductor, POOL, clients)


def langgraph(dag):
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        replies: Annotated[list[str], operator.add]

    graph = StateGraph(State)
    for i in range(len(dag)):

        async def node(state, i=i):
            await asyncio.sleep(LATENCY)
            return {"replies": [f"answer {i}"]}

        graph.add_node(f"s{i}", node)
    for i, access in enumerate(dag):
        graph.add_edge([f"s{a}" for a in access] if access else START, f"s{i}")
    graph.add_edge(f"s{len(dag) - 1}", END)
    compiled = graph.compile()
    return lambda: compiled.ainvoke({"replies": []})


def bare(dag):
    """The sleeps of the critical path alone: what the event loop itself takes."""

    async def sleeps():
        for _ in range(workflow(dag).depth):
            await asyncio.sleep(LATENCY)

    return sleeps


async def measure(start, concurrent, steps, critical):
    """Medians: all runs started at once, and, for many, each run while as many others go on."""
    for _ in range(3):
        await asyncio.gather(*(start() for _ in range(concurrent)))
    ratios, cpus = [], []
    for _ in range(REPEATS):
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(start() for _ in range(concurrent)))
        ratios.append((time.perf_counter() - began) / critical)
        cpus.append((time.process_time() - cpu) * 1000 / (concurrent * steps))
    row = {"burst": statistics.median(ratios), "cpu_ms_step": statistics.median(cpus)}
    if concurrent > 1:
        row["steady"] = statistics.median(await steady(start, concurrent)) / critical
    return {name: round(value, 3) for name, value in row.items()}


async def steady(start, concurrent):
    """Seconds of each run while `concurrent` of them are always in flight."""
    took = []

    async def slot(n):
        await asyncio.sleep(LATENCY * n / concurrent)
        for _ in range(6):
            began = time.perf_counter()
            await start()
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(slot(n) for n in range(concurrent)))
    return took


async def main(build):
    rows = []
    for dag in DAGS.values():
        critical = LATENCY * workflow(dag).depth
        rows += [
            await measure(build(dag), concurrent, len(dag), critical) for concurrent in (1, 200)
        ]
    return rows


SYSTEMS = {"batuta": ours, "langgraph": langgraph, "bare": bare}


def run():
    results = {}
    for system in SYSTEMS:  # a process each, so that one's heap does not slow the other's
        done = subprocess.run([sys.executable, __file__, system], capture_output=True, text=True)
        results[system] = json.loads(done.stdout) if done.returncode == 0 else None
        if done.returncode:
            print(f"{system}: not measured: {done.stderr.strip().splitlines()[-1]}")
    places = [(dag, n) for dag in DAGS for n in (1, 200)]
    print(f"{'dag':<16}{'runs':>5}   system      burst  steady  CPU ms/step")
    for place, (dag, n) in enumerate(places):
        for system, rows in results.items():
            if rows:
                row = rows[place]
                flowing = f"{row['steady']:.3f}" if "steady" in row else "-"
                print(
                    f"{dag:<16}{n:>5}   {system:<10}{row['burst']:>7.3f}{flowing:>8}{row['cpu_ms_step']:>13.3f}"
                )
    return results


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(asyncio.run(main(SYSTEMS[sys.argv[1]]))))
    else:
        run()
