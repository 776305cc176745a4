"""How much of the rehearsal's accuracy is in the form of workflows already, before anything is learned.

    .venv/bin/python bench/where_accuracy_comes_from.py --questions 1000

World 1, simulated. *Untyped*: workers, length, access lists and subtasks are left to chance. *Typed*: the generator
behind the SFT warm-up, in whose workflows words have their objects (a solution is there before it is
verified) and the last step answers.
"""

from __future__ import annotations

import argparse
import asyncio
from random import Random

from batuta.core import MAX_STEPS, Pool, Step, Workflow
from batuta.core.intervals import wilson_interval
from batuta.lab.learners.random_workflows import SUBTASK_TEMPLATES, random_workflow
from batuta.lab.train.episodes import Episode
from batuta.lab.train.rollouts import DraftRunner, OpenedDraftRunner, PolicyDraft, RolloutRunner
from batuta.lab.train.settings import RewardSettings
from batuta.lab.worlds import draw_tasks, grade_answer, rehearsal_clients, rehearsal_pool
from batuta.lab.worlds.drawn_tasks import TEST_SEED
from batuta.language import PromptOptions, render_workflow


def untyped_workflow(rng: Random, pool: Pool) -> Workflow:
    """Any sentence at any place, read by anybody."""
    return Workflow(
        tuple(
            Step(
                subtask=f"{rng.choice(SUBTASK_TEMPLATES).instruction}.",
                worker=rng.choice(pool.workers).id,
                access=tuple(i for i in range(index) if rng.random() < 0.5),
            )
            for index in range(rng.randint(1, MAX_STEPS))
        )
    )


async def measure(questions: int) -> None:
    async def grade(task, answer):
        return grade_answer(task, answer)

    pool = rehearsal_pool()
    runner = DraftRunner(
        clients=rehearsal_clients(time_scale=0.0),
        judge=grade,
        rendering=PromptOptions(compact=True),
    )
    runner = RolloutRunner(job=OpenedDraftRunner(runner), rewards=RewardSettings(), concurrency=64)
    tasks = draw_tasks(None, questions, TEST_SEED)
    episodes = [Episode(number=n, task=t, pool=pool, seed=n) for n, t in enumerate(tasks)]
    makers = {"untyped": untyped_workflow, "typed": random_workflow}
    for name, make in makers.items():
        drafts = [
            PolicyDraft(
                text=render_workflow(make(Random(f"{name} {e.number}"), pool), pool, names=True)
            )
            for e in episodes
        ]
        pairs = list(zip(episodes, drafts, strict=True))
        rollouts = await runner.run_drafts(pairs, range(len(pairs)), 0)
        right = sum(bool(p.grade and p.grade.score == 1) for p in rollouts)
        calls = sum(len(p.run.rounds[-1].steps) for p in rollouts) / len(rollouts)
        low, high = wilson_interval(right, len(rollouts))
        share = f"{100 * right / len(rollouts):.1f} ({100 * low:.1f}–{100 * high:.1f})"
        print(f"{name}: {share} % right, {calls:.2f} calls")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=1000)
    asyncio.run(measure(parser.parse_args().questions))


if __name__ == "__main__":
    main()
