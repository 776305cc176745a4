"""What watches a training within a time: its clock, its judgements, its watchdogs' acts.

A policy is judged on questions that were kept back, before reinforcement and while it goes on; the
best one so far lies in the folder at any moment. Watchdogs look at each step and act.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, final

import torch
from transformers import TrainerCallback

from batuta.core import MAX_STEPS, Pool, Workflow
from batuta.train.auto_settings import (
    END_SHARE,
)
from batuta.train.device import without_adapters
from batuta.train.episodes import Episode, make_episodes, render_chat_prompt
from batuta.train.held_back import SplitQuestions
from batuta.train.reward_function import RewardFunction, rollout_metrics
from batuta.train.rollouts import GradedRollout, PolicyDraft
from batuta.train.sampler import open_sampler
from batuta.train.settings import TrainSettings
from batuta.train.watchdogs import (
    StepFigures,
    Trouble,
    TroubleKind,
    find_troubles,
    most_common_share,
)

JUDGEMENTS = 8
"""Times that a policy is judged while reinforcement goes on, about."""
_MOST_ENTROPY = 0.2
_COST_GROWTH, _ENTROPY_GROWTH, _RATE_DECAY = 3.0, 2.0, 0.5

AutoListener = Callable[[str], None]
"""Receives, in a sentence, what happens."""


class CallCharge(Protocol):
    """What a call costs of a right answer's reward."""

    def raise_cost(self, times: float) -> float:
        """Charges so many times as much from now on; the new coefficient."""
        ...


@final
class StageClock:
    """The time of a training, divided among its stages."""

    def __init__(
        self, minutes: float, began: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Runs from `began` on, a value of `now`."""
        self.minutes = minutes
        self._seconds = 60 * minutes
        self._before = 0.0
        self._began = began
        self._now = now

    @property
    def used(self) -> float:
        """Seconds so far."""
        return self._now() - self._began

    def begin_stages(self) -> None:
        """What was used so far, to load libraries, is no part of what the stages share."""
        self._before = self.used

    @property
    def share(self) -> float:
        """The share of the stages' time that is used."""
        return (self.used - self._before) / (self._seconds - self._before)

    def left(self, share: float) -> float:
        """Seconds until that share of the time is used; negative: it is."""
        return self._before + share * (self._seconds - self._before) - self.used

    def within(self, start: float, end: float) -> Callable[[float], bool]:
        """Tells whether a part of the time between two shares of the whole is over."""
        return lambda part: self.left(start + part * (end - start)) <= 0


@dataclass(frozen=True, slots=True)
class PolicyJudgement:
    """How a policy did on the questions that were kept back."""

    stage: str
    right: float
    steps: float
    """Of a workflow."""


@dataclass(slots=True, kw_only=True)
class AutoReport:
    """What came of a training."""

    folder: Path
    judgements: list[PolicyJudgement] = field(default_factory=list[PolicyJudgement])
    troubles: list[tuple[Trouble, str]] = field(default_factory=list[tuple[Trouble, str]])
    """Each with what was done."""
    seconds: float = 0.0
    workflows: int = 0
    """How many were run, judgements included."""
    calls: int = 0
    usd: float = 0.0

    @property
    def best(self) -> PolicyJudgement | None:
        """The one that is kept: the first of those with the greatest share."""
        return max(self.judgements, key=lambda one: one.right, default=None)


@final
class TrainingSupervisor:
    """Judges, watches and acts while reinforcement goes on; see `train_conductor`."""

    def __init__(
        self,
        settings: TrainSettings,
        split: SplitQuestions,
        clock: StageClock,
        *,
        on_progress: AutoListener,
    ) -> None:
        """Nothing is judged yet."""
        self._settings = settings
        self._tasks = split.held_back
        self._clock = clock
        self._on_progress = on_progress
        self._history: list[StepFigures] = []
        self._rollouts: Sequence[GradedRollout] = ()
        self._best: dict[str, torch.Tensor] | None = None
        self._slowest = 0.0
        self.report = AutoReport(folder=settings.output)

    keeps = True

    def held_episodes(self, pool: Pool) -> list[Episode]:
        """The questions that were kept back, as the policy meets them."""
        return make_episodes(self._tasks, pool, self._settings.pool, self._settings.seed)

    def record_rollouts(self, rollouts: Sequence[GradedRollout]) -> None:
        """A step's workflows were run."""
        self._rollouts = rollouts
        self.count(rollouts)

    def count(self, rollouts: Sequence[GradedRollout]) -> None:
        """Adds what was paid."""
        self.report.workflows += len(rollouts)
        self.report.calls += sum(each.run.usage.calls - len(each.run.rounds) for each in rollouts)
        self.report.usd += float(sum(each.run.cost.usd for each in rollouts))

    def judge(
        self, trainer: Any, reward: RewardFunction, episodes: Sequence[Episode], stage: str
    ) -> bool:
        """Judges the policy greedily; whether it is the best so far."""
        began = time.monotonic()
        bare: Any = without_adapters(trainer.accelerator.unwrap_model(trainer.model))
        bare.eval()
        tokenizer, rendering = trainer.processing_class, self._settings.prompt.rendering()
        texts = [render_chat_prompt(tokenizer, each.request(rendering)) for each in episodes]
        prompts: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        rows = open_sampler(bare, tokenizer).sample(
            prompts,
            1,
            max_tokens=self._settings.optimiser.completion,
            temperature=0.0,
            generator=torch.Generator().manual_seed(0),
        )
        bare.train()
        drafts = tokenizer.batch_decode(rows, skip_special_tokens=True)
        pairs = [(e, PolicyDraft(text=t)) for e, t in zip(episodes, drafts, strict=True)]
        rollouts = reward.run_drafts(pairs, [7 + at for at in range(len(pairs))], trainer)
        self.count(rollouts)
        self._slowest = max(self._slowest, time.monotonic() - began)
        figures = rollout_metrics(rollouts)
        found = PolicyJudgement(stage, figures["right"], figures["steps"])
        better = self.report.best is None or found.right > self.report.best.right
        self.report.judgements.append(found)
        mark = ", the best so far" if better else ""
        self._on_progress(
            f"{stage}: {found.right:.1%} of {len(rollouts)} held-back questions right{mark}"
        )
        if better:
            self._best = {name: value.detach().clone() for name, value in bare.state_dict().items()}
        return better

    def watch(self, trainer: Any, reward: CallCharge, figures: dict[str, Any]) -> None:
        """Looks at a step, and acts where something is wrong."""
        self._history.append(
            StepFigures(
                step=int(figures["step"]),
                valid=float(figures.get("valid", 1.0)),
                right=float(figures.get("right", 0.0)),
                steps=float(figures.get("steps", 0.0)),
                entropy=figures.get("entropy"),
                same=most_common_share(_workflows_by_question(self._rollouts)),
            )
        )
        told = [trouble for trouble, _ in self.report.troubles]
        for trouble in find_troubles(self._history, told, MAX_STEPS):
            done = self.act(trouble.kind, trainer, reward)
            self.report.troubles.append((trouble, done))
            self._on_progress(f"step {trouble.step}: {trouble.kind}: {trouble.seen}; {done}")

    def make_callback(
        self,
        trainer: Any,
        *,
        reward: RewardFunction,
        episodes: Sequence[Episode],
        keep: Callable[[], None],
    ) -> TrainerCallback:
        """What the trainer calls at its steps."""
        return SupervisorCallback(
            self, trainer=trainer, reward=reward, episodes=episodes, keep=keep, clock=self._clock
        )

    def act(self, kind: TroubleKind, trainer: Any, reward: CallCharge) -> str:
        """Does something against it, and says what."""
        if kind in {TroubleKind.ONE_WORKFLOW, TroubleKind.ENTROPY_GONE}:
            before = max(float(trainer.entropy_coef), 0.005)
            trainer.entropy_coef = min(before * _ENTROPY_GROWTH, _MOST_ENTROPY)
            return f"the entropy bonus is now {trainer.entropy_coef:g}"
        if kind is TroubleKind.DEPTH_AT_LIMIT:
            return f"a call now costs {reward.raise_cost(_COST_GROWTH):g} of a right answer"
        rate = _slow_down(trainer)
        if self._best is None:
            return f"the learning rate is now {rate:g}"
        bare: Any = without_adapters(trainer.accelerator.unwrap_model(trainer.model))
        bare.load_state_dict(self._best)
        return f"back to the best policy, with a learning rate of {rate:g}"

    def is_over(self, step_seconds: float) -> bool:
        """Whether another step and a last judgement do not fit."""
        return self._clock.left(END_SHARE) < 1.5 * step_seconds + 1.5 * self._slowest


@final
class SupervisorCallback(TrainerCallback):
    """Calls the supervisor at the trainer's steps."""

    def __init__(
        self,
        supervisor: TrainingSupervisor,
        *,
        trainer: Any,
        reward: RewardFunction,
        episodes: Sequence[Episode],
        keep: Callable[[], None],
        clock: StageClock,
    ) -> None:
        """`keep` writes the policy as it is into the folder."""
        self._supervisor = supervisor
        self._trainer = trainer
        self._reward = reward
        self._episodes = episodes
        self._keep = keep
        self._clock = clock
        self._pause = max(1.0, clock.left(END_SHARE) / JUDGEMENTS)
        self._judged_at = 0.0
        self._step_began = 0.0
        self._slowest = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The policy before reinforcement is a candidate."""
        self._judge("before reinforcement")

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step is timed."""
        if self._supervisor.is_over(self._slowest):
            control.should_training_stop = True
        self._step_began = self._clock.used

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """TRL logs once a step."""
        if logs and "reward" in logs:
            figures = {"step": int(state.global_step), **logs}
            self._supervisor.watch(self._trainer, self._reward, figures)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The policy is judged now and then, and the training ends in time."""
        self._slowest = max(0.7 * self._slowest, self._clock.used - self._step_began)
        over = self._supervisor.is_over(self._slowest)
        if over or self._clock.used - self._judged_at >= self._pause:
            self._judge(f"step {int(state.global_step)}")
        if over:
            control.should_training_stop = True

    def _judge(self, stage: str) -> None:
        if self._supervisor.judge(self._trainer, self._reward, self._episodes, stage):
            self._keep()
        self._judged_at = self._clock.used


def _workflows_by_question(rollouts: Sequence[GradedRollout]) -> list[list[Hashable]]:
    """Of each question the workflows of its group, by who does what after whom."""
    groups: dict[int, list[Hashable]] = {}
    for each in rollouts:
        flow = each.run.rounds[-1].workflow if each.run.rounds else None
        group = groups.setdefault(each.episode.number, [])
        if isinstance(flow, Workflow):
            group.append(tuple((step.worker, step.access) for step in flow.steps))
    return list(groups.values())


def _slow_down(trainer: Any) -> float:
    """Halves the learning rate, in the schedule too; the new one."""
    schedule: Any = trainer.lr_scheduler
    schedule.base_lrs = [rate * _RATE_DECAY for rate in schedule.base_lrs]
    for group in trainer.optimizer.param_groups:
        group["lr"] *= _RATE_DECAY
    return float(trainer.optimizer.param_groups[0]["lr"])
