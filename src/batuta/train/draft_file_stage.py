"""`batuta train distil`: the policy is fitted to workflows that a search has found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import anyio
import torch

from batuta.core import Pool, Task, TaskId
from batuta.errors import ConfigError, WorkflowError
from batuta.language import parse_workflow
from batuta.train.conductor_training import load_pool
from batuta.train.episodes import Episode, render_chat_prompt
from batuta.train.model import (
    add_adapters,
    cpu_autocast,
    freeze_lower_layers,
    load_policy,
    require_policy_start,
    save_stage,
    set_threads,
)
from batuta.train.settings import TrainSettings
from batuta.train.warmup import TrainingExample, fit_examples


def run_distillation(
    settings: TrainSettings, drafts: Path, on_step: Callable[[int, float], None]
) -> Path:
    """Fit the policy to the drafts of a file.

    Args:
        settings: the file; the pool is the one that the drafts' workers are of.
        drafts: JSON lines of `question`, `pool` (ids, in the order they are listed), `draft` and,
            if it is not 1, `weight`. Drafts of one question over one pool share their prompt.
        on_step: hears each step's number and loss.

    Returns:
        The folder of the fitted policy.

    Raises:
        ConfigError: the settings cannot be carried out, or the file cannot be used.
        StoreError: the folder cannot be written.
    """
    start = require_policy_start(settings, "distilled")
    torch.manual_seed(settings.seed)
    set_threads(settings)
    model, tokenizer = load_policy(start, settings.policy.revision)
    if settings.policy.lora:
        model = add_adapters(model, settings.policy.lora)
    else:
        freeze_lower_layers(model, settings.policy.upper_layers)
    groups = read_drafts(drafts, anyio.run(load_pool, settings), settings, tokenizer)
    wanted = settings.distil
    fit_examples(
        model,
        tokenizer,
        batches=draw_groups(groups, wanted.batch, Random(f"distil {settings.seed}")),
        steps=wanted.steps,
        learning_rate=wanted.learning_rate,
        on_step=on_step,
        autocast=cpu_autocast(settings),
    )
    return save_stage(model, tokenizer, settings, "distilled")


def read_drafts(
    path: Path, pool: Pool, settings: TrainSettings, tokenizer: object
) -> list[list[TrainingExample]]:
    """The examples of a file, those of one prompt together.

    Raises:
        ConfigError: it cannot be read, or a line is no draft over workers of the pool.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    rendering = settings.prompt.rendering()
    groups: dict[str, list[TrainingExample]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = json.loads(line)
            listed = Pool(tuple(pool[name] for name in read["pool"]))
            parse_workflow(read["draft"], listed)
            task = Task(
                id=TaskId(f"{path.name}-{number}"),
                question=read["question"],
                target="",
                grader="exact",
            )
            weight = float(read.get("weight", 1.0))
        except (KeyError, TypeError, ValueError, WorkflowError) as error:
            raise ConfigError(f"{path}, line {number}: no draft over that pool: {error}") from None
        episode = Episode(number=number, task=task, pool=listed, seed=number)
        prompt = render_chat_prompt(tokenizer, episode.request(rendering))
        groups.setdefault(prompt, []).append(TrainingExample(prompt, read["draft"], weight))
    if not groups:
        raise ConfigError(f"{path} holds no drafts")
    return list(groups.values())


def draw_groups(
    groups: Sequence[Sequence[TrainingExample]], size: int, rng: Random
) -> Iterator[list[TrainingExample]]:
    """Batches of about `size` drafts without end: all groups in a random order, then again."""
    batch: list[TrainingExample] = []
    while True:
        for group in rng.sample(groups, len(groups)):
            batch += group
            if len(batch) >= size:
                yield batch
                batch = []
