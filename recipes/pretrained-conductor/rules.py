"""Searches the rule that reads the cards best, family by family, and writes its workflows as SFT data.

    .venv/bin/python recipes/pretrained-conductor/rules.py RULES.json DRAFTS.jsonl --prompts 400

`search.py` tries each pool out, which a conductor cannot do: it has the cards alone. Here a candidate is a
rule that makes a workflow of the cards (who is best at the question's family, who next, who checks best), and every
question of the race has a pool of its own. All rules meet the same questions (40 of a family, then the best four 80
more); the first wins whose reward is within 0.01 of the best, fewest calls first. A line of the second file is a fresh
question with three workers in a random order, a line that reads their cards aloud (the free reasoning before the
lists) and the winning rule's workflow, each step in one of forty wordings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from examples import NEAR, word_freely
from search import COMPARE, LOOK_UP, PLAN, REPAIR, SOLVE, SOURCE, open_runner

from batuta.core import Pool, Step, Task, Worker, Workflow
from batuta.language import render_workflow
from batuta.rehearsal.world2 import TRAINING_KINDS, draw_world2_tasks, world2_pool
from batuta.train.episodes import Episode
from batuta.train.rollouts import PolicyDraft, RolloutRunner
from batuta.train.settings import RewardSettings

Laps = Sequence[tuple[int | None, int]]
LAPS: Laps = ((None, 40), (4, 80))
"""Rules of each lap (None: all) and further questions that they meet."""
Ranked = tuple[Worker, Worker, Worker]
Part = tuple[str, Worker, tuple[int, ...]]


def _solve_all(ranked: Ranked, read: tuple[int, ...] = ()) -> list[Part]:
    return [(SOLVE, worker, read) for worker in ranked]


RULES: dict[str, Callable[[Ranked], list[Part]]] = {
    "the best alone": lambda r: [(SOLVE, r[0], ())],
    "the best, the second repairs": lambda r: [(SOLVE, r[0], ()), (REPAIR, r[1], (0,))],
    "the second, the best repairs": lambda r: [(SOLVE, r[1], ()), (REPAIR, r[0], (0,))],
    "the second plans, the best": lambda r: [(PLAN, r[1], ()), (SOLVE, r[0], (0,))],
    "the second looks up, the best": lambda r: [(LOOK_UP, r[1], ()), (SOLVE, r[0], (0,))],
    "two look up, the best": lambda r: [
        (LOOK_UP, r[1], ()),
        (LOOK_UP, r[2], ()),
        (SOLVE, r[0], (0, 1)),
    ],
    "plan, solution, repair": lambda r: [
        (PLAN, r[1], ()),
        (SOLVE, r[0], (0,)),
        (REPAIR, r[1], (0, 1)),
    ],
    "two solve, the best compares": lambda r: [*_solve_all(r)[:2], (COMPARE, r[0], (0, 1))],
    "two solve, the third compares": lambda r: [*_solve_all(r)[:2], (COMPARE, r[2], (0, 1))],
    "three solve, the best compares": lambda r: [*_solve_all(r), (COMPARE, r[0], (0, 1, 2))],
    "three solve, the second compares": lambda r: [*_solve_all(r), (COMPARE, r[1], (0, 1, 2))],
    "a plan, three solve, the best compares": lambda r: [
        (PLAN, r[1], ()),
        *_solve_all(r, (0,)),
        (COMPARE, r[0], (1, 2, 3)),
    ],
}
"""What is done by the best, the second and the third of a question's family by their cards."""


def make_workflow(rule: str, pool: Pool, family: str) -> Workflow:
    """The rule's workflow for these workers and a question of that family."""
    first, second, third = sorted(pool, key=lambda worker: -worker.measured[family])
    parts = RULES[rule]((first, second, third))
    return Workflow(tuple(Step(subtask=s, worker=w.id, access=a) for s, w, a in parts))


def read_cards(pool: Pool, family: str) -> str:
    """What a draft thinks before its lists: the question's family, what the cards say of it, who is best.

    Copied in the cards' order first and ranked then: to find a number and to compare numbers are two
    tasks, and a small model learns each sooner than both at once.
    """
    shares = ", ".join(f"{worker.id} {worker.measured[family]:.0%}" for worker in pool)
    ranked = ", ".join(w.id for w in sorted(pool, key=lambda w: -w.measured[family]))
    return f"{family}: {shares}; {ranked}"


async def race_rules(
    runner: RolloutRunner, everyone: Pool, family: str, laps: Laps = LAPS
) -> list[dict[str, Any]]:
    """Each rule with its mean reward, the finalists first, best first."""
    earned: dict[str, list[float]] = {rule: [] for rule in RULES}
    alive, asked = list(RULES), 0
    tasks = draw_world2_tasks(family, sum(more for _, more in laps), 700_000)
    for keep, more in laps:
        alive = sorted(alive, key=lambda rule: -_mean(earned[rule]))[:keep]
        lap = list(enumerate(tasks))[asked : asked + more]
        asked += more
        episodes = [_draw_episode(number, task, everyone, family) for number, task in lap]
        for rule in alive:
            drafts = [
                (
                    e,
                    PolicyDraft(
                        text=render_workflow(
                            make_workflow(rule, e.pool, family), e.pool, names=True
                        )
                    ),
                )
                for e in episodes
            ]
            rollouts = await runner.run_drafts(drafts, [e.number for e in episodes], step=0)
            earned[rule] += [one.reward or 0.0 for one in rollouts]
    ordered = sorted(RULES, key=lambda rule: (rule not in alive, -_mean(earned[rule])))
    return [
        {"rule": rule, "reward": round(_mean(earned[rule]), 4), "questions": len(earned[rule])}
        for rule in ordered
    ]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _draw_episode(number: int, task: Task, everyone: Pool, family: str) -> Episode:
    three = Random(f"rules {family} {number}").sample(everyone.workers, 3)
    return Episode(number=number, task=task, pool=Pool(tuple(three)), seed=number)


def choose_rule(found: list[dict[str, Any]], anyone: Ranked) -> str:
    """Of the finalists that are as good as the best, the one with the fewest calls."""
    finalists = [one for one in found if one["questions"] == found[0]["questions"]]
    near = [one for one in finalists if one["reward"] >= found[0]["reward"] - NEAR]
    return min(near, key=lambda one: (len(RULES[one["rule"]](anyone)), -one["reward"]))["rule"]


def write_drafts(chosen: dict[str, str], everyone: Pool, prompts: int, seed: int) -> Iterator[str]:
    """Lines for `batuta train distil`, one draft a prompt, families in turn."""
    for number in range(prompts):
        family = TRAINING_KINDS[number % len(TRAINING_KINDS)]
        rng = Random(f"rule drafts {seed} {number}")
        (task,) = draw_world2_tasks(family, 1, 800_000 + 100_000 * seed + number)
        pool = Pool(tuple(rng.sample(everyone.workers, 3)))
        flow = make_workflow(chosen[family], pool, family)
        steps = [(s.subtask, s.worker, s.access) for s in flow.steps]
        lists = render_workflow(word_freely(steps, rng), pool, names=True)
        yield json.dumps(
            {
                "question": task.question,
                "pool": [worker.id for worker in pool],
                "draft": f"{read_cards(pool, family)}\n{lists}",
            }
        )


async def search_rules(out: Path, drafts: Path, *, prompts: int, seed: int, cost: float) -> None:
    everyone = world2_pool(*SOURCE)
    runner = open_runner(SOURCE, RewardSettings(cost="calls", unit=1, coefficient=cost))
    found = {family: await race_rules(runner, everyone, family) for family in TRAINING_KINDS}
    chosen = {family: choose_rule(rows, everyone.workers[:3]) for family, rows in found.items()}
    out.write_text(json.dumps({"chosen": chosen, "races": found}, indent=2) + "\n", "utf-8")
    lines = list(write_drafts(chosen, everyone, prompts, seed))
    drafts.write_text("\n".join(lines) + "\n", "utf-8")
    print(json.dumps(chosen, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("drafts", type=Path)
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1, help="of the drafts' questions and pools")
    parser.add_argument("--cost", type=float, default=0.0, help="reward that a call costs")
    wanted = parser.parse_args()
    asyncio.run(
        search_rules(
            wanted.out, wanted.drafts, prompts=wanted.prompts, seed=wanted.seed, cost=wanted.cost
        )
    )


if __name__ == "__main__":
    main()
