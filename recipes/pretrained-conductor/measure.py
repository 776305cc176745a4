"""Measures a conductor in a simulated world with workers that no training has seen, three a question.

    .venv/bin/python recipes/pretrained-conductor/measure.py RESULT.json \
        --policy runs/pretrained/distilled --drafts 60 --questions 600

Workers are drawn by seed 9,001 and known by their cards alone; every question lists three of them at
random. Comparators run all questions, the policy the first `--drafts` of them (greedy drafts, one
each); a malformed draft counts as wrong. Everything is simulated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from examples import choose_workflow
from rules import make_workflow, read_share
from search import COMPACT, open_runner
from worlds import REHEARSAL, WORLD2, WORLDS, World, add_world_option, rule_of_family

from batuta.core import MAX_STEPS, MalformedPlan, Pool, Step, Workflow
from batuta.lab.evals.stats import wilson_interval
from batuta.lab.learners.random_workflows import random_workflow
from batuta.lab.train.device import place_model, training_device
from batuta.lab.train.episodes import Episode, render_chat_prompt
from batuta.lab.train.model import load_policy
from batuta.lab.train.rollouts import GradedRollout, PolicyDraft
from batuta.lab.train.sampler import Sampler
from batuta.lab.train.settings import RewardSettings
from batuta.lab.worlds.drawn_tasks import TEST_SEED
from batuta.lab.worlds.hand_written_conductor import ConductorPrompt, compose_workflow
from batuta.language import render_workflow

UNSEEN = (9001, 60)
"""Seed and number of the workers that are measured on; another seed asks other questions too."""
SEARCHED = (1, 300)
AT_ONCE = 300 if torch.cuda.is_available() else 30
"""Drafts that are written together."""
Plan = Callable[[Episode], Workflow]


def make_flow(*steps: tuple[str, Any, tuple[int, ...]]) -> Workflow:
    return Workflow(tuple(Step(subtask=s, worker=w.id, access=a) for s, w, a in steps))


def ranked(pool: Pool) -> list[Any]:
    return sorted(pool, key=lambda worker: -(worker.strength or 0))


def by_family(episode: Episode) -> list[Any]:
    """The workers by what their cards say of the question's true family."""
    family = episode.task.tags[1]
    return sorted(episode.pool, key=lambda worker: -worker.measured[family])


def fixed_pipeline_workflow(workers: Sequence[Any]) -> Workflow:
    """Plan by the second, solution by the first, repair by the second."""
    first, second = workers[0], workers[1]
    return make_flow(
        ("Plan the steps.", second, ()),
        ("Solve the question.", first, (0,)),
        ("Repair the solution.", second, (0, 1)),
    )


def vote_workflow(workers: Sequence[Any]) -> Workflow:
    solved = [("Solve the question.", worker, ()) for worker in workers]
    return make_flow(*solved, ("Compare the solutions.", workers[0], (0, 1, 2)))


def planned_workflow(pool: Pool, workers: Sequence[Any]) -> Workflow:
    """The rule that the search chose most often, whoever is called the best."""
    best, second = workers[0], workers[1]
    return make_flow(
        ("Plan the steps.", max(pool, key=lambda worker: read_share(worker, "plans")), ()),
        ("Solve the question.", best, (0,)),
        ("Solve the question.", second, (0,)),
        ("Compare the solutions.", best, (0, 1, 2)),
    )


SYSTEMS: dict[str, Plan] = {
    "random workflow": lambda e: random_workflow(
        Random(f"random {e.number}"), e.pool, 5, free=True
    ),
    "random worker alone": lambda e: make_flow(("Solve the question.", e.pool.workers[0], ())),
    "best single (card, all families)": lambda e: make_flow(
        ("Solve the question.", ranked(e.pool)[0], ())
    ),
    "best single of the question's family (told the family)": lambda e: make_flow(
        ("Solve the question.", by_family(e)[0], ())
    ),
    "fixed pipeline (best two by card)": lambda e: fixed_pipeline_workflow(ranked(e.pool)),
    "fixed pipeline (told the family)": lambda e: fixed_pipeline_workflow(by_family(e)),
    "planner plans, two solve, best compares (best by card)": lambda e: planned_workflow(
        e.pool, ranked(e.pool)
    ),
    "planner plans, two solve, best compares (told the family)": lambda e: planned_workflow(
        e.pool, by_family(e)
    ),
    "three solve, best compares": lambda e: vote_workflow(ranked(e.pool)),
    "three solve, best compares (told the family)": lambda e: vote_workflow(by_family(e)),
}
"""Comparators; those that are told the family know more than a conductor does."""


def read_rules(world: World, path: Path) -> Plan:
    """What `rules.py` chose; a family that it did not search gets a rule of `World.alike`."""
    chosen: dict[str, str] = json.loads(path.read_text("utf-8"))["chosen"]

    def plan(episode: Episode) -> Workflow:
        family = episode.task.tags[1]
        return make_workflow(rule_of_family(world, chosen, family), episode.pool, family)

    return plan


def shuffle_workers(plan: Plan) -> Plan:
    """The same workflows with its workers by chance: what their shape alone is worth."""

    def shuffled(episode: Episode) -> Workflow:
        names = [worker.id for worker in episode.pool]
        others = Random(f"shuffled {episode.number}").sample(names, len(names))
        by_name = dict(zip(names, others, strict=True))
        steps = plan(episode).steps
        return Workflow(tuple(replace(step, worker=by_name[step.worker]) for step in steps))

    return shuffled


def hand_written_plan(episode: Episode) -> Workflow:
    """The shapes of the rehearsal's hand-written conductor.

    It is told the question's family, its number of steps and, by words, who is first, second and third in
    what by the cards.
    """
    orders = {
        **{f: sorted(episode.pool, key=lambda w, f=f: -w.measured[f]) for f in TOPICS},
        **{
            a: sorted(episode.pool, key=lambda w, a=a: -read_share(w, a))
            for a in ("plans", "checks", "knows")
        },
    }
    topics = {**TOPICS, "plans": "planning", "checks": "checking", "knows": "facts"}
    levels = ("Excellent", "good", "fair")
    told = [
        "; ".join(f"{levels[order.index(w)]} at {topics[of]}" for of, order in orders.items())
        for w in episode.pool
    ]
    prompt = ConductorPrompt(
        question=episode.task.question, workers=tuple(told), max_steps=MAX_STEPS, answers=None
    )
    steps = compose_workflow(prompt)
    ids = [worker.id for worker in episode.pool]
    return Workflow(
        tuple(Step(subtask=s.subtask, worker=ids[s.worker], access=s.access or ()) for s in steps)
    )


TOPICS = {"arithmetic": "arithmetic", "lists": "code", "text": "text", "calendar": "dates"}
"""Of the families of the rehearsal, what the hand-written conductor reads of them; of facts it takes who knows them."""
OF_WORLD: dict[str, dict[str, Plan]] = {
    WORLD2: {},
    REHEARSAL: {"hand-written conductor (told family and steps)": hand_written_plan},
}
"""Comparators of one world alone."""


def count_best_last(episodes: Sequence[Episode], rollouts: Sequence[GradedRollout]) -> list[int]:
    """How often the last step is the family's best's by the cards, the second's, the third's."""
    places = [0, 0, 0]
    for episode, one in zip(episodes, rollouts, strict=True):
        flow = one.run.rounds[-1].workflow
        if flow is not None:
            names = [worker.id for worker in by_family(episode)]
            places[names.index(flow.steps[-1].worker)] += 1
    return places


def make_questions(world: World, kind: str, count: int, workers: int = UNSEEN[0]) -> list[Episode]:
    """Questions, families in turn, each with three workers that no training has seen."""
    everyone = world.pool(workers, UNSEEN[1])
    families = world.held_out if kind == "family" else (None,)
    drawn = [
        world.draw_tasks(
            family,
            count // len(families),
            TEST_SEED + workers - UNSEEN[0],
            held_out=kind == "wordings",
        )
        for family in families
    ]
    tasks = [task for some in zip(*drawn, strict=True) for task in some]
    rng = Random(f"unseen {kind}")
    return [
        Episode(number=n, task=t, pool=Pool(tuple(rng.sample(everyone.workers, 3))), seed=n)
        for n, t in enumerate(tasks)
    ]


def write_drafts(
    policy: Path, episodes: Sequence[Episode], most: int, minutes: float
) -> list[PolicyDraft]:
    """A greedy draft for every question, or for the first of them when the time is over."""
    until = time.monotonic() + 60 * minutes
    model, tokenizer = load_policy(str(policy), None)
    place_model(model).eval()
    sampler = Sampler.for_workflows(model, tokenizer)
    drafts: list[PolicyDraft] = []
    for at in range(0, len(episodes), AT_ONCE):
        if time.monotonic() > until:
            break
        some = episodes[at : at + AT_ONCE]
        prompts = [render_chat_prompt(tokenizer, e.request(COMPACT)) for e in some]
        ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
        with torch.autocast(training_device().type, torch.bfloat16):
            rows = sampler.sample(
                ids, 1, max_tokens=most, temperature=0.0, generator=torch.Generator()
            )
        texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
        drafts += [
            PolicyDraft(text=text, prompt_tokens=len(prompt), tokens=len(row))
            for text, prompt, row in zip(texts, ids, rows, strict=True)
        ]
    return drafts


def summarise(rollouts: Sequence[GradedRollout]) -> dict[str, Any]:
    right = sum(bool(p.grade and p.grade.score == 1) for p in rollouts)
    valid = [p for p in rollouts if not isinstance(p.run.rounds[-1].decision, MalformedPlan)]
    low, high = wilson_interval(right, len(rollouts))
    shapes = Counter(
        json.dumps([(s.subtask, list(s.access)) for s in p.run.rounds[-1].workflow.steps])
        for p in valid
        if p.run.rounds[-1].workflow
    )
    sentences = {s for shape in shapes for s, _ in json.loads(shape)}
    return {
        "questions": len(rollouts),
        "right": round(100 * right / len(rollouts), 1),
        "interval": [round(100 * low, 1), round(100 * high, 1)],
        "valid": round(100 * len(valid) / len(rollouts), 1),
        "calls": round(sum(len(p.run.rounds[-1].steps) for p in valid) / max(1, len(valid)), 2),
        "distinct workflows": len(shapes),
        "distinct subtasks": len(sentences),
        "each": "".join(str(int(bool(p.grade and p.grade.score == 1))) for p in rollouts),
    }


def compare_rows(table: dict[str, Any], policies: Sequence[str]) -> None:
    """Adds to each policy's row its wins and losses against every comparator, on its questions."""
    for name in policies:
        mine = table[name]["each"]
        table[name]["wins and losses"] = {
            other: [
                sum(a > b for a, b in zip(mine, row["each"], strict=False)),
                sum(a < b for a, b in zip(mine, row["each"], strict=False)),
            ]
            for other, row in table.items()
            if other not in policies
        }


def say_why_malformed(rollouts: Sequence[GradedRollout]) -> dict[str, int]:
    """The parser's reasons, without the figures and names in them, by how often."""
    why = Counter(
        re.sub(r"['\"].*?['\"]|\d+", "…", p.run.rounds[-1].decision.reason)
        for p in rollouts
        if isinstance(p.run.rounds[-1].decision, MalformedPlan)
    )
    return dict(why.most_common(6))


async def measure_search(path: Path, questions: int) -> dict[str, Any]:
    """The workflows that the search chose, on fresh questions over their own pools."""
    world = WORLDS[WORLD2]
    everyone = world.pool(*SEARCHED)
    runner = open_runner(world, SEARCHED, RewardSettings())
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    each = max(1, questions // len(lines))
    episodes: list[Episode] = []
    chosen: list[Workflow] = []
    for number, found in enumerate(lines):
        pool = Pool(tuple(everyone[name] for name in found["pool"]))
        steps = choose_workflow(found["finalists"])["steps"]
        flow = Workflow(tuple(Step(subtask=s, worker=w, access=tuple(a)) for s, w, a in steps))
        for task in world.draw_tasks(found["family"], each, TEST_SEED + 1000 + number):
            episodes.append(Episode(number=len(episodes), task=task, pool=pool, seed=0))
            chosen.append(flow)
    plans = {
        "searched for its pool and family": lambda e: chosen[e.number],
        **{name: plan for name, plan in SYSTEMS.items() if "random" not in name},
    }
    table: dict[str, Any] = {}
    for name, plan in plans.items():
        pairs = [
            (e, PolicyDraft(text=render_workflow(plan(e), e.pool, names=True))) for e in episodes
        ]
        table[name] = summarise(await runner.run_drafts(pairs, range(len(pairs)), 0))
        print("searched pools", name, table[name], flush=True)
    return table


async def measure(wanted: argparse.Namespace) -> dict[str, Any]:
    world = WORLDS[wanted.world]
    runner = open_runner(world, (wanted.workers, UNSEEN[1]), RewardSettings())
    found: dict[str, Any] = {}
    systems = {**SYSTEMS, **OF_WORLD[wanted.world]}
    if wanted.rules:
        rules = read_rules(world, wanted.rules)
        systems["the searched rules (told the family)"] = rules
        systems["the searched rules, workers by chance"] = shuffle_workers(rules)
    if wanted.found:
        return {"searched pools": await measure_search(wanted.found, wanted.questions)}
    for kind in wanted.kinds:
        episodes = make_questions(world, kind, wanted.questions, wanted.workers)
        table: dict[str, Any] = {}
        for name, plan in systems.items() if not wanted.no_comparators else ():
            drafts = [
                PolicyDraft(text=render_workflow(plan(e), e.pool, names=True)) for e in episodes
            ]
            pairs = list(zip(episodes, drafts, strict=True))
            table[name] = summarise(await runner.run_drafts(pairs, range(len(pairs)), 0))
            print(kind, name, table[name], flush=True)
        for policy in wanted.policy or ():
            some = episodes[: wanted.drafts]
            began, spent = time.perf_counter(), time.process_time()
            drafts = write_drafts(policy, some, wanted.most, wanted.minutes)
            some = some[: len(drafts)]
            kept = wanted.out.with_suffix(f".{kind}.{policy.name}.jsonl")
            kept.write_text("".join(f"{json.dumps(d.text)}\n" for d in drafts), "utf-8")
            seconds = (time.perf_counter() - began, time.process_time() - spent)
            pairs = list(zip(some, drafts, strict=True))
            rollouts = await runner.run_drafts(pairs, range(len(pairs)), 0)
            row = summarise(rollouts)
            row["seconds a plan (wall, CPU)"] = [round(s / len(some), 2) for s in seconds]
            row["malformed"] = say_why_malformed(rollouts)
            row["who is last: the family's best, second, third"] = count_best_last(some, rollouts)
            row["sample"] = [draft.text for draft in drafts[:3]]
            table[str(policy)] = row
            print(kind, policy, row, flush=True)
        compare_rows(table, [str(policy) for policy in wanted.policy or ()])
        found[kind] = table
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--policy", type=Path, action="append")
    add_world_option(parser)
    parser.add_argument("--found", type=Path, help="only what the search found, on its own pools")
    parser.add_argument("--rules", type=Path, help="what rules.py chose, as a comparator")
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--workers", type=int, default=UNSEEN[0], help="seed they are drawn by")
    parser.add_argument("--drafts", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=600.0, help="of writing, at most")
    parser.add_argument("--most", type=int, default=176)
    parser.add_argument("--no-comparators", action="store_true")
    parser.add_argument("--kinds", nargs="+", default=["trained", "wordings", "family"])
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    found = asyncio.run(measure(wanted))
    wanted.out.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
