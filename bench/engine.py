"""The engine's overhead: DAGs over workers of 20 ms, beside LangGraph, in one run.

Ratios are of wall time to the critical path (20 ms times the longest chain). CPU is of the whole
process, divided by the steps played. `python bench/engine.py`
"""

from __future__ import annotations

import asyncio
import json
import operator
import statistics
import sys
import time
from typing import Annotated, TypedDict

import uvloop

from batuta.core import Pool, Question, Reply, Step, Usage, Worker, WorkerId, Workflow
from batuta.engine import conduct
from batuta.solvers import Fixed

LATENCY = 0.02
W = WorkerId("w")
POOL = Pool((Worker(W, "m"),))
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
        return Reply("An answer of some words.", usage=Usage(1, 100, 0, 0, 10))


def workflow(dag):
    return Workflow(tuple(Step(f"Do part {i}.", W, access) for i, access in enumerate(dag)))


def ours(dag):
    flow = workflow(dag)
    conductor = Fixed("bench", lambda pool: flow)
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
    for _ in range(2):
        await start()
    ratios, cpus = [], []
    for _ in range(REPEATS):
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(start() for _ in range(concurrent)))
        ratios.append((time.perf_counter() - began) / critical)
        cpus.append((time.process_time() - cpu) * 1000 / (concurrent * steps))
    return {
        "ratio": round(statistics.median(ratios), 3),
        "cpu_ms_step": round(statistics.median(cpus), 3),
    }


async def main():
    rows = []
    for name, dag in DAGS.items():
        critical = LATENCY * workflow(dag).depth
        for concurrent in (1, 200):
            row = {"dag": name, "runs": concurrent}
            for system, build in (("batuta", ours), ("langgraph", langgraph), ("bare", bare)):
                try:
                    row[system] = await measure(build(dag), concurrent, len(dag), critical)
                except ImportError:
                    row[system] = None
            rows.append(row)
    return rows


def run():
    rows = uvloop.run(main())
    for row in rows:
        print(f"{row['dag']:<16}{row['runs']:>5} runs", end="")
        for system in ("batuta", "langgraph", "bare"):
            r = row[system]
            print(
                f"   {system} "
                + (
                    f"x{r['ratio']:.3f} {r['cpu_ms_step']:.3f} ms CPU/step"
                    if r
                    else "not installed"
                ),
                end="",
            )
        print()
    return rows


if __name__ == "__main__":
    rows = run()
    if "--json" in sys.argv:
        print(json.dumps(rows))
