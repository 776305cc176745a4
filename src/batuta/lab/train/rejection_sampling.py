"""Rejection sampling: the policy is fitted to its own workflows that gave correct answers.

This stage runs between the SFT warm-up and reinforcement learning (expert iteration, weighted as in
reward-weighted regression). Which random workflows succeed depends on the question. Maximum
likelihood fits the whole conditional distribution, and so teaches the policy to read the question;
a policy gradient from a random start first finds one workflow for all questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from batuta.core import Pool, Round, Workflow
from batuta.errors import ConfigError, WorkerLostError, WorkflowError
from batuta.lab.learners.random_workflows import random_workflow
from batuta.lab.train.allocator import retain_freed_memory
from batuta.lab.train.budget import BudgetSpentError, TrainingBudget, describe_spending
from batuta.lab.train.conductor_training import load_pool
from batuta.lab.train.device import bf16_autocast, set_threads, without_adapters
from batuta.lab.train.episodes import Episode, make_episodes, render_chat_prompt
from batuta.lab.train.fitting import FitLoss, TrainingExample, fit_examples
from batuta.lab.train.model import load_trainable, require_policy_start, save_stage
from batuta.lab.train.questions import draw_mix, held_out_keys
from batuta.lab.train.reward import draft_weights
from batuta.lab.train.reward_function import (
    find_lost_reason,
    is_continuable,
    rollout_metrics,
)
from batuta.lab.train.rollout_setup import RolloutRunnerFactory
from batuta.lab.train.rollouts import GradedRollout, PolicyDraft, RolloutRunner
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.sampler import open_sampler
from batuta.lab.train.settings import RejectionSettings, TrainSettings
from batuta.language import ACCEPTED, parse_workflow, render_workflow

RejectionListener = Callable[[str, int, int, dict[str, float]], None]
"""Called with the current activity, its progress, its total, and its figures."""
QUESTIONS_AT_ONCE = 48
"""Number of questions for which workflows are sampled together."""
ACCEPT_EVERY = 4
"""One of every so many drafts of a second round is replaced by one that accepts the answer."""
_FULL_COST_STEP = 2**31
"""The step passed to the reward, so late that the whole cost is charged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftGroup:
    """A question, and the first round that all of its drafts continue, if there is one."""

    episode: Episode
    seed: int
    """The seed of the first draft's run; each further draft adds 1, unless the drafts share a first
    round."""
    root: PolicyDraft | None = None
    """The first round's draft; None if the drafts are first rounds."""
    rounds: tuple[Round, ...] = ()

    def seed_of(self, row: int) -> int:
        """Return the seed with which the draft of that row is run."""
        return (self.seed + (0 if self.root else row)) % 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionContext:
    """The objects that every round of rejection sampling needs."""

    settings: TrainSettings
    model: Any
    tokenizer: Any
    on_progress: RejectionListener
    pool: Pool
    """All workers; a question may list some of them."""
    budget: TrainingBudget | None = None


def run_rejection_sampling(settings: TrainSettings, on_progress: RejectionListener) -> Path:
    """Fit the policy to its correct workflows in several rounds, and return the policy's folder.

    Raises:
        ConfigError: the settings cannot be carried out.
        SandboxError: programs cannot be isolated here, which a grader needs.
        SourceError: the questions cannot be used.
        StoreError: the policy or the journal cannot be written, or a store cannot be read.
        BudgetSpentError: `pool.max_usd` does not suffice.
        ExceptionGroup: a run failed; it has the first error.
        WorkerLostError: no workflow of a round was rewarded, as workers do not answer.
    """
    if not settings.rejection.rounds:
        raise ConfigError("there is nothing to do: rejection.rounds is 0; set it, for example to 4")
    start = require_policy_start(settings, "rejection")
    retain_freed_memory()
    torch.manual_seed(settings.seed)
    set_threads(settings)
    model, tokenizer = load_trainable(start, settings)
    pool = asyncio.run(load_pool(settings))
    context = RejectionContext(
        settings=settings, model=model, tokenizer=tokenizer, on_progress=on_progress, pool=pool
    )
    asyncio.run(_run_rounds(context, RunFolder(settings.output)))
    return save_stage(model, tokenizer, settings, "rejection")


async def _run_rounds(context: RejectionContext, folder: RunFolder) -> None:
    settings, rejection = context.settings, context.settings.rejection
    mix = rejection.tasks or settings.curriculum[0].tasks
    seeds = [settings.seed * 1009 + number + 500 for number in range(rejection.rounds)]
    without = await asyncio.to_thread(held_out_keys, settings)  # it runs a loop of its own
    draw = partial(draw_mix, without=without)
    asked = [await asyncio.to_thread(draw, mix, rejection.questions, seed) for seed in seeds]
    opening = RolloutRunnerFactory(settings, folder, [task for tasks in asked for task in tasks])
    runner = await opening()
    context = replace(context, budget=opening.budget)
    try:
        for number, (tasks, seed) in enumerate(zip(asked, seeds, strict=True)):
            hidden = settings.prompt.hidden
            episodes = make_episodes(tasks, context.pool, settings.pool, seed, word_dropout=hidden)
            kept = await _sample_round(context, runner, episodes, number)
            await asyncio.to_thread(_fit_policy, context, kept, number)
    finally:
        await opening.close()


async def _sample_round(
    context: RejectionContext, runner: RolloutRunner, episodes: Sequence[Episode], number: int
) -> list[TrainingExample]:
    """Sample and run the drafts of a round, and return those to fit, with their weights."""
    group, seed = context.settings.rejection.group, context.settings.seed
    kept: list[TrainingExample] = []
    all_rollouts: list[GradedRollout] = []
    for at in range(0, len(episodes), QUESTIONS_AT_ONCE):
        first = (seed * 31 + number) * 1_000_003 + at * group
        part = [
            DraftGroup(episode=e, seed=first + n * group)
            for n, e in enumerate(episodes[at : at + QUESTIONS_AT_ONCE])
        ]
        part = await _continue_groups(context, runner, part, number)
        prompts, drafts = await asyncio.to_thread(_sample_drafts, context, part, number)
        asked = [(one, row) for one in part for row in range(group)]
        pairs = [(one.episode, draft) for (one, _), draft in zip(asked, drafts, strict=True)]
        rollouts = await runner.run_drafts(
            pairs, [one.seed_of(row) for one, row in asked], step=_FULL_COST_STEP
        )
        _check_budget(rollouts, context.budget)
        all_rollouts += rollouts
        if reason := find_lost_reason(all_rollouts):
            raise WorkerLostError(
                f"no workflow of round {number + 1} could be rewarded ({reason}); once the workers "
                "answer, run the same command again, which does not pay finished calls twice"
            )
        kept += keep_right_drafts(prompts, rollouts, group, context.settings.rejection.shorter)
        figures = rollout_metrics(all_rollouts) | {"kept": float(len(kept))}
        context.on_progress(f"round {number + 1}: running", at + len(part), len(episodes), figures)
    return kept


async def _continue_groups(
    context: RejectionContext, runner: RolloutRunner, part: Sequence[DraftGroup], number: int
) -> list[DraftGroup]:
    """Return the groups; about `recursion.share` of them continue a first round, if it is valid."""
    settings = context.settings
    rng = Random(f"rejection {settings.seed} {number} again {part[0].episode.number}")
    chosen = [at for at in range(len(part)) if rng.random() < settings.recursion.share]
    if not chosen:
        return list(part)
    some = [part[at] for at in chosen]
    prompts = [_group_prompt(context, one) for one in some]
    drafts = await asyncio.to_thread(_write_drafts, context, some, prompts, 1, number=number)
    pairs = [(one.episode, draft) for one, draft in zip(some, drafts, strict=True)]
    rollouts = await runner.run_drafts(pairs, [one.seed_of(0) for one in some], _FULL_COST_STEP)
    _check_budget(rollouts, context.budget)
    found = list(part)
    for at, each in zip(chosen, rollouts, strict=True):
        if is_continuable(each):
            found[at] = replace(part[at], root=each.draft, rounds=each.run.rounds)
    return found


def _check_budget(rollouts: Sequence[GradedRollout], budget: TrainingBudget | None) -> None:
    if budget is not None and any(each.refused for each in rollouts):
        raise BudgetSpentError(
            f"{describe_spending(budget)}; finished calls are kept: raise pool.max_usd and run the "
            "same command again, which does not pay them twice"
        )


def keep_right_drafts(
    prompts: Sequence[str], rollouts: Sequence[GradedRollout], group: int, shorter: float
) -> list[TrainingExample]:
    """Return the drafts with a correct answer and a weight above 0.

    `rollouts` has `group` adjacent drafts for each prompt; `shorter` is that of `draft_weights`.
    """
    kept: list[TrainingExample] = []
    for number, prompt in enumerate(prompts):
        mine = [p for p in rollouts[number * group : (number + 1) * group] if p.reward is not None]
        right = [p for p in mine if p.grade is not None and (p.grade.score or 0.0) >= 1]
        weights = draft_weights([len(p.run.rounds[-1].steps) for p in right], len(mine), shorter)
        kept += [
            TrainingExample(prompt, p.draft.text, weight)
            for p, weight in zip(right, weights, strict=True)
            if weight > 0
        ]
    return kept


def _sample_drafts(
    context: RejectionContext, part: Sequence[DraftGroup], number: int
) -> tuple[list[str], list[PolicyDraft]]:
    """Return the prompt of each question, and a group of drafts for each."""
    group = context.settings.rejection.group
    prompts = [_group_prompt(context, one) for one in part]
    if number < context.settings.rejection.random:
        drafts = [draft for one in part for draft in random_drafts(context, one)]
    else:
        drafts = _write_drafts(context, part, prompts=prompts, group=group, number=number)
    for at, one in enumerate(part):  # a policy that never accepts cannot learn to accept
        if one.root:
            accepting = [PolicyDraft(text=ACCEPTED, root=one.root)] * (group // ACCEPT_EVERY)
            drafts[at * group : at * group + len(accepting)] = accepting
    return prompts, drafts


def _group_prompt(context: RejectionContext, one: DraftGroup) -> str:
    rendering = context.settings.prompt.rendering()
    return render_chat_prompt(context.tokenizer, one.episode.request(rendering, one.rounds))


def _write_drafts(
    context: RejectionContext,
    part: Sequence[DraftGroup],
    prompts: Sequence[str],
    group: int,
    *,
    number: int,
) -> list[PolicyDraft]:
    settings, tokenizer = context.settings, context.tokenizer
    ids: list[list[int]] = tokenizer(list(prompts), add_special_tokens=False)["input_ids"]
    sampling_seed = (settings.seed * 977 + number) * 1_000_003 + part[0].episode.number
    with bf16_autocast(settings):
        rows = open_sampler(without_adapters(context.model), tokenizer).sample(
            ids,
            group,
            max_tokens=settings.optimiser.completion,
            temperature=1.0,
            generator=torch.Generator().manual_seed(sampling_seed),
        )
    texts: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True)
    if settings.rejection.stand_ins:
        rng = Random(f"stand-ins {sampling_seed}")
        texts = [
            replace_missing_workers(
                text, part[row // group], context.pool, rng, compact=settings.prompt.compact
            )
            for row, text in enumerate(texts)
        ]
    return [
        PolicyDraft(
            text=text,
            prompt_tokens=len(ids[row // group]),
            tokens=len(rows[row]),
            root=part[row // group].root,
        )
        for row, text in enumerate(texts)
    ]


def replace_missing_workers(
    text: str, draft_group: DraftGroup, everyone: Pool, rng: Random, *, compact: bool = True
) -> str:
    """Return the draft with a random listed worker in place of each worker that is not listed.

    All steps of one missing worker get the same replacement. A draft that is not a workflow over
    `everyone` is returned unchanged.
    """
    listed = draft_group.episode.pool
    # A draft's numbers count the workers that its prompt lists, so these come first.
    known = Pool((*listed, *(worker for worker in everyone if worker.id not in listed)))
    try:
        flow = parse_workflow(text, known, revise=draft_group.root is not None)
    except WorkflowError:
        return text
    if not isinstance(flow, Workflow) or all(step.worker in listed for step in flow.steps):
        return text
    found = {w.id: w.id if w.id in listed else rng.choice(listed.workers).id for w in everyone}
    steps = tuple(replace(step, worker=found[step.worker]) for step in flow.steps)
    return render_workflow(Workflow(steps), listed, names=compact)


def random_drafts(context: RejectionContext, draft_group: DraftGroup) -> list[PolicyDraft]:
    """Return a group of random drafts, like those of the policy after the SFT warm-up."""
    settings, episode = context.settings, draft_group.episode
    rng = Random(f"rejection {settings.seed} {episode.number} {episode.task.id}")
    revises = draft_group.root is not None
    free, compact = settings.warmup.vocabulary == "free", settings.prompt.compact
    flows = (
        random_workflow(rng, episode.pool, revise=revises, free=free)
        for _ in range(settings.rejection.group)
    )
    return [
        PolicyDraft(text=render_workflow(flow, episode.pool, names=compact), root=draft_group.root)
        for flow in flows
    ]


def _fit_policy(context: RejectionContext, kept: Sequence[TrainingExample], number: int) -> None:
    rejection = context.settings.rejection
    steps = rejection.steps

    def report_step(step: int, loss: FitLoss) -> None:
        context.on_progress(f"round {number + 1}: fitting", step + 1, steps, {"loss": loss.shown})

    if kept:
        batches = _draw_batches(
            kept, rejection, Random(f"rejection {context.settings.seed} {number}")
        )
        fit_examples(
            context.model,
            context.tokenizer,
            batches=batches,
            steps=steps,
            learning_rate=rejection.learning_rate,
            on_step=report_step,
            autocast=bf16_autocast(context.settings),
        )


def _draw_batches(
    kept: Sequence[TrainingExample], rejection: RejectionSettings, rng: Random
) -> Iterator[list[TrainingExample]]:
    weights = [one.weight for one in kept]
    while True:
        yield [one._replace(weight=1.0) for one in rng.choices(kept, weights, k=rejection.batch)]
