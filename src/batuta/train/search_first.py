"""Search, then distil: a tuning finds workflows, and the policy is fitted to them.

A search asks the workers far less often than a policy that learns from nothing by trying: so it is
the first stage of a training that chooses its settings by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import torch

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Pool, Task, Workflow
from batuta.language import render_workflow
from batuta.solvers.random_workflows import random_workflow
from batuta.train.auto_settings import SEARCH_CALLS
from batuta.train.device import set_threads
from batuta.train.distil_sources import make_tuned_examples
from batuta.train.episodes import make_episodes
from batuta.train.fit_plan import BATCH, FitPlan, PromptAndDraft, open_new_policy
from batuta.train.fitting import TrainingExample, fit_examples
from batuta.train.held_back import SplitQuestions
from batuta.train.model import save_stage
from batuta.train.sampler import open_sampler
from batuta.train.settings import TrainSettings
from batuta.train.warmup import render_user_prompt
from batuta.tune.candidate_runner import CandidateRunner
from batuta.tune.context import TuneContext, TuneSettings
from batuta.tune.judge import describe_system
from batuta.tune.library import Candidate, write_workflow
from batuta.tune.opening import TuneQuestions, is_labelled, open_questions, open_runner, start_clock
from batuta.tune.parts import QuestionParts, split_questions
from batuta.tune.result import TuneResult
from batuta.tune.spending import Allowance
from batuta.tune.stages import BEST_SINGLE, ULTRA, TuneStage
from batuta.tune.tuning import run_tuning

FOLDER = "tuned"
"""In the training's folder: the calls of the search."""
_QUESTIONS = 2000
"""That are learned from at most, where a world makes as many as are wanted."""
_RANDOM_SHARE = 0.1
"""Share of random workflows among the examples: what is never written cannot be found to be better
by reinforcement."""
_SINGLE_RATE, _SINGLE_STEPS, _LOOK_EVERY = 2e-3, 400, 25

TellSearch = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWorkflows:
    """What a search has found."""

    executed: tuple[tuple[Task, Workflow], ...]
    """Each question to learn from, and what is to be written for it."""
    single: Workflow
    """The best single worker."""
    single_right: float | None
    """Its share of the questions that were kept back; None: it was not measured."""
    found_right: float | None
    """That of the workflows that were found."""
    workflows: int
    """Runs on the questions that were kept back."""
    calls: int
    usd: Decimal

    @property
    def targets(self) -> tuple[tuple[Task, Workflow], ...]:
        """What the policy is fitted to: the best single worker where nothing better was found."""
        if None in {self.single_right, self.found_right}:
            return self.executed
        worse = (self.found_right or 0.0) < (self.single_right or 0.0)
        return tuple((task, self.single if worse else flow) for task, flow in self.executed)


async def search_workflows(
    settings: TrainSettings,
    split: SplitQuestions,
    minutes: float,
    most_minutes: float,
    on_progress: TellSearch,
) -> FoundWorkflows:
    """Tunes the pool on the questions to learn from, and measures it on those kept back.

    Args:
        settings: pool, folder, seed, and what a call costs of a right answer.
        split: the questions.
        minutes: that it may take.
        most_minutes: after which nobody is called; until then what was found is measured.
        on_progress: hears how it goes.

    Raises:
        ConfigError: no worker answers, or the time is too short to ask each.
        SourceError: the questions are nearly all alike.
        StoreError: the folder cannot be written.
    """
    limit = min(split.questions, _QUESTIONS)
    questions = open_questions(split.source, limit, settings.seed)
    tuning = TuneSettings(
        allowance=Allowance(calls=SEARCH_CALLS, minutes=max(minutes, 0.01)),
        labelled=is_labelled(questions),
        call_weight=settings.reward.coefficient,
        seed=settings.seed,
        last=TuneStage.SELECT,
    )
    ends = Allowance(calls=SEARCH_CALLS, minutes=max(most_minutes, minutes, 0.01))
    async with HttpTransport() as http:
        loaded = await load_config(http, pool=settings.pool.source, time_scale=0.0)
        async with open_runner(
            loaded.pool,
            loaded.clients,
            questions=questions,
            settings=replace(tuning, allowance=ends),
            folder=settings.output / FOLDER,
        ) as (runner, _):
            context = TuneContext(
                parts=_search_parts(questions, settings.seed),
                family=questions.family,
                runner=runner,
                settings=tuning,
                used_minutes=start_clock(),
                report=lambda stage, found: on_progress(f"search, {stage}: {found}"),
            )
            result = await run_tuning(context)
            return await _measure_found(runner, result, questions.tasks, split.held_back)


def _search_parts(questions: TuneQuestions, seed: int) -> QuestionParts:
    """Nothing is judged here, so what would judge is searched on."""
    parts = split_questions(questions.tasks, questions.family, seed)
    return replace(parts, search=(*parts.search, *parts.judgement), judgement=())


async def _measure_found(
    runner: CandidateRunner, result: TuneResult, tasks: Sequence[Task], held: Sequence[Task]
) -> FoundWorkflows:
    assert result.nominees is not None  # noqa: S101 - selected before
    system, best = result.nominees[ULTRA], Candidate.single(result.pool.ranked()[0].id)
    assignments: Mapping[str, Mapping[str, Candidate]] = {
        BEST_SINGLE: {task.id: best for task in held},
        ULTRA: system.assign(held),
    }
    share: dict[str, float | None] = {}
    for name, execute in assignments.items():
        await runner.run_all((task, execute[task.id]) for task in held)
        share[name] = describe_system(name, runner, held, execute).share
    chosen = system.assign(tasks)
    return FoundWorkflows(
        executed=tuple((task, _write_plain(chosen[task.id])) for task in tasks),
        single=_write_plain(best),
        single_right=share[BEST_SINGLE],
        found_right=share[ULTRA],
        workflows=len(assignments) * len(held),
        calls=runner.meter.calls,
        usd=runner.meter.usd,
    )


def _write_plain(candidate: Candidate) -> Workflow:
    """The workflow in one round, whether or not it looks at its answers."""
    return write_workflow(candidate.without_look())


def draw_random_workflows(
    tasks: Sequence[Task], pool: Pool, seed: int
) -> list[tuple[Task, Workflow]]:
    """A random workflow for each question."""
    rng = Random(f"random {seed}")
    return [(task, random_workflow(rng, pool)) for task in tasks]


def workflow_texts(
    settings: TrainSettings, pool: Pool, found: Sequence[tuple[Task, Workflow]]
) -> list[PromptAndDraft]:
    """What the policy reads for each question, and the workflow as it is to write it."""
    rendering = settings.prompt.rendering()
    episodes = make_episodes([task for task, _ in found], pool, settings.pool, settings.seed)
    return [
        (
            episode.request(rendering).messages[0].text,
            render_workflow(flow, episode.pool, names=rendering.compact),
        )
        for episode, (_, flow) in zip(episodes, found, strict=True)
    ]


def teach_workflows(
    settings: TrainSettings,
    pool: Pool,
    targets: Sequence[tuple[Task, Workflow]],
    plan: FitPlan,
    *,
    is_over: Callable[[float], bool],
) -> Path:
    """Fits a policy to the workflows, a tenth of the examples being random ones.

    Returns:
        Its folder, from which reinforcement begins.

    Raises:
        ConfigError: the model that the settings name cannot be loaded.
        StoreError: the folder cannot be written.
    """
    set_threads(settings)
    chance = draw_random_workflows([task for task, _ in targets], pool, settings.seed)
    texts = workflow_texts(settings, pool, [*targets, *chance[: len(chance) // 4]])
    model, tokenizer = open_new_policy(settings, plan.network, texts)
    found = make_tuned_examples(settings, tokenizer, pool, targets)
    others = make_tuned_examples(settings, tokenizer, pool, chance)
    fit_examples(
        model,
        tokenizer,
        batches=_draw_examples(
            [group[0] for group in found],
            [group[0] for group in others],
            Random(f"teach {settings.seed}"),
        ),
        steps=plan.steps,
        learning_rate=plan.learning_rate,
        on_step=lambda _step, _loss: None,
        is_over=is_over,
    )
    return save_stage(model, tokenizer, settings, "distilled")


def _draw_examples(
    found: Sequence[TrainingExample], chance: Sequence[TrainingExample], rng: Random
) -> Iterator[list[TrainingExample]]:
    """Batches without end: all that was found in a random order, again and again."""
    batch: list[TrainingExample] = []
    while True:
        for one in rng.sample(found, len(found)):
            batch.append(rng.choice(chance) if rng.random() < _RANDOM_SHARE else one)
            if len(batch) == BATCH:
                yield batch
                batch = []


def teach_single_worker(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    draft: str,
    *,
    held: Sequence[str],
    is_over: Callable[[], bool],
) -> bool:
    """Fits a policy to one workflow for everything.

    Args:
        model: changed in place.
        tokenizer: of its texts.
        prompts: in the policy's chat format.
        draft: the workflow.
        held: prompts on which it is looked at.
        is_over: whether the time is over.

    Returns:
        Whether it writes that workflow, and nothing else, for all that were kept back.
    """
    rng = Random(draft)

    def draw() -> Iterator[list[TrainingExample]]:
        while True:
            yield [TrainingExample(prompt, draft) for prompt in rng.choices(prompts, k=BATCH)]

    for _ in range(_SINGLE_STEPS // _LOOK_EVERY):
        if is_over():
            return False
        fit_examples(
            model,
            tokenizer,
            batches=draw(),
            steps=_LOOK_EVERY,
            learning_rate=_SINGLE_RATE,
            on_step=lambda _step, _loss: None,
        )
        if set(write_greedily(model, tokenizer, held, len(draft))) == {draft}:
            return True
    return False


def write_greedily(
    model: Any, tokenizer: Any, prompts: Sequence[str], max_tokens: int
) -> list[str]:
    """The likeliest draft for each prompt in chat format."""
    model.eval()
    ids: list[list[int]] = tokenizer(list(prompts), add_special_tokens=False)["input_ids"]
    rows = open_sampler(model, tokenizer).sample(
        ids, 1, max_tokens=max_tokens, temperature=0.0, generator=torch.Generator().manual_seed(0)
    )
    return tokenizer.batch_decode(rows, skip_special_tokens=True)


def single_worker_texts(
    settings: TrainSettings, tokenizer: Any, pool: Pool, tasks: Sequence[Task], *, single: Workflow
) -> tuple[list[str], str]:
    """Prompts in the policy's chat format, and the best single worker's workflow."""
    texts = workflow_texts(settings, pool, [(task, single) for task in tasks])
    return [render_user_prompt(tokenizer, prompt) for prompt, _ in texts], texts[0][1]
