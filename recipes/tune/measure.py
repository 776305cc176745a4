"""Tunes a simulated world within a number of calls and measures what came of it on fresh questions.

    python recipes/tune/measure.py rehearsal --calls 12000 --seeds 0,1
    python recipes/tune/measure.py checks --calls 6000 --no-labels

One line of JSON for each seed. The worlds are `batuta.lab.worlds` and those of tests/lab/tune/worlds.py.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.lab.evals.task_sets import open_tasks, task_family
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.context import TuneContext, TuneSettings
from batuta.lab.tune.decision import SELECTOR, SINGLES_SELECTOR, recommend_systems
from batuta.lab.tune.judge import describe_system
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.opening import open_questions
from batuta.lab.tune.parts import split_questions
from batuta.lab.tune.spending import Allowance
from batuta.lab.tune.tuning import run_tuning
from batuta.lab.worlds import rehearsal_clients, rehearsal_pool
from batuta.usage import ASSUMED_PRICE
from lab.tune.worlds import ALL, grade

FRESH = 1000


def open_world(name, seed):
    """Pool, clients, grader, questions to tune on and fresh ones."""
    if name == "rehearsal":
        asked = open_questions(name, 3000, seed)
        fresh = open_tasks(name, FRESH, 0, seed)
        return (
            rehearsal_pool(),
            rehearsal_clients(time_scale=0.0),
            fresh.grade,
            asked.tasks,
            fresh.tasks,
        )
    world = ALL[name]
    return (
        world.pool,
        world.clients(),
        grade,
        world.tasks(1500, seed),
        world.tasks(FRESH, seed + 900),
    )


async def tune_world(name, seed, calls, *, report=None, **options):
    """What was found, the runner, and the fresh questions."""
    world = open_world(name, seed)
    return *await tune_questions(world, seed, calls, report=report, **options), world[-1]


async def tune_questions(world, seed, calls, *, report=None, **options):
    """What was found, and the runner."""
    pool, clients, judge, tasks, _ = world
    runner = CandidateRunner(
        pool, clients, judge, CallMeter(ASSUMED_PRICE), unknown=ASSUMED_PRICE, seed=seed
    )
    settings = TuneSettings(allowance=Allowance(calls=calls), seed=seed, **options)
    context = TuneContext(
        parts=split_questions(tasks, task_family, seed),
        family=task_family,
        runner=runner,
        settings=settings,
        used_minutes=lambda: 0.0,
        report=report or (lambda *_: None),
    )
    return await run_tuning(context), runner


async def measure_world(name, seed, calls, **options):
    """One tuning, and its nominees on fresh questions."""
    found = await measure_questions(open_world(name, seed), seed, calls, **options)
    return {"world": name, "seed": seed} | found


async def measure_questions(world, seed, calls, **options):
    """The same with these questions, workers and grader."""
    began, worked = time.perf_counter(), time.process_time()
    fresh = world[-1]
    result, runner = await tune_questions(world, seed, calls, **options)
    paid, seconds = runner.meter.calls, time.perf_counter() - began
    worked = time.process_time() - worked
    best = Candidate.single(result.pool.ranked()[0].id)
    assignments = {which: one.assign(fresh) for which, one in result.nominees.items()}
    assignments |= {one.name: one.assign(fresh) for one in result.systems}
    assignments["best single"] = {task.id: best for task in fresh}
    if result.pattern is not None:
        assignments["pattern"] = {task.id: result.pattern for task in fresh}
    await runner.run_all(
        (task, assignment[task.id]) for assignment in assignments.values() for task in fresh
    )
    found = {
        n: describe_system(n, runner, fresh, assignment) for n, assignment in assignments.items()
    }
    return {
        "calls": calls,
        "paid": paid,
        "seconds": round(seconds, 1),
        "processor seconds": round(worked, 1),
        "believed": round(100 * result.expected_accuracy, 1),
        "share": {n: round(100 * one.share, 1) for n, one in found.items()},
        "calls a question": {n: round(one.calls, 2) for n, one in found.items()},
        "recommended": recommended_share(result, found),
        "played": [str(one) for one in result.nominees["ultra"].workflows_in_use],
        "verdict": {
            f"{one.nominee} against {one.opponent}": f"{one.verdict} ({one.questions})"
            for one in result.comparisons
        },
    }


def recommended_share(result, found):
    """What is recommended for `batuta-ultra`, its share right, and how sure that is."""
    advice = recommend_systems(result)
    names = {SELECTOR: "ultra", SINGLES_SELECTOR: "mini", None: "best single"}
    which = names.get(advice["ultra"], "pattern")
    return {
        "system": which,
        "share": round(100 * found[which].share, 1),
        "expected": advice["expected"],
    }


def main():
    """Reads the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("world", choices=["rehearsal", *ALL])
    options.add_argument("--calls", type=int, default=12_000)
    options.add_argument("--seeds", default="0")
    options.add_argument("--no-labels", dest="labelled", action="store_false")
    options.add_argument("--call-weight", type=float)
    options.add_argument("--mean-calls", type=float)
    options.add_argument("--groups", type=int)
    options.add_argument("--levels", type=int)
    said = options.parse_args()
    if said.mean_calls is not None and said.call_weight is None:
        said.call_weight = 0.0
    limit_blas_to_one_thread()
    chosen = {
        key: value
        for key in ("labelled", "call_weight", "mean_calls", "groups", "levels")
        if (value := getattr(said, key)) is not None
    }
    for seed in map(int, said.seeds.split(",")):
        found = anyio.run(lambda seed=seed: measure_world(said.world, seed, said.calls, **chosen))
        print(json.dumps(found | {"options": chosen}), flush=True)


if __name__ == "__main__":
    main()
