"""Searches the rule that reads the cards best, family by family.

    .venv/bin/python recipes/pretrained-conductor/rules.py RULES.json

`search.py` tries each pool out, which a conductor cannot do: it has the cards alone. Here a candidate is a
rule that makes a workflow of the cards (who is best at the question's family, who next, who plans best), and every
question of the race has a pool of its own. All rules meet the same questions (150 of a family, then the best four 450
more); the first wins whose reward is within 0.01 of the best, fewest calls first. `drafts.py` makes SFT data of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from examples import NEAR
from search import COMPARE, LOOK_UP, PLAN, REPAIR, SOLVE, SOURCE, open_runner
from worlds import WORLDS, World, add_world_option

from batuta.core import Pool, Step, Task, Worker, Workflow
from batuta.lab.train.episodes import Episode
from batuta.lab.train.rollouts import PolicyDraft, RolloutRunner
from batuta.lab.train.settings import RewardSettings
from batuta.language import render_workflow

Laps = Sequence[tuple[int | None, int]]
LAPS: Laps = ((None, 150), (4, 450))
"""Rules of each lap (None: all) and further questions that they meet."""


class Team(NamedTuple):
    """Three workers by what their cards say: of the question's family, of plans, checks and facts."""

    best: Worker
    second: Worker
    third: Worker
    planner: Worker
    checker: Worker
    """Of those that are not the best."""
    knower: Worker
    knows_next: Worker


Part = tuple[str, Worker, tuple[int, ...]]
"""What a step is to do, by whom, and which earlier steps it reads."""


def _solve_all(team: Team, read: tuple[int, ...] = ()) -> list[Part]:
    return [(SOLVE, worker, read) for worker in team[:3]]


def _two_solve(team: Team, read: tuple[int, ...] = ()) -> list[Part]:
    return [(SOLVE, worker, read) for worker in team[:2]]


def _two_look_up(team: Team) -> list[Part]:
    return [(LOOK_UP, team.knower, ()), (LOOK_UP, team.knows_next, ())]


def _all_look_up(team: Team) -> list[Part]:
    return [(LOOK_UP, worker, ()) for worker in team[:3]]


Rules = Mapping[str, Callable[[Team], list[Part]]]
PLAIN_RULES: Rules = {
    "the best alone": lambda t: [(SOLVE, t.best, ())],
    "the best, the second repairs": lambda t: [(SOLVE, t.best, ()), (REPAIR, t.second, (0,))],
    "the second, the best repairs": lambda t: [(SOLVE, t.second, ()), (REPAIR, t.best, (0,))],
    "the second plans, the best": lambda t: [(PLAN, t.second, ()), (SOLVE, t.best, (0,))],
    "the planner plans, the best": lambda t: [(PLAN, t.planner, ()), (SOLVE, t.best, (0,))],
    "the second looks up, the best": lambda t: [(LOOK_UP, t.second, ()), (SOLVE, t.best, (0,))],
    "two look up, the best": lambda t: [
        (LOOK_UP, t.second, ()),
        (LOOK_UP, t.third, ()),
        (SOLVE, t.best, (0, 1)),
    ],
    "plan, solution, repair": lambda t: [
        (PLAN, t.second, ()),
        (SOLVE, t.best, (0,)),
        (REPAIR, t.second, (0, 1)),
    ],
    "two solve, the best compares": lambda t: [*_two_solve(t), (COMPARE, t.best, (0, 1))],
    "two solve, the third compares": lambda t: [*_two_solve(t), (COMPARE, t.third, (0, 1))],
    "three solve, the best compares": lambda t: [*_solve_all(t), (COMPARE, t.best, (0, 1, 2))],
    "three solve, the second compares": lambda t: [
        *_solve_all(t),
        (COMPARE, t.second, (0, 1, 2)),
    ],
    "a plan, three solve, the best compares": lambda t: [
        (PLAN, t.second, ()),
        *_solve_all(t, (0,)),
        (COMPARE, t.best, (1, 2, 3)),
    ],
    "the planner plans, two solve, the best compares": lambda t: [
        (PLAN, t.planner, ()),
        *_two_solve(t, (0,)),
        (COMPARE, t.best, (1, 2)),
    ],
    "the planner plans, two solve, the best compares by the plan": lambda t: [
        (PLAN, t.planner, ()),
        *_two_solve(t, (0,)),
        (COMPARE, t.best, (0, 1, 2)),
    ],
    "the planner plans, three solve, the best compares by the plan": lambda t: [
        (PLAN, t.planner, ()),
        *_solve_all(t, (0,)),
        (COMPARE, t.best, (0, 1, 2, 3)),
    ],
    "the best looks up, two solve, the best compares": lambda t: [
        (LOOK_UP, t.best, ()),
        *_two_solve(t, (0,)),
        (COMPARE, t.best, (1, 2)),
    ],
}
"""What is done by whom, as their cards rank them for the question's family and for plans."""
RULES_OF_ABILITIES: Rules = {
    "the best, the checker repairs": lambda t: [(SOLVE, t.best, ()), (REPAIR, t.checker, (0,))],
    "the planner plans, the best, the checker repairs": lambda t: [
        (PLAN, t.planner, ()),
        (SOLVE, t.best, (0,)),
        (REPAIR, t.checker, (0, 1)),
    ],
    "the planner plans, two solve, the checker compares by the plan": lambda t: [
        (PLAN, t.planner, ()),
        *_two_solve(t, (0,)),
        (COMPARE, t.checker, (0, 1, 2)),
    ],
    "the planner plans, three solve, the checker compares by the plan": lambda t: [
        (PLAN, t.planner, ()),
        *_solve_all(t, (0,)),
        (COMPARE, t.checker, (0, 1, 2, 3)),
    ],
    "the planner plans, the best, the second repairs, the third repairs": lambda t: [
        (PLAN, t.planner, ()),
        (SOLVE, t.best, (0,)),
        (REPAIR, t.second, (0, 1)),
        (REPAIR, t.third, (0, 1, 2)),
    ],
    "who knows most looks up, the best": lambda t: [
        (LOOK_UP, t.knower, ()),
        (SOLVE, t.best, (0,)),
    ],
    "two who know look up, the best": lambda t: [*_two_look_up(t), (SOLVE, t.best, (0, 1))],
    "two who know look up, the best, the checker repairs": lambda t: [
        *_two_look_up(t),
        (SOLVE, t.best, (0, 1)),
        (REPAIR, t.checker, (0, 1, 2)),
    ],
    "two who know look up, two solve, the checker compares": lambda t: [
        *_two_look_up(t),
        *_two_solve(t, (0, 1)),
        (COMPARE, t.checker, (0, 1, 2, 3)),
    ],
    "all look up, the best": lambda t: [*_all_look_up(t), (SOLVE, t.best, (0, 1, 2))],
    "all look up, the best, the second repairs": lambda t: [
        *_all_look_up(t),
        (SOLVE, t.best, (0, 1, 2)),
        (REPAIR, t.second, (0, 1, 2, 3)),
    ],
    "all look up, the planner plans, the best": lambda t: [
        *_all_look_up(t),
        (PLAN, t.planner, ()),
        (SOLVE, t.best, (0, 1, 2, 3)),
    ],
}
"""More of them for a world whose cards say who knows facts and where checks and look-ups matter."""
RULES: Rules = {**PLAIN_RULES, **RULES_OF_ABILITIES}
RANKED = {"plans": 1, "knows": 2, "checks": 1}
"""How many a thought names as first, of each ability."""
WORDINGS: Mapping[str, tuple[str, ...]] = {
    SOLVE: (
        "Work out {} step by step.",
        "Compute {} with care.",
        "Solve for {}.",
        "Determine {}.",
        "Find {}.",
        "Calculate {}.",
    ),
    PLAN: (
        "Plan how to get {}.",
        "Plan {}.",
        "Outline the way to {}.",
        "Break {} down into steps.",
        "Draw up a plan for {}.",
        "List the steps to {}.",
    ),
    LOOK_UP: (
        "Look up what has to be known of {}.",
        "Recall the facts on {}.",
        "Gather what matters for {}.",
    ),
    REPAIR: (
        "Correct {} where it is wrong.",
        "Repair what is wrong with {}.",
        "Revise {} and give the result.",
    ),
    COMPARE: (
        "Compare the answers on {}.",
        "Choose between the answers on {}.",
        "Judge which answer on {} is right.",
        "Decide between the answers on {}.",
        "Weigh the answers on {}.",
        "Pick the best answer on {}.",
    ),
}
"""What a step is told; the question's matter stands in the gap."""


def read_share(worker: Worker, ability: str) -> int:
    """Percent that the card says of `plans`, `checks` or `knows`; 0 where it says nothing."""
    found = re.search(rf"{ability} (\d+)%", worker.description, re.IGNORECASE)
    return int(found[1]) if found else 0


def form_team(pool: Pool, family: str) -> Team:
    """The workers by their cards; of equals the one that is listed first."""
    best, second, third = sorted(pool, key=lambda worker: -worker.measured[family])
    knower, knows_next, _ = sorted(pool, key=lambda worker: -read_share(worker, "knows"))
    return Team(
        best,
        second,
        third,
        planner=max(pool, key=lambda worker: read_share(worker, "plans")),
        checker=max(_all_but(pool, best), key=lambda worker: read_share(worker, "checks")),
        knower=knower,
        knows_next=knows_next,
    )


def _all_but(pool: Pool, one: Worker) -> list[Worker]:
    return [worker for worker in pool if worker.id != one.id]


def make_workflow(rule: str, pool: Pool, family: str) -> Workflow:
    """The rule's workflow for these workers and a question of that family."""
    parts = RULES[rule](form_team(pool, family))
    return Workflow(tuple(Step(subtask=s, worker=w.id, access=a) for s, w, a in parts))


def name_matter(workflow: Workflow, matter: str, rng: Random) -> Workflow:
    """The workflow with each step in one of the wordings, which names the matter."""
    return Workflow(
        tuple(
            Step(
                subtask=rng.choice(WORDINGS[step.subtask]).format(matter),
                worker=step.worker,
                access=step.access,
            )
            for step in workflow.steps
        )
    )


def read_cards(rule: str, pool: Pool, family: str) -> str:
    """What a draft thinks before its lists: the question's family, what the cards say of it, who is best.

    The same of each ability that the rule asks for follows. Copied in the cards' order first and ranked then:
    to find a number and to compare numbers are two tasks, and a small model learns each sooner than both at
    once.
    """
    team = form_team(pool, family)
    shares = [(worker.id, f"{worker.measured[family]:.0%}".rstrip("%")) for worker in pool]
    text = read_aloud(family, shares, (team.best.id, team.second.id))
    first = {
        "plans": (team.planner,),
        "knows": (team.knower, team.knows_next),
        "checks": (team.checker,),
    }
    for ability in abilities_of(rule, team):
        asked = _all_but(pool, team.best) if ability == "checks" else pool
        shares = [(worker.id, str(read_share(worker, ability))) for worker in asked]
        text += read_aloud(f" {ability}", shares, [worker.id for worker in first[ability]])
    return text


def abilities_of(rule: str, team: Team) -> list[str]:
    """What of the cards the rule asks for beside the family; its name says whom it asks."""
    plans = any(subtask == PLAN for subtask, _, _ in RULES[rule](team))
    said = {"plans": plans, "knows": "know" in rule, "checks": "the checker" in rule}
    return [ability for ability, asked in said.items() if asked]


def read_aloud(of_what: str, shares: Sequence[tuple[str, str]], first: Sequence[str]) -> str:
    """A sentence of a draft's thought: of whom the cards say what, and who is first."""
    told = ", ".join(f"{name} {share}" for name, share in shares)
    return f"{of_what}: {told}; {', '.join(first)}."


async def race_rules(
    runner: RolloutRunner, world: World, everyone: Pool, family: str, *, laps: Laps = LAPS
) -> list[dict[str, Any]]:
    """Each rule with its mean reward, the finalists first, best first."""
    rules = [*(RULES if "knows" in world.abilities else PLAIN_RULES)]
    earned: dict[str, list[float]] = {rule: [] for rule in rules}
    alive, asked = rules, 0
    tasks = world.draw_tasks(family, sum(more for _, more in laps), 700_000)
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
    ordered = sorted(rules, key=lambda rule: (rule not in alive, -_mean(earned[rule])))
    return [
        {"rule": rule, "reward": round(_mean(earned[rule]), 4), "questions": len(earned[rule])}
        for rule in ordered
    ]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _draw_episode(number: int, task: Task, everyone: Pool, family: str) -> Episode:
    three = Random(f"rules {family} {number}").sample(everyone.workers, 3)
    return Episode(number=number, task=task, pool=Pool(tuple(three)), seed=number)


def choose_rule(found: list[dict[str, Any]], anyone: Team) -> str:
    """Of the finalists that are as good as the best, the one with the fewest calls."""
    finalists = [one for one in found if one["questions"] == found[0]["questions"]]
    near = [one for one in finalists if one["reward"] >= found[0]["reward"] - NEAR]
    return min(near, key=lambda one: (len(RULES[one["rule"]](anyone)), -one["reward"]))["rule"]


async def search_rules(world: World, out: Path, cost: float) -> None:
    everyone = world.pool(*SOURCE)
    runner = open_runner(world, SOURCE, RewardSettings(cost="calls", unit=1, coefficient=cost))
    found = {family: await race_rules(runner, world, everyone, family) for family in world.training}
    chosen = {
        family: choose_rule(rows, form_team(Pool(everyone.workers[:3]), family))
        for family, rows in found.items()
    }
    out.write_text(json.dumps({"chosen": chosen, "races": found}, indent=2) + "\n", "utf-8")
    print(json.dumps(chosen, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    add_world_option(parser)
    parser.add_argument("--cost", type=float, default=0.0, help="reward that a call costs")
    wanted = parser.parse_args()
    asyncio.run(search_rules(WORLDS[wanted.world], wanted.out, wanted.cost))


if __name__ == "__main__":
    main()
