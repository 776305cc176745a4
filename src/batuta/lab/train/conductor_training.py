"""`batuta train conductor`: trains a policy by reinforcement learning."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, final

import anyio
import numpy as np
import torch
from transformers import TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Pool
from batuta.errors import ConfigError
from batuta.lab.train.adapters import remove_adapters
from batuta.lab.train.allocator import retain_freed_memory
from batuta.lab.train.budget import (
    BudgetSpentError,
    CallRefusedError,
    TrainingBudget,
    describe_spending,
)
from batuta.lab.train.checkpoint_files import RESUMING, checkpoint_damage, report_unsaved
from batuta.lab.train.episodes import make_episodes
from batuta.lab.train.evaluation import Supervision, TrainingEvaluation, load_best
from batuta.lab.train.hub import require_hub, upload_policy
from batuta.lab.train.model import policy_card
from batuta.lab.train.questions import draw_held_out, draw_questions
from batuta.lab.train.reward_function import RewardFunction
from batuta.lab.train.rollout_setup import RolloutRunnerFactory
from batuta.lab.train.rollouts import GradedRollout
from batuta.lab.train.run_folder import EVALUATION_FILE, RunFolder, read_jsonl
from batuta.lab.train.settings import TrainSettings
from batuta.lab.train.stopping import StopFileCallback, TrainingStoppedError
from batuta.lab.train.trainer import MetricsListener, make_trainer, restore_pending
from batuta.rendering.terminal import write_error

SAMPLES_PER_STEP = 4
"""Approximate number of workflows written to the samples file for each sampled step."""


def train_conductor(
    settings: TrainSettings,
    command: Sequence[str],
    on_metrics: MetricsListener,
    *,
    resume: bool = False,
    checkpoint: str | None = None,
    supervision: Supervision | None = None,
) -> Path:
    """Train the policy and return its folder.

    With `resume` the training continues from `checkpoint`, or if that is None from the newest
    checkpoint, and starts over without one. The folder has the last policy, or the best one if
    policies are evaluated; a `supervision` may choose the policy itself. `on_metrics` is called in
    the main process only.

    Raises:
        ConfigError: the settings cannot be carried out.
        SandboxError: programs cannot be isolated here, which a grader needs.
        SourceError: a benchmark or a file cannot be used, or the hub did not take the policy.
        StoreError: the run folder cannot be written, or a store of questions cannot be read.
        BudgetSpentError: `pool.max_usd` does not suffice; the policy is kept if a step has ended.
        ExceptionGroup: a run failed; it has the first error.
        TrainingStoppedError: a stop was requested, and `supervision` does not choose the policy;
            the policy so far is kept.
        WorkerLostError: several steps had no reward, as workers do not answer.
    """
    retain_freed_memory()
    require_hub(settings.hub)
    folder = RunFolder(settings.output)
    before = find_checkpoint(folder, checkpoint) if resume else None
    pool = anyio.run(load_pool, settings)
    tasks, hidden = draw_questions(settings), settings.prompt.hidden
    asked = make_episodes(tasks, pool, settings.pool, settings.seed, word_dropout=hidden)
    supervising = supervision or _make_supervision(settings, folder)
    held = supervising.held_episodes(pool)
    runner_factory = RolloutRunnerFactory(settings, folder, [each.task for each in (*asked, *held)])
    is_main = int(os.environ.get("RANK", "0")) == 0
    if resume and is_main:
        runner_factory.warn_if_emptied()

    def record_rollouts(step: int, rollouts: Sequence[GradedRollout]) -> None:
        supervising.record_rollouts(rollouts)
        if is_main and step % settings.log.sample_every == 0:
            folder.add_samples(step, rollouts[:: max(1, len(rollouts) // SAMPLES_PER_STEP)])

    def record_metrics(line: dict[str, Any]) -> None:
        if is_main:
            folder.add_metrics(line)
            on_metrics(line)

    reward = RewardFunction(settings, asked, runner_factory, record_rollouts)
    trainer = make_trainer(settings, asked, reward=reward, folder=folder, on_metrics=record_metrics)
    stop = StopFileCallback(trainer, folder)
    trainer.add_callback(stop)
    keep = partial(_keep_policy, trainer, settings, folder, pool)
    supervising.attach(trainer, reward, held, keep)
    restore_pending(trainer, settings, before)
    if is_main:
        _begin_run(settings, folder, command, before=before, resume=resume)
    sufficed = _run_trainer(trainer, reward, runner_factory, before)
    _keep_result(trainer, keep, supervising, sufficed=sufficed)
    _require_end(
        trainer, runner_factory.budget, folder, stop, sufficed=sufficed, may_stop=supervising.keeps
    )
    if is_main:
        done = trainer.state.global_step if supervising.keeps else settings.optimiser.steps
        _end_run(settings, folder, command, steps=max(1, done))
    return folder.policy


def _end_run(
    settings: TrainSettings, folder: RunFolder, command: Sequence[str], *, steps: int
) -> None:
    """Write the number of steps if fewer were run, and upload the policy if `hub.repo` is set."""
    if steps < settings.optimiser.steps:  # the training then counts as finished
        optimiser = settings.optimiser.model_copy(update={"steps": steps})
        folder.begin(settings.model_copy(update={"optimiser": optimiser}), command)
    if settings.hub.repo:
        upload_policy(settings.hub, folder.policy)


def _keep_result(
    trainer: GRPOTrainer, keep: Callable[[], None], supervising: Supervision, *, sufficed: bool
) -> None:
    """Keep the best evaluated policy, else the last, unless the supervision keeps its own."""
    if not supervising.keeps and (sufficed or trainer.state.global_step):
        load_best(trainer)
        keep()


def _require_end(
    trainer: GRPOTrainer,
    budget: TrainingBudget | None,
    folder: RunFolder,
    stop: StopFileCallback,
    *,
    sufficed: bool,
    may_stop: bool,
) -> None:
    """Raise an error if the budget ended the training, or without `may_stop` a stop request did."""
    if not sufficed:
        _end_by_budget(trainer, budget, folder)
    if stop.has_stopped:
        ended = stop.note_end()
        if not may_stop:
            raise TrainingStoppedError(ended)


def _begin_run(
    settings: TrainSettings,
    folder: RunFolder,
    command: Sequence[str],
    *,
    before: Path | None,
    resume: bool,
) -> None:
    """Write the settings, and discard what was recorded after the checkpoint `before`."""
    folder.begin(settings, command)
    folder.rewind(_checkpoint_step(before))
    if "wandb" in settings.log.to:
        os.environ |= wandb_environment(settings, folder, resume=resume)


def _make_supervision(settings: TrainSettings, folder: RunFolder) -> Supervision:
    if not settings.evaluation.every:
        return Supervision(settings)
    return TrainingEvaluation(settings, draw_held_out(settings), folder)


def wandb_environment(
    settings: TrainSettings, folder: RunFolder, *, resume: bool
) -> dict[str, str]:
    """Return the environment variables by which transformers names the run in Weights & Biases."""
    run = folder.keep_wandb_id(settings.log.wandb_id, resume=resume)
    return {"WANDB_RUN_ID": run, "WANDB_RESUME": "allow"}


def _keep_policy(
    trainer: GRPOTrainer, settings: TrainSettings, folder: RunFolder, pool: Pool
) -> None:
    """Write the current policy with its card; every process must call this function."""
    with report_unsaved(folder.policy, RESUMING):
        trainer.save_model(str(folder.policy))
        if settings.policy.lora is None:
            remove_adapters(folder.policy)
    if int(os.environ.get("RANK", "0")) == 0:
        known = () if settings.pool.permute else tuple(str(worker.id) for worker in pool)
        replace(policy_card(settings), workers=known).write(folder.policy)


def _run_trainer(
    trainer: GRPOTrainer,
    reward: RewardFunction,
    runner_factory: RolloutRunnerFactory,
    checkpoint: Path | None,
) -> bool:
    """Train, close every connection, and return whether the budget sufficed to the end."""
    start = _KeepStepStart()
    trainer.add_callback(start)
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except CallRefusedError:
        _save_whole_steps(trainer, start)
        return False
    else:
        return True
    finally:
        for closing in (reward.cancel, runner_factory.close):
            asyncio.run_coroutine_threadsafe(closing(), trainer.async_loop).result()


def _checkpoint_step(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


async def load_pool(settings: TrainSettings) -> Pool:
    """Load the pool of the settings without keeping a connection open."""
    async with HttpTransport() as http:
        return (
            await load_config(http, pool=settings.pool.source, conductor="best", time_scale=0.0)
        ).pool


def find_checkpoint(folder: RunFolder, name: str | None) -> Path | None:
    """Return the checkpoint `name`, or if that is None the newest one, or None without any.

    A name is `checkpoint-20`, the path of its folder, `20`, or `best` for the checkpoint with the
    best evaluation.

    Raises:
        ConfigError: the named checkpoint does not exist or is damaged.
        StoreError: the evaluations, which name the best checkpoint, cannot be read.
    """
    if name is None:
        return last_checkpoint(folder)
    step = Path(name).name
    if step == "best":
        lines = [line for line in read_jsonl(folder.path / EVALUATION_FILE) if line.get("best")]
        step = str(lines[-1]["step"]) if lines else step
    by_name = {path.name: path for _, path in folder.list_checkpoints()}
    chosen = by_name.get(f"checkpoint-{step}" if step.isdecimal() else step)
    is_elsewhere = len(Path(name).parts) > 1 and chosen and Path(name).resolve() != chosen.resolve()
    if chosen is not None and not is_elsewhere and checkpoint_damage(chosen) is None:
        return chosen
    complete = [name for name, path in by_name.items() if checkpoint_damage(path) is None]
    raise ConfigError(
        f"there is no complete checkpoint {name} in {folder.checkpoints}; there "
        + (f"are: {', '.join(complete)}" if complete else "is none")
    )


def last_checkpoint(folder: RunFolder) -> Path | None:
    """Return the newest undamaged checkpoint, or None.

    Newer, damaged checkpoints are reported on standard error.
    """
    for _, path in reversed(folder.list_checkpoints()):
        damage = checkpoint_damage(path)
        if damage is None:
            return path
        write_error(f"batuta: {path} is skipped: {damage}\n")
    return None


# -- the end of a training whose budget is spent, with a checkpoint of the last finished step --


@final
class _KeepStepStart(TrainerCallback):
    """Stores the random state and token count before a step samples its drafts.

    A resumed training then samples the same drafts, and the journal has their finished calls.
    """

    def __init__(self) -> None:
        self._random: tuple[Any, ...] | None = None
        self._step, self._tokens = 0, 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store the random state and the token count."""
        self._step, self._tokens = state.global_step, state.num_input_tokens_seen
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
        self._random = (random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda)  # noqa: NPY002 - what transformers keeps

    def restore(self, state: Any) -> None:
        """Restore the random state and the token count if a step is unfinished."""
        if self._random is None or self._step != state.global_step:
            return  # no step is unfinished
        state.num_input_tokens_seen = self._tokens
        python, numpy, cpu, cuda = self._random
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002 - what transformers keeps
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


def _save_whole_steps(trainer: Any, start: _KeepStepStart) -> None:
    """Write a checkpoint of the finished steps, unless it exists or no step has finished."""
    step = int(trainer.state.global_step)
    if not step or (Path(trainer.args.output_dir) / f"checkpoint-{step}").is_dir():
        return
    start.restore(trainer.state)
    trainer._save_checkpoint(trainer.model, trial=None)  # noqa: SLF001
    trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)


def _end_by_budget(trainer: Any, budget: TrainingBudget | None, folder: RunFolder) -> NoReturn:
    trainer.accelerator.wait_for_everyone()
    step, steps = int(trainer.state.global_step), int(trainer.state.max_steps)
    spent = "pool.max_usd is spent" if budget is None else describe_spending(budget)
    kept = (
        f"checkpoint-{step} and the policy so far are in {folder.path}" if step else "no step ended"
    )
    raise BudgetSpentError(
        f"{spent}: the training ended after {step} of {steps} steps; {kept}; raise pool.max_usd "
        "and continue with --resume"
    )
