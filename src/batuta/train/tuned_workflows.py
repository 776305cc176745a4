"""The policy is fitted to the workflows that a tuning found for its questions.

A stage between the SFT warm-up and reinforcement learning, in the place of rejection sampling: the
tuning has paid for finding out what is right where, so no worker is called here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import orjson
import torch

from batuta.core import Pool, Step, Task, TaskId, WorkerId, Workflow
from batuta.errors import ConfigError
from batuta.language import render_workflow
from batuta.train.conductor_training import load_pool
from batuta.train.episodes import make_episodes, render_chat_prompt
from batuta.train.model import load_policy, require_policy_start, save_stage, set_threads
from batuta.train.settings import TrainSettings
from batuta.train.warmup import TrainingExample, fit_examples

WORKFLOWS = "workflows.jsonl"
"""The file in a tuning's folder: each of its questions with the workflow found for it."""
_PASSES = 40
"""Times that each example is seen where the settings allow fewer steps of rejection sampling."""


def read_found_workflows(folder: Path, pool: Pool) -> list[tuple[Task, Workflow]]:
    """The questions of a tuning and what it plays on them.

    Args:
        folder: where `batuta tune` wrote.
        pool: whom the policy is to conduct.

    Raises:
        ConfigError: there are none, or the pool lacks a worker of theirs.
    """
    path = folder / WORKFLOWS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows: list[Mapping[str, Any]] = [orjson.loads(line) for line in lines if line.strip()]
        found = [_read_row(row) for row in rows]
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; name the folder that batuta tune wrote"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} holds no workflows of a tuning: {error!r}") from None
    absent = sorted({s.worker for _, flow in found for s in flow.steps if s.worker not in pool})
    if absent or not found:
        lacks = f"the pool has no worker {', '.join(absent)}" if absent else "it is empty"
        raise ConfigError(f"{path} cannot be learned from: {lacks}")
    return found


def _read_row(row: Mapping[str, Any]) -> tuple[Task, Workflow]:
    steps = tuple(
        Step(
            subtask=str(step["subtask"]),
            worker=WorkerId(str(step["worker"])),
            access=tuple(step["access"]),
        )
        for step in row["steps"]
    )
    task = Task(id=TaskId(str(row["id"])), question=str(row["question"]), target="", grader="exact")
    return task, Workflow(steps)


def fit_tuned_workflows(
    settings: TrainSettings, tuned: Path, on_step: Callable[[int, int, float], None]
) -> Path:
    """Fits the policy of the SFT warm-up to what a tuning found.

    Args:
        settings: the file; of its rejection sampling the batch, steps and learning rate.
        tuned: the folder that `batuta tune` wrote.
        on_step: hears each step's number, of how many, and its loss.

    Returns:
        The folder of the fitted policy, from which reinforcement learning begins.

    Raises:
        ConfigError: there is no policy to begin with, or nothing to learn from.
        StoreError: the folder cannot be written.
    """
    start = require_policy_start(settings, "distilled")
    pool = asyncio.run(load_pool(settings))
    found = read_found_workflows(tuned, pool)
    torch.manual_seed(settings.seed)
    set_threads(settings)
    model, tokenizer = load_policy(start, settings.policy.revision)
    fitting = settings.rejection
    examples = _make_examples(settings, tokenizer, pool, found)
    steps = max(fitting.steps, min(len(examples) * _PASSES // fitting.batch, 4 * fitting.steps))
    fit_examples(
        model,
        tokenizer,
        batches=_draw_batches(examples, fitting.batch, Random(f"tuned {settings.seed}")),
        steps=steps,
        learning_rate=fitting.learning_rate,
        on_step=lambda step, loss: on_step(step + 1, steps, loss),
    )
    return save_stage(model, tokenizer, settings, "distilled")


def _make_examples(
    settings: TrainSettings,
    tokenizer: Any,
    pool: Pool,
    found: Sequence[tuple[Task, Workflow]],
) -> list[TrainingExample]:
    """Prompts as the policy will meet them; a question whose workers are not listed is left out."""
    episodes = make_episodes(
        [task for task, _ in found],
        pool,
        settings=settings.pool,
        seed=settings.seed,
        word_dropout=settings.prompt.hidden,
    )
    rendering = settings.prompt.rendering()
    return [
        TrainingExample(
            render_chat_prompt(tokenizer, episode.request(rendering)),
            render_workflow(flow, episode.pool, names=True),
        )
        for episode, (_, flow) in zip(episodes, found, strict=True)
        if all(step.worker in episode.pool for step in flow.steps)
    ]


def _draw_batches(
    examples: Sequence[TrainingExample], size: int, rng: Random
) -> Iterator[list[TrainingExample]]:
    while True:
        yield rng.choices(examples, k=size)
