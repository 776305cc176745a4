"""Rejection sampling: the policy is fitted to those of its own workflows that earned more.

A stage of its own between the warm start and reinforcement learning (expert iteration; the weights
are those of reward-weighted regression). What random workflows happen to succeed depends on the
question, so that a likelihood, which asks for the whole conditional distribution, teaches the
policy to read it; a policy gradient from a random start first finds one workflow for everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from batuta.core import Pool, Round, Workflow
from batuta.errors import ConfigError, WorkflowError
from batuta.language import ACCEPTED, parse, render
from batuta.solvers.random import random_workflow
from batuta.train.conducted import continues, measured
from batuta.train.episodes import Episode, episodes, templated
from batuta.train.learn import Opening, listed
from batuta.train.memory import keep_memory
from batuta.train.model import (
    check_own_sampler,
    keep_stage,
    load_policy,
    policy_start,
    use_threads,
)
from batuta.train.play import Draft, Played, Players
from batuta.train.questions import drawn
from batuta.train.rundir import RunFolder
from batuta.train.sampler import Sampler
from batuta.train.settings import RejectionSettings, Settings
from batuta.train.warmup import Example, fit

Told = Callable[[str, int, int, dict[str, float]], None]
"""Is told what is going on, how far it is, of how much, and its figures."""
AT_ONCE = 48
"""Questions whose workflows are sampled together."""
STANDS = 4
"""One of so many drafts after a first round lets its answer stand, whatever the policy writes."""


@dataclass(frozen=True, slots=True)
class Group:
    """A question, and the first round that all its drafts go on from, if there is one."""

    episode: Episode
    seed: int
    """Of its runs: of each the next one, or of all the first round's."""
    root: Draft | None = None
    rounds: tuple[Round, ...] = ()

    def seed_of(self, row: int) -> int:
        """Of the run of that draft."""
        return (self.seed + (0 if self.root else row)) % 2**31


@dataclass(frozen=True, slots=True)
class Stage:
    """What every round needs."""

    settings: Settings
    model: Any
    tokenizer: Any
    told: Told
    pool: Pool
    """All workers, of whom a question may list some."""


def reject(settings: Settings, told: Told) -> Path:
    """Sample, play, keep what earned more than its question's mean, fit; several rounds.

    Args:
        settings: the file.
        told: hears how it goes.

    Returns:
        The folder of the fitted policy.

    Raises:
        ConfigError: the settings cannot be carried out.
        StoreError: the folder cannot be written.
    """
    if not settings.rejection.rounds:
        raise ConfigError("there is nothing to do: rejection.rounds is 0; 4 is a good number")
    start = policy_start(settings, sampling=True)
    keep_memory()
    torch.manual_seed(settings.seed)
    use_threads(settings)
    model, tokenizer = load_policy(start, settings.policy.revision)
    check_own_sampler(model, start)
    pool = asyncio.run(listed(settings))
    stage = Stage(settings, model, tokenizer, told, pool)
    asyncio.run(_rounds(stage, RunFolder(settings.output)))
    return keep_stage(model, tokenizer, settings, "rejection")


async def _rounds(stage: Stage, folder: RunFolder) -> None:
    settings, rejection = stage.settings, stage.settings.rejection
    mix = rejection.tasks or settings.curriculum[0].tasks
    seeds = [settings.seed * 1009 + number + 500 for number in range(rejection.rounds)]
    asked = [await asyncio.to_thread(drawn, mix, rejection.questions, seed) for seed in seeds]
    opening = Opening(settings, folder, [task for tasks in asked for task in tasks])
    players = await opening()
    try:
        for number, (tasks, seed) in enumerate(zip(asked, seeds, strict=True)):
            met = episodes(tasks, stage.pool, settings.pool, seed, settings.prompt.hidden)
            kept = await _kept(stage, players, met, number)
            await asyncio.to_thread(_fitted, stage, kept, number)
    finally:
        await opening.close()


async def _kept(
    stage: Stage, players: Players, met: Sequence[Episode], number: int
) -> list[Example]:
    """Drafts of that round that earned more than the mean of their question, with their weights."""
    group, seed = stage.settings.rejection.group, stage.settings.seed
    kept: list[Example] = []
    all_played: list[Played] = []
    for at in range(0, len(met), AT_ONCE):
        first = (seed * 31 + number) * 1_000_003 + at * group
        part = [Group(e, first + n * group) for n, e in enumerate(met[at : at + AT_ONCE])]
        part = await _continued(stage, players, part, number)
        prompts, drafts = await asyncio.to_thread(_sampled, stage, part, number)
        asked = [(one, row) for one in part for row in range(group)]
        pairs = [(one.episode, draft) for (one, _), draft in zip(asked, drafts, strict=True)]
        played = await players.play(pairs, [one.seed_of(row) for one, row in asked], step=2**31)
        all_played += played
        kept += better(prompts, played, group, stage.settings.rejection.shorter)
        figures = measured(all_played) | {"kept": float(len(kept))}
        stage.told(f"round {number + 1}: playing", at + len(part), len(met), figures)
    return kept


async def _continued(
    stage: Stage, players: Players, part: Sequence[Group], number: int
) -> list[Group]:
    """The groups, `recursion.share` of them after a first round that the policy wrote."""
    settings = stage.settings
    rng = Random(f"rejection {settings.seed} {number} again {part[0].episode.number}")
    chosen = [at for at in range(len(part)) if rng.random() < settings.recursion.share]
    if not chosen:
        return list(part)
    some = [part[at] for at in chosen]
    prompts = [_prompt(stage, one) for one in some]
    drafts = await asyncio.to_thread(_written, stage, some, prompts, 1, number)
    pairs = [(one.episode, draft) for one, draft in zip(some, drafts, strict=True)]
    played = await players.play(pairs, [one.seed_of(0) for one in some], step=2**31)
    found = list(part)
    for at, each in zip(chosen, played, strict=True):
        if continues(each):
            found[at] = replace(part[at], root=each.draft, rounds=each.run.rounds)
    return found


def better(
    prompts: Sequence[str], played: Sequence[Played], group: int, shorter: float
) -> list[Example]:
    """The right drafts of each group, with their weights."""
    kept: list[Example] = []
    for number, prompt in enumerate(prompts):
        mine = [p for p in played[number * group : (number + 1) * group] if p.reward is not None]
        right = [p for p in mine if p.grade is not None and (p.grade.score or 0.0) >= 1]
        weights = weighed([len(p.run.rounds[-1].steps) for p in right], len(mine), shorter)
        kept += [
            Example(prompt, p.draft.text, weight)
            for p, weight in zip(right, weights, strict=True)
            if weight > 0
        ]
    return kept


def weighed(calls: Sequence[int], among: int, shorter: float) -> list[float]:
    """How much each right draft of a question counts.

    A draft is worth 1 if no right one calls fewer workers, and `shorter` times less for each call
    more. The weights sum to what the drafts lack of 1 on average: what is rare counts more, and a
    question that all drafts solve in the shortest way, or none solves, says nothing.

    Args:
        calls: of each right draft.
        among: so many drafts there are, right and wrong.
        shorter: at least 1.
    """
    worth = [shorter ** (min(calls) - each) for each in calls]
    lack = 1 - sum(worth) / max(1, among)
    return [each * lack / sum(worth) for each in worth]


def _sampled(stage: Stage, part: Sequence[Group], number: int) -> tuple[list[str], list[Draft]]:
    """The prompts, and a group of drafts for each."""
    group = stage.settings.rejection.group
    prompts = [_prompt(stage, one) for one in part]
    if number < stage.settings.rejection.random:
        drafts = [draft for one in part for draft in random_drafts(stage, one)]
    else:
        drafts = _written(stage, part, prompts, group, number)
    for at, one in enumerate(part):  # what nobody tries is never found to be right
        if one.root:
            stands = [Draft(ACCEPTED, root=one.root)] * (group // STANDS)
            drafts[at * group : at * group + len(stands)] = stands
    return prompts, drafts


def _prompt(stage: Stage, one: Group) -> str:
    rendering = stage.settings.prompt.rendering()
    return templated(stage.tokenizer, one.episode.request(rendering, one.rounds))


def _written(
    stage: Stage, part: Sequence[Group], prompts: Sequence[str], group: int, number: int
) -> list[Draft]:
    """So many drafts of the policy for each."""
    settings, tokenizer = stage.settings, stage.tokenizer
    ids: list[list[int]] = tokenizer(list(prompts), add_special_tokens=False)["input_ids"]
    chance = (settings.seed * 977 + number) * 1_000_003 + part[0].episode.number
    rows = Sampler.of(stage.model, tokenizer).sample(
        ids,
        group,
        most=settings.optimiser.completion,
        temperature=1.0,
        generator=torch.Generator().manual_seed(chance),
    )
    texts: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True)
    if settings.rejection.stand_ins:
        rng = Random(f"stand-ins {chance}")
        texts = [
            with_stand_ins(text, part[row // group], stage.pool, rng)
            for row, text in enumerate(texts)
        ]
    return [
        Draft(text, len(ids[row // group]), len(rows[row]), part[row // group].root)
        for row, text in enumerate(texts)
    ]


def with_stand_ins(text: str, one: Group, everyone: Pool, rng: Random) -> str:
    """The draft with a random listed worker for each that its question does not list.

    The same worker for every step of the one who is absent. A draft that is no workflow of anybody
    stays as it is.
    """
    listed = one.episode.pool
    try:
        flow = parse(text, everyone, revise=one.root is not None)
    except WorkflowError:
        return text
    if not isinstance(flow, Workflow) or all(step.worker in listed for step in flow.steps):
        return text
    found = {w.id: w.id if w.id in listed else rng.choice(listed.workers).id for w in everyone}
    steps = tuple(replace(step, worker=found[step.worker]) for step in flow.steps)
    return render(Workflow(steps), listed, names=True)


def random_drafts(stage: Stage, one: Group) -> list[Draft]:
    """Random workflows: what the policy of the warm start writes, without asking it."""
    settings, pool = stage.settings, one.episode.pool
    rng = Random(f"rejection {settings.seed} {one.episode.number} {one.episode.task.id}")
    again = one.root is not None
    flows = (random_workflow(rng, pool, revise=again) for _ in range(settings.rejection.group))
    return [Draft(render(flow, pool, names=True), root=one.root) for flow in flows]


def _fitted(stage: Stage, kept: Sequence[Example], number: int) -> None:
    """The likelihood of the kept drafts, each as important as its weight says."""
    rejection = stage.settings.rejection
    steps = rejection.steps

    def heard(step: int, loss: float) -> None:
        stage.told(f"round {number + 1}: fitting", step + 1, steps, {"loss": loss})

    if kept:
        batches = _batches(kept, rejection, Random(f"rejection {stage.settings.seed} {number}"))
        fit(stage.model, stage.tokenizer, batches, steps, rejection.learning_rate, heard)


def _batches(
    kept: Sequence[Example], rejection: RejectionSettings, rng: Random
) -> Iterator[list[Example]]:
    """Batches drawn without end, by weight."""
    weights = [one.weight for one in kept]
    while True:
        yield [one._replace(weight=1.0) for one in rng.choices(kept, weights, k=rejection.batch)]
