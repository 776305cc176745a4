"""Fits the policy to workflows that a search has found, without calling a worker.

This stage runs between the SFT warm-up and reinforcement learning. It reads a file of drafts
(`batuta train distil`), or the folder of `batuta tune` (`batuta train conductor --from`), whose
workflows then replace rejection sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import anyio
import torch

from batuta.core import Pool, Skill, Step, Task, TaskId, Worker, WorkerId, Workflow
from batuta.errors import ConfigError, SourceError, WorkflowError
from batuta.files import file_sha256
from batuta.lab.tasks.datasets.rows import read_rows
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.train.allocator import retain_freed_memory
from batuta.lab.train.conductor_training import load_pool
from batuta.lab.train.device import bf16_autocast, compile_layers, set_threads
from batuta.lab.train.episodes import Episode, make_episodes, render_chat_prompt
from batuta.lab.train.fit_checkpoint import FitCheckpoint
from batuta.lab.train.fitting import Drill, Example, FitLoss, TrainingExample, fit_examples
from batuta.lab.train.model import load_trainable, require_policy_start, save_stage
from batuta.lab.train.questions import held_out_keys
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.settings import DistilSettings, TrainSettings
from batuta.language import parse_workflow, render_workflow
from batuta.rendering.terminal import write_error

WORKFLOWS = "workflows.jsonl"
"""File in a tuning run's folder with each question and the workflow found for it."""


def read_found_workflows(
    folder: Path, pool: Pool, without: frozenset[str] = frozenset()
) -> list[tuple[Task, Workflow]]:
    """Read the questions of a tuning run, each with the workflow that was chosen for the question.

    Questions with a `text_key` in `without` are left out.

    Raises:
        ConfigError: there are no workflows, all their questions are left out, or a workflow calls a
            worker that the pool lacks.
    """
    path = folder / WORKFLOWS
    if not path.is_file():
        raise ConfigError(f"there is no {path}; name the folder that batuta tune wrote")
    try:
        found = [_read_row(row) for row in read_rows(path)]
    except (SourceError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} contains no workflows of a tuning run: {error!r}") from None
    absent = sorted({s.worker for _, flow in found for s in flow.steps if s.worker not in pool})
    if absent or not found:
        lacks = f"the pool has no worker {', '.join(absent)}" if absent else "it is empty"
        raise ConfigError(f"{path} cannot be learned from: {lacks}")
    kept = [each for each in found if text_key(each[0].question) not in without]
    _report_left_out(path, len(found) - len(kept), any_kept=bool(kept))
    return kept


def _report_left_out(path: Path, count: int, *, any_kept: bool) -> None:
    """Report workflows of held-out questions; raise ConfigError if there are no others."""
    if count and not any_kept:
        raise ConfigError(
            f"{path} has nothing left to learn from: all its questions are held out; lower "
            "evaluation.questions, or name others as evaluation.tasks"
        )
    if count:
        write_error(
            f"batuta: {count} workflows in {path} are left out, as their questions "
            "are held out for the evaluation\n"
        )


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


def make_tuned_examples(
    settings: TrainSettings,
    tokenizer: Any,
    pool: Pool,
    found: Sequence[tuple[Task, Workflow]],
) -> list[list[TrainingExample]]:
    """Return an example for each question, each in a group of its own.

    A workflow is left out if it calls a worker that is not in its question's sub-pool.

    Raises:
        ConfigError: all workflows are left out.
    """
    tasks, hidden = [task for task, _ in found], settings.prompt.hidden
    episodes = make_episodes(tasks, pool, settings.pool, settings.seed, word_dropout=hidden)
    rendering = settings.prompt.rendering()
    groups = [
        [
            TrainingExample(
                render_chat_prompt(tokenizer, episode.request(rendering)),
                render_workflow(flow, episode.pool, names=settings.prompt.compact),
            )
        ]
        for episode, (_, flow) in zip(episodes, found, strict=True)
        if all(step.worker in episode.pool for step in flow.steps)
    ]
    if not groups:
        raise ConfigError(
            "every workflow found calls a worker that is not in its question's part of the pool: "
            "raise pool.fewest and pool.most, or remove them"
        )
    return groups


def digest_source(source: Path) -> str:
    """Return the SHA-256 digest of the source, by which a resumed stage recognises its data.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = source / WORKFLOWS if source.is_dir() else source
    try:
        return file_sha256(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def read_examples(
    path: Path,
    pool: Pool,
    settings: TrainSettings,
    tokenizer: object,
    *,
    without: frozenset[str] = frozenset(),
) -> list[list[Example]]:
    """Read the examples of a file, grouped by prompt.

    A row is a draft or a drill, with a `weight` if it is not 1. A draft has a `question`, a `draft`
    and the listed workers: `pool` (ids of workers of `pool`) or `workers` (each with an `id` and a
    card's `description` and `shares`, accuracy in [0, 1] by family). A drill has `drill`, a list of
    texts that are alternately given and learned. Drafts of questions with a `text_key` in
    `without` are left out.

    Raises:
        ConfigError: a row is neither a draft nor a drill, or no row is left to learn from.
        SourceError: the file cannot be read.
    """
    rendering = settings.prompt.rendering()
    groups: dict[str, list[Example]] = {}
    left_out = 0
    for number, read in enumerate(read_rows(path), 1):
        try:
            weight = _read_weight(read.get("weight", 1.0))
            if "drill" in read:
                groups[f"drill {number}"] = [Drill(_read_parts(read["drill"]), weight)]
                continue
            listed = _read_workers(read, pool)
            parse_workflow(read["draft"], listed)
            task = Task(
                id=TaskId(f"{path.name}-{number}"),
                question=_read_question(read["question"]),
                target="",
                grader="exact",
            )
        except (KeyError, TypeError, ValueError, AttributeError, WorkflowError) as error:
            raise ConfigError(
                f"{path}, row {number}: neither a draft over its pool nor a drill: {error}"
            ) from None
        if text_key(task.question) in without:
            left_out += 1
            continue
        episode = Episode(number=number, task=task, pool=listed, seed=number)
        prompt = render_chat_prompt(tokenizer, episode.request(rendering))
        groups.setdefault(prompt, []).append(TrainingExample(prompt, read["draft"], weight))
    _report_left_out(path, left_out, any_kept=bool(groups))
    if not groups:
        raise ConfigError(f"{path} contains no drafts")
    return list(groups.values())


def _read_workers(read: Mapping[str, Any], pool: Pool) -> Pool:
    if "workers" not in read:
        return Pool(tuple(pool[name] for name in read["pool"]))
    return Pool(
        tuple(
            Worker(
                id=WorkerId(str(one["id"])),
                model=str(one["id"]),
                description=str(one.get("description", "")),
                skills=tuple(
                    Skill(family=str(family), share=float(share))
                    for family, share in one.get("shares", {}).items()
                ),
            )
            for one in read["workers"]
        )
    )


def _read_question(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("its question is not a text")
    return value


def _read_weight(value: Any) -> float:
    weight = float(value)
    if not 0 < weight < math.inf:
        raise ValueError(f"a weight must be a number above 0, not {value}")
    return weight


def _read_parts(parts: Any) -> tuple[str, ...]:
    listed = cast("list[object]", parts) if isinstance(parts, list) else []
    texts = tuple(part for part in listed if isinstance(part, str) and part)
    if len(texts) != len(listed) or not texts[1:]:
        raise ValueError("a drill is a list of at least two texts, none of them empty")
    return texts


_SPARE = 9
"""Spare tokens beyond the longest draft found."""
_PASSES = 40
"""Passes over a tuning run's examples if the settings do not set the number of steps."""


def run_distillation(
    settings: TrainSettings,
    source: Path,
    on_step: Callable[[int, int, float], None],
    *,
    resume: bool = False,
) -> Path:
    """Fit the policy to workflows that a search has found, and return the policy's folder.

    Args:
        settings: the training; its pool must have the workflows' workers.
        source: a JSON lines file of drafts and drills (see `read_examples`), or the folder that
            `batuta tune` wrote. Drafts of one question over one pool share their prompt.
            `settings.distil` applies to both. For a folder, a batch, steps or learning rate that
            `settings.distil` does not set is derived from `settings.rejection`.
        on_step: called with each step's number, from 1, the number of steps, and the mean loss in
            nats a token.
        resume: True continues an interrupted run of the stage.

    Raises:
        ConfigError: the settings cannot be carried out, the source cannot be used, or a
            workflow is longer than the policy may write.
        SourceError: a file, or the held-out questions, cannot be read.
        StoreError: the policy, a checkpoint or the log cannot be written, or a store of questions
            cannot be read.
    """
    start = require_policy_start(settings, "distilled")
    pool = anyio.run(load_pool, settings)
    without = held_out_keys(settings)
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
    """Return `settings.distil` with unset values derived from the number of examples."""
    own, distil = settings.rejection, settings.distil
    steps = max(own.steps, min(examples * _PASSES // own.batch, 4 * own.steps))
    usual = {"steps": steps, "batch": own.batch, "learning_rate": own.learning_rate}
    return distil.model_copy(
        update={name: value for name, value in usual.items() if name not in distil.model_fields_set}
    )


def draw_groups(
    groups: Sequence[Sequence[Example]], size: int, rng: Random
) -> Iterator[list[Example]]:
    """Yield endless batches of whole groups, each of at least `size` examples.

    Every pass over the groups has a new random order.
    """
    batch: list[Example] = []
    while True:
        for group in rng.sample(groups, len(groups)):
            batch += group
            if len(batch) >= size:
                yield batch
                batch = []
