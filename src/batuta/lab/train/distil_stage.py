"""Fits the policy to workflows that a search has found, without calling a worker.

A stage between the SFT warm-up and reinforcement learning. It reads a file of drafts (`batuta train
distil`), or the folder of `batuta tune`, whose workflows then replace rejection sampling (`batuta
train conductor --from`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import anyio
import torch

from batuta.errors import ConfigError
from batuta.lab.train.allocator import retain_freed_memory
from batuta.lab.train.conductor_training import load_pool
from batuta.lab.train.device import bf16_autocast, compile_layers, set_threads
from batuta.lab.train.distil_sources import (
    digest_source,
    make_tuned_examples,
    read_examples,
    read_found_workflows,
)
from batuta.lab.train.fit_checkpoint import FitCheckpoint
from batuta.lab.train.fitting import Example, FitLoss, TrainingExample, fit_examples
from batuta.lab.train.model import load_trainable, require_policy_start, save_stage
from batuta.lab.train.questions import kept_back_keys
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.settings import DistilSettings, TrainSettings

_SPARE = 9
"""Tokens that a draft may be longer than the longest one found."""
_PASSES = 40
"""Passes over a tuning's examples if the settings do not say how many steps."""


def run_distillation(
    settings: TrainSettings,
    source: Path,
    on_step: Callable[[int, int, float], None],
    *,
    resume: bool = False,
) -> Path:
    """Fit the policy to workflows that a search has found.

    Args:
        settings: the training; its pool must have the workflows' workers.
        source: JSON lines of `question`, `pool` (ids, in the order they are listed) or `workers`
            (with their cards), `draft` and, if it is not 1, `weight`, whose drafts of one question
            over one pool share their prompt; lines of `drill` may stand between them
            (`distil_sources`); or the folder that `batuta tune` wrote. Both are fitted as `distil`
            says; what it leaves open of batch, steps and learning rate is, for a folder, that of
            rejection sampling.
        on_step: called with each step's number, the number of steps, and the loss.
        resume: continue where the same stage was killed.

    Returns:
        The folder of the fitted policy, from which reinforcement learning begins.

    Raises:
        ConfigError: the settings cannot be carried out, the source cannot be used, or a
            workflow is longer than the policy may write.
    """
    start = require_policy_start(settings, "distilled")
    pool = anyio.run(load_pool, settings)
    without = kept_back_keys(settings)
    found = read_found_workflows(source, pool, without) if source.is_dir() else None
    digest = digest_source(source)
    retain_freed_memory()
    torch.manual_seed(settings.seed)
    set_threads(settings)
    model, tokenizer = load_trainable(start, settings)
    if found is None:
        groups = read_examples(source, pool, settings, tokenizer, without=without)
        fitting = settings.distil
    else:
        groups = make_tuned_examples(settings, tokenizer, pool, found)
        _require_room(groups, tokenizer, settings.optimiser.completion)
        fitting = _fit_of_tuning(settings, len(groups))
    log = RunFolder(settings.output).log_losses("distilled")

    def report_step(step: int, loss: FitLoss) -> None:
        log(step, loss.shown, loss.drills)
        on_step(step + 1, fitting.steps, loss.shown)

    checkpoint = FitCheckpoint.of_stage(settings, "distilled", digest, resume=resume)
    if settings.distil.compile:
        compile_layers(model)
    fit_examples(
        model,
        tokenizer,
        batches=draw_groups(groups, fitting.batch, Random(f"distil {settings.seed}")),
        steps=fitting.steps,
        learning_rate=fitting.learning_rate,
        on_step=report_step,
        autocast=bf16_autocast(settings),
        is_over=lambda share: (
            fitting.minutes is not None and checkpoint.seconds > 60 * fitting.minutes * share
        ),
        checkpoint=checkpoint,
    )
    return checkpoint.end(save_stage(model, tokenizer, settings, "distilled"))


def _require_room(
    groups: Sequence[Sequence[TrainingExample]], tokenizer: Any, completion: int
) -> None:
    """Check that every workflow fits in a completion, as a truncated one could not be run."""
    drafts = {example.draft for group in groups for example in group}
    longest = max(len(tokenizer(one, add_special_tokens=False)["input_ids"]) for one in drafts)
    if longest >= completion:
        raise ConfigError(
            f"the longest workflow found has {longest} tokens, and the policy may write "
            f"{completion}: set [optimiser] completion = {longest + _SPARE}"
        )


def _fit_of_tuning(settings: TrainSettings, examples: int) -> DistilSettings:
    """Return the settings of fitting, completed for a tuning's workflows."""
    own, distil = settings.rejection, settings.distil
    steps = max(own.steps, min(examples * _PASSES // own.batch, 4 * own.steps))
    usual = {"steps": steps, "batch": own.batch, "learning_rate": own.learning_rate}
    return distil.model_copy(
        update={name: value for name, value in usual.items() if name not in distil.model_fields_set}
    )


def draw_groups(
    groups: Sequence[Sequence[Example]], size: int, rng: Random
) -> Iterator[list[Example]]:
    """Yield batches of about `size` examples without end, each pass in a new random order."""
    batch: list[Example] = []
    while True:
        for group in rng.sample(groups, len(groups)):
            batch += group
            if len(batch) >= size:
                yield batch
                batch = []
