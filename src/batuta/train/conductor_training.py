"""`batuta train conductor`: from settings to a trained policy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final

import anyio
from transformers import (
    TrainerCallback,
)
from trl.trainer.grpo_trainer import GRPOTrainer

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Pool
from batuta.embedded.policy import ConductorCard
from batuta.train.allocator import retain_freed_memory
from batuta.train.episodes import Episode, make_episodes
from batuta.train.questions import draw_questions
from batuta.train.reward_function import RewardFunction
from batuta.train.rollout_setup import RolloutRunnerFactory
from batuta.train.rollouts import GradedRollout
from batuta.train.run_folder import RunFolder
from batuta.train.settings import TrainSettings
from batuta.train.trainer import MetricsListener, make_trainer, restore_pending


class Supervision(Protocol):
    """Judges and watches a training while it goes on."""

    @property
    def keeps(self) -> bool:
        """Whether it says itself which policy is the result."""
        ...

    def held_episodes(self, pool: Pool) -> list[Episode]:
        """The questions that policies are judged on."""
        ...

    def record_rollouts(self, rollouts: Sequence[GradedRollout]) -> None:
        """A step's workflows were run."""
        ...

    def make_callback(
        self,
        trainer: Any,
        *,
        reward: RewardFunction,
        episodes: Sequence[Episode],
        keep: Callable[[], None],
    ) -> TrainerCallback:
        """What the trainer calls at its steps; `keep` makes the policy as it is the result."""
        ...


@final
class _NoSupervision:
    """Lets the training go on to its end."""

    keeps = False

    def held_episodes(self, pool: Pool) -> list[Episode]:
        del pool
        return []

    def record_rollouts(self, rollouts: Sequence[GradedRollout]) -> None:
        del rollouts

    def make_callback(self, trainer: Any, **_: Any) -> TrainerCallback:
        del trainer
        return TrainerCallback()


SAMPLES_PER_STEP = 4
"""Workflows kept of a sampled step."""


def train_conductor(
    settings: TrainSettings,
    command: Sequence[str],
    on_metrics: MetricsListener,
    *,
    resume: bool = False,
    supervision: Supervision | None = None,
) -> Path:
    """Train the policy; with `resume`, from the last checkpoint on.

    Under a supervision the policy that it kept is the result, in place of the last one.

    Returns:
        The folder of the trained policy.

    Raises:
        ConfigError: the settings cannot be carried out.
        StoreError: the run folder cannot be written.
    """
    retain_freed_memory()
    folder = RunFolder(settings.output)
    pool = anyio.run(load_pool, settings)
    asked = make_episodes(
        draw_questions(settings),
        pool,
        settings.pool,
        settings.seed,
        word_dropout=settings.prompt.hidden,
    )
    supervision = supervision or _NoSupervision()
    held = supervision.held_episodes(pool)
    opening = RolloutRunnerFactory(settings, folder, [each.task for each in (*asked, *held)])
    main = int(os.environ.get("RANK", "0")) == 0

    def record_rollouts(step: int, rollouts: Sequence[GradedRollout]) -> None:
        supervision.record_rollouts(rollouts)
        if main and step % settings.log.sample_every == 0:
            folder.add_samples(step, rollouts[:: max(1, len(rollouts) // SAMPLES_PER_STEP)])

    def note(line: dict[str, Any]) -> None:
        if main:
            folder.add_metrics(line)
            on_metrics(line)

    reward = RewardFunction(settings, asked, opening, record_rollouts)
    trainer = make_trainer(settings, asked, reward=reward, folder=folder, on_metrics=note)
    keep = partial(_keep_policy, trainer, settings, folder, pool)
    trainer.add_callback(
        supervision.make_callback(trainer, reward=reward, episodes=held, keep=keep)
    )
    checkpoint = last_checkpoint(folder) if resume else None
    restore_pending(trainer, settings, checkpoint)
    if main:
        folder.begin(settings, command)
        folder.rewind(_checkpoint_step(checkpoint))
    _run_trainer(trainer, reward, opening, checkpoint)
    if not supervision.keeps:
        keep()
    return folder.policy


def policy_card(settings: TrainSettings) -> ConductorCard:
    """What serving must know of the policy."""
    return ConductorCard(
        name=settings.name,
        rendering=settings.prompt.rendering(),
        max_tokens=settings.optimiser.completion,
        rounds=settings.recursion.rounds,
    )


def _keep_policy(
    trainer: GRPOTrainer, settings: TrainSettings, folder: RunFolder, pool: Pool
) -> None:
    """Writes the policy as it is, with its card; every process takes part."""
    trainer.save_model(str(folder.policy))
    if int(os.environ.get("RANK", "0")) == 0:
        known = () if settings.pool.permute else tuple(str(worker.id) for worker in pool)
        replace(policy_card(settings), workers=known).write(folder.policy)


def _run_trainer(
    trainer: GRPOTrainer,
    reward: RewardFunction,
    opening: RolloutRunnerFactory,
    checkpoint: Path | None,
) -> None:
    """Trains to the end, and lets go of every connection."""
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        for closing in (reward.cancel, opening.close):
            asyncio.run_coroutine_threadsafe(closing(), trainer.async_loop).result()


def _checkpoint_step(checkpoint: Path | None) -> int:
    """The step after which it was written; 0: there is none."""
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


async def load_pool(settings: TrainSettings) -> Pool:
    """The workers, without a connection that lasts."""
    async with HttpTransport() as http:
        return (
            await load_config(http, pool=settings.pool.source, conductor="best", time_scale=0.0)
        ).pool


def last_checkpoint(folder: RunFolder) -> Path | None:
    """The newest whole checkpoint; None: there is none, training begins anew."""
    found = sorted(
        (path for path in folder.checkpoints.glob("checkpoint-*") if _is_whole(path)),
        key=lambda path: int(path.name.rpartition("-")[2]),
    )
    return found[-1] if found else None


def _is_whole(path: Path) -> bool:
    """Written to its end: the trainer's state comes last."""
    return (path / "trainer_state.json").is_file()
