"""Searches the best workflows for random pools of three workers of world 2, family by family.

    .venv/bin/python recipes/pretrained-conductor/search.py OUT.jsonl --pools 100

Nothing is learned here: a library of 87 workflows over three workers races on paired questions (5, then
10 more for the best 18, then 24 more for the best 5), run by the engine. A line says which workflow
won for which pool and family; `examples.py` makes SFT data of them. Simulated calls cost nothing
but time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from worlds import WORLD2, WORLDS, World

from batuta.core import Grade, Pool, Step, Task, Workflow
from batuta.lab.evals.grading import grade_by_task
from batuta.lab.task_sources import find_source_grader
from batuta.lab.train.episodes import Episode
from batuta.lab.train.rollouts import DraftRunner, OpenedDraftRunner, PolicyDraft, RolloutRunner
from batuta.lab.train.settings import RewardSettings
from batuta.language import PromptOptions, render_workflow

SOURCE = (1, 300)
"""Seed and size of the pool that trainings draw from (conductor.toml)."""
Laps = Sequence[tuple[int, int]]
RACE: Laps = ((87, 5), (18, 10), (5, 24))
"""Candidates of each lap and further questions they are asked."""
COST = 0.02
"""Reward that a call costs, as in conductor.toml."""
SOLVE, PLAN, LOOK_UP, REPAIR, COMPARE = (
    "Solve the question.",
    "Plan the steps.",
    "Look up the facts.",
    "Repair the solution.",
    "Compare the solutions.",
)
COMPACT = PromptOptions(compact=True, descriptions=True)


def make_library(pool: Pool) -> Iterator[Workflow]:
    """Workflows of one to four steps over three workers."""
    names = [worker.id for worker in pool]

    def flow(*steps: tuple[str, str, tuple[int, ...]]) -> Workflow:
        return Workflow(tuple(Step(subtask=s, worker=w, access=a) for s, w, a in steps))

    for s in names:
        yield flow((SOLVE, s, ()))
        for other in names:
            yield flow((SOLVE, s, ()), (REPAIR, other, (0,)))
            yield flow((PLAN, other, ()), (SOLVE, s, (0,)))
            yield flow((LOOK_UP, other, ()), (SOLVE, s, (0,)))
            for r in names:
                if r != s:
                    yield flow((PLAN, other, ()), (SOLVE, s, (0,)), (REPAIR, r, (0, 1)))
                    yield flow((LOOK_UP, other, ()), (SOLVE, s, (0,)), (REPAIR, r, (0, 1)))
        for one, two in ((0, 1), (0, 2), (1, 2)):
            a, b = names[one], names[two]
            yield flow((LOOK_UP, a, ()), (LOOK_UP, b, ()), (SOLVE, s, (0, 1)))
            yield flow((SOLVE, a, ()), (SOLVE, b, ()), (COMPARE, s, (0, 1)))
        yield flow(*((SOLVE, w, ()) for w in names), (COMPARE, s, (0, 1, 2)))


def open_runner(world: World, source: tuple[int, int], rewards: RewardSettings) -> RolloutRunner:
    """What executes drafts over the workers of that seed and number, and grades the answers."""
    runner = DraftRunner(clients=world.clients(*source), judge=_grade_answer, rendering=COMPACT)
    return RolloutRunner(job=OpenedDraftRunner(runner), rewards=rewards, concurrency=64)


async def _grade_answer(task: Task, answer: str) -> Grade:
    """By the world that the task was drawn from, or by the grader that the task names."""
    own = find_source_grader(task)
    return await grade_by_task(task, answer) if own is None else own(task, answer)


async def race_workflows(
    runner: RolloutRunner, pool: Pool, family: str, seed: int, *, laps: Laps = RACE
) -> list[tuple[Workflow, float, int]]:
    """The finalists, best first, each with its mean reward and how many questions it met."""
    flows = list(make_library(pool))
    tasks = WORLDS[WORLD2].draw_tasks(family, sum(n for _, n in laps), seed)
    earned: dict[int, list[float]] = {at: [] for at in range(len(flows))}
    alive, asked = list(earned), 0
    for keep, more in laps:
        alive = sorted(alive, key=lambda at: -_mean(earned[at]))[:keep]
        lap = tasks[asked : asked + more]
        asked += more
        rows = [(at, number, task) for at in alive for number, task in enumerate(lap)]
        drafts = [
            (
                Episode(number=number, task=task, pool=pool, seed=number),
                PolicyDraft(text=render_workflow(flows[at], pool, names=True)),
            )
            for at, number, task in rows
        ]
        seeds = [seed * 131 + number for _, number, _ in rows]
        rollouts = await runner.run_drafts(drafts, seeds, step=0)
        for (at, _, _), one in zip(rows, rollouts, strict=True):
            earned[at].append(one.reward or 0.0)
    best = sorted(alive, key=lambda at: -_mean(earned[at]))
    return [(flows[at], _mean(earned[at]), len(earned[at])) for at in best]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


async def search_pools(out: Path, pools: int, first: int) -> None:
    world = WORLDS[WORLD2]
    everyone = world.pool(*SOURCE)
    runner = open_runner(world, SOURCE, RewardSettings(cost="calls", unit=1, coefficient=COST))
    with out.open("a", encoding="utf-8") as file:
        for number in range(first, first + pools):
            three = Pool(tuple(Random(f"search {number}").sample(everyone.workers, 3)))
            for at, family in enumerate(world.training):
                found = await race_workflows(runner, three, family, 400_000 + number * 10 + at)
                line = {
                    "pool": [worker.id for worker in three],
                    "family": family,
                    "finalists": [
                        {
                            "steps": [[s.subtask, s.worker, list(s.access)] for s in flow.steps],
                            "reward": round(value, 4),
                            "questions": asked,
                        }
                        for flow, value, asked in found
                    ],
                }
                file.write(json.dumps(line) + "\n")
                file.flush()
            print(number, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pools", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    wanted = parser.parse_args()
    asyncio.run(search_pools(wanted.out, wanted.pools, wanted.first))


if __name__ == "__main__":
    main()
