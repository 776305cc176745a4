"""Rejection sampling: the policy is fitted to those of its own workflows that earned more.

A stage of its own between the warm start and reinforcement learning (expert iteration; the weights
are those of reward-weighted regression). What random workflows happen to succeed depends on the
question, so that a likelihood, which asks for the whole conditional distribution, teaches the
policy to read it; a policy gradient from a random start first finds one workflow for everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from batuta.errors import ConfigError
from batuta.language import render
from batuta.solvers.random import random_workflow
from batuta.train.conducted import measured
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


@dataclass(frozen=True, slots=True)
class Stage:
    """What every round needs."""

    settings: Settings
    model: Any
    tokenizer: Any
    told: Told


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
    start = policy_start(settings, "warmup")
    keep_memory()
    torch.manual_seed(settings.seed)
    use_threads(settings)
    model, tokenizer = load_policy(start, settings.policy.revision)
    check_own_sampler(model, start)
    folder = RunFolder(settings.output)
    asyncio.run(_rounds(Stage(settings, model, tokenizer, told), folder))
    return keep_stage(model, tokenizer, settings, "rejection")


async def _rounds(stage: Stage, folder: RunFolder) -> None:
    settings, rejection = stage.settings, stage.settings.rejection
    pool = await listed(settings)
    mix = rejection.tasks or settings.curriculum[0].tasks
    seeds = [settings.seed * 1009 + number + 500 for number in range(rejection.rounds)]
    asked = [await asyncio.to_thread(drawn, mix, rejection.questions, seed) for seed in seeds]
    opening = Opening(settings, folder, [task for tasks in asked for task in tasks])
    players = await opening()
    try:
        for number, (tasks, seed) in enumerate(zip(asked, seeds, strict=True)):
            met = episodes(tasks, pool, settings.pool, seed, settings.prompt.hidden)
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
        part = met[at : at + AT_ONCE]
        prompts, drafts = await asyncio.to_thread(_sampled, stage, part, number)
        pairs = [(part[row // group], draft) for row, draft in enumerate(drafts)]
        seeds = [(seed * 31 + number) * 1_000_003 + at * group + row for row in range(len(pairs))]
        played = await players.play(pairs, [each % 2**31 for each in seeds], step=2**31)
        all_played += played
        kept += better(prompts, played, group)
        figures = measured(all_played) | {"kept": float(len(kept))}
        stage.told(f"round {number + 1}: playing", at + len(part), len(met), figures)
    return kept


def better(prompts: Sequence[str], played: Sequence[Played], group: int) -> list[Example]:
    """The right drafts of each group that earned more than its mean.

    The weights of a question's drafts sum to the share of its drafts that were not right: what is
    rare counts more, and a question that everything solves, or nothing, says nothing.
    """
    kept: list[Example] = []
    for number, prompt in enumerate(prompts):
        mine = [p for p in played[number * group : (number + 1) * group] if p.reward is not None]
        right = [p for p in mine if p.grade is not None and (p.grade.score or 0.0) >= 1]
        usual = sum(p.reward or 0.0 for p in mine) / max(1, len(mine))
        more = [max(0.0, (p.reward or 0.0) - usual) for p in right]
        scale = (1 - len(right) / max(1, len(mine))) / (sum(more) or 1.0)
        kept += [
            Example(prompt, p.draft.text, each * scale)
            for p, each in zip(right, more, strict=True)
            if each * scale > 0
        ]
    return kept


def _sampled(stage: Stage, part: Sequence[Episode], number: int) -> tuple[list[str], list[Draft]]:
    """The prompts, and a group of drafts for each."""
    settings, tokenizer = stage.settings, stage.tokenizer
    rendering, group = settings.prompt.rendering(), settings.rejection.group
    prompts = [templated(tokenizer, episode.request(rendering)) for episode in part]
    if number < settings.rejection.random:
        return prompts, [draft for episode in part for draft in random_drafts(stage, episode)]
    ids: list[list[int]] = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    chance = (settings.seed * 977 + number) * 1_000_003 + part[0].number
    sampler = Sampler(stage.model, pad=int(tokenizer.pad_token_id), end=int(tokenizer.eos_token_id))
    rows = sampler.sample(
        ids,
        group,
        most=settings.optimiser.completion,
        temperature=1.0,
        generator=torch.Generator().manual_seed(chance),
    )
    texts: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return prompts, [
        Draft(text, len(ids[row // group]), len(rows[row])) for row, text in enumerate(texts)
    ]


def random_drafts(stage: Stage, episode: Episode) -> list[Draft]:
    """Random workflows: what the policy of the warm start writes, without asking it."""
    settings = stage.settings
    rng = Random(f"rejection {settings.seed} {episode.number} {episode.task.id}")
    flows = (random_workflow(rng, episode.pool) for _ in range(settings.rejection.group))
    return [Draft(render(flow, episode.pool, names=True)) for flow in flows]


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
