"""What the rehearsal's trained conductor writes, and what a table of its own habits reaches.

    .venv/bin/python bench/distinct_workflows.py --questions 1000 --learn 4000

World 1, simulated. The shipped policy writes one greedy workflow for each of `--learn` training questions and of
`--questions` test questions. Counted are the distinct workflows (workers, subtasks, access lists) and the distinct
sentences of their subtasks. The *table* knows nothing of a question but its family and its
difficulty: it runs the workflow that the policy wrote most often for such training questions.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter, defaultdict

from batuta.conductors import FixedConductor
from batuta.core import Limits, Question
from batuta.core.intervals import wilson_interval
from batuta.engine import RunSettings, conduct
from batuta.lab.worlds import draw_tasks, grade_answer
from batuta.lab.worlds.drawn_tasks import TEST_SEED
from batuta.lab.worlds.simulated import rehearsal_config

TRAINING_SEED = 77
"""Of the questions from which the table learns; any other than `TEST_SEED`."""


def cell_of(task):
    """What the table knows of a question."""
    return task.tags[1], task.difficulty


async def run_all(tasks, config, conductor_for, *, dry_run=False):
    """The run of each task, in order."""
    slots = asyncio.Semaphore(32)

    async def one(number, task):
        async with slots:
            return await conduct(
                Question.of(task.question),
                conductor_for(task),
                config.pool,
                config.clients,
                limits=Limits(),
                seed=number,
                settings=RunSettings(dry_run=dry_run),
            )

    return await asyncio.gather(*(one(n, task) for n, task in enumerate(tasks)))


def planned(run):
    """The workflow of a run's first round; None if it had none."""
    return run.rounds[0].workflow if run.rounds else None


def show_share(name, right, runs):
    low, high = wilson_interval(right, len(runs))
    steps = sum(len(run.steps) for run in runs) / len(runs)
    print(
        f"{name}: {100 * right / len(runs):.1f} ({100 * low:.1f}–{100 * high:.1f}) % right, {steps:.2f} steps"
    )


async def measure(questions, learn):
    config = rehearsal_config(None, 0.0)
    policy = config.conductor
    training = draw_tasks(None, learn, TRAINING_SEED)
    habits = defaultdict(Counter)
    for task, run in zip(
        training, await run_all(training, config, lambda _: policy, dry_run=True), strict=True
    ):
        habits[cell_of(task)][planned(run)] += 1
    everything = sum(habits.values(), Counter())
    sentences = Counter()
    for workflow, times in everything.items():
        sentences.update({step.subtask: times for step in workflow.steps} if workflow else {})
    print(f"{learn} training questions: {len(everything)} distinct workflows, {len(sentences)} distinct subtask sentences, "
          f"{len(habits)} cells of family and difficulty")  # fmt: skip
    for sentence, times in sentences.most_common(8):
        print(f"  {times:5d}  {sentence}")
    commonest = {cell: counts.most_common(1)[0][0] for cell, counts in habits.items()}
    tests = draw_tasks(None, questions, TEST_SEED)
    for name, choose in (
        ("the trained conductor", lambda _: policy),
        (
            "a table of its commonest workflows",
            lambda t: FixedConductor("table", lambda _: commonest[cell_of(t)]),
        ),
    ):
        runs = await run_all(tests, config, choose)
        right = sum(
            grade_answer(t, run.answer or "").score == 1 for t, run in zip(tests, runs, strict=True)
        )
        show_share(name, right, runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--learn", type=int, default=4000)
    given = parser.parse_args()
    asyncio.run(measure(given.questions, given.learn))


if __name__ == "__main__":
    main()
