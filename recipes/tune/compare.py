"""The comparators beside a tuning at equal total dollars, on a simulated world.

    python recipes/tune/compare.py checks --calls 4000 --seed 0

The tuning has so many calls; what they cost, judgement included, is what every other method may
spend on learning. All are then measured on the same 1,000 fresh questions.
"""

import argparse
from dataclasses import replace

import anyio
from comparators import COMPARATORS, ComparatorContext, fit_comparator
from measure import open_world, tune_world

from batuta.core import Pool, Sampling
from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.lab.evals.task_sets import task_family
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.judge import describe_system
from batuta.lab.tune.parts import split_questions
from batuta.usage import ASSUMED_PRICE

_SHORT = Sampling(max_tokens=400)
"""No answer here is longer: so the worst case of a call is not far from what it costs."""


async def measure_all(name, calls, seed, only):
    """A row for each method: learned for, share right, calls and dollars a question."""
    result, runner, fresh = await tune_world(name, seed, calls)
    spent = float(runner.meter.usd)
    assignment = result.nominees["ultra"].assign(fresh)
    await runner.run_all((task, assignment[task.id]) for task in fresh)
    yield "batuta tune", spent, describe_system("tune", runner, fresh, assignment)
    pool, clients, judge, tasks, fresh = open_world(name, seed)
    pool = Pool(tuple(replace(worker, sampling=_SHORT) for worker in pool))
    parts = split_questions(tasks, task_family, seed)
    known = (*parts.search, *parts.selection, *parts.finalists, *parts.judgement)
    for method in COMPARATORS:
        if only and method not in only:
            continue
        runner = CandidateRunner(
            pool, clients, judge, CallMeter(ASSUMED_PRICE), unknown=ASSUMED_PRICE, seed=seed
        )
        context = ComparatorContext(
            runner=runner, tasks=known, family=task_family, usd=spent, seed=seed
        )
        entry = await fit_comparator(method, context)
        learned = float(runner.meter.usd)
        assignment = {task.id: entry for task in fresh}
        await runner.run_all((task, entry) for task in fresh)
        yield method, learned, describe_system(method, runner, fresh, assignment)


async def print_table(said):
    """The table as Markdown."""
    print("| method | dollars of learning | right % | calls a question | dollars a question |")
    print("|---|---|---|---|---|")
    async for name, learned, figures in measure_all(said.world, said.calls, said.seed, said.only):
        row = f"{learned:.4f} | {100 * figures.share:.1f} | {figures.calls:.2f} | {figures.usd:.6f}"
        print(f"| {name} | {row} |", flush=True)


def main():
    """Reads the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("world")
    options.add_argument("--calls", type=int, default=4000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", action="append")
    limit_blas_to_one_thread()
    anyio.run(print_table, options.parse_args())


if __name__ == "__main__":
    main()
