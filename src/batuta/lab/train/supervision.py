"""Supervision of a training with a time limit: its clock, evaluations and watchdogs.

The policy is judged on questions kept back, before reinforcement and during it, and the best one so
far is always in the folder. Watchdogs look at each step and act on troubles.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, Self, final

import torch
from transformers import TrainerCallback

from batuta.core import MAX_STEPS, Pool, Workflow
from batuta.lab.train.device import without_adapters
from batuta.lab.train.episodes import Episode, make_episodes
from batuta.lab.train.evaluation import evaluate_policy
from batuta.lab.train.questions import draw_kept_back
from batuta.lab.train.reward_function import RewardFunction
from batuta.lab.train.rollouts import GradedRollout
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.settings import TrainSettings

END_REINFORCEMENT = 0.92
"""The share of the time at which reinforcement ends."""
JUDGEMENTS = 8
"""About how often a policy is judged during reinforcement."""
WINDOW = 5
"""Steps over whose mean a watchdog looks."""
QUIET_STEPS = 10
"""Steps after which the same trouble is reported and acted on again."""
SAME_SHARE = 0.9
"""The share of questions with the same workflow from which it counts as a trouble."""
LEAST_ENTROPY = 0.03
"""Nats per token below which the policy no longer explores."""
DEPTH_SHARE = 0.95
"""The share of the greatest number of steps from which workflows count as too deep."""
VALIDITY_LOSS = 0.15
"""The fall of the share of valid drafts, from its best, that counts as a trouble."""
_MOST_ENTROPY = 0.2
_COST_GROWTH, _ENTROPY_GROWTH, _RATE_DECAY = 3.0, 2.0, 0.5

AutoListener = Callable[[str], None]
"""Called with a sentence about each event."""


@final
class StageClock:
    """The time of a training, divided among its stages."""

    def __init__(
        self, minutes: float, began: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Start at `began`, a value of `now`."""
        self.minutes = minutes
        self._seconds = 60 * minutes
        self._before = 0.0
        self._began = began
        self._now = now

    @property
    def used(self) -> float:
        """Seconds since the start."""
        return self._now() - self._began

    def begin_stages(self) -> None:
        """Divide the remaining time among the stages, without what loading libraries took."""
        self._before = self.used

    def left(self, share: float) -> float:
        """Return the seconds until that share of the time is used; negative if it is."""
        return self._before + share * (self._seconds - self._before) - self.used

    def until(self, end: float) -> Callable[[float], bool]:
        """Return a function that tells whether a share of the time from now to `end` is over."""
        began, seconds = self.used, self.left(end)
        return lambda part: self.used - began >= part * seconds


class TroubleKind(StrEnum):
    """The kind of trouble."""

    ONE_WORKFLOW = "one workflow for everything"
    ENTROPY_GONE = "entropy gone"
    DEPTH_AT_LIMIT = "depth at its limit"
    VALIDITY_FALLS = "validity falling"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A condition for which a person would stop the training."""

    kind: TroubleKind
    step: int
    seen: str
    """The figures, as a sentence."""
    _: KW_ONLY
    done: str = ""
    """This was done about it."""

    def __str__(self) -> str:
        """Say it in a line."""
        return f"step {self.step}: {self.kind}: {self.seen}; {self.done}"


def most_common_share(chosen: Sequence[Sequence[Hashable]]) -> float | None:
    """Return the share of questions whose most common workflow is that of most questions.

    Args:
        chosen: the valid workflows of each question's group.
    """
    commonest = [Counter(group).most_common(1)[0][0] for group in chosen if group]
    if len(commonest) < WINDOW:
        return None
    return Counter(commonest).most_common(1)[0][1] / len(commonest)


def find_troubles(
    history: Sequence[Mapping[str, Any]], told: Sequence[Trouble], most_steps: int = MAX_STEPS
) -> list[Trouble]:
    """Return the troubles of the latest steps that were not reported recently.

    Args:
        history: the figures of every step so far, in order: `step`, `valid`, `steps`, and where
            they were measured `entropy` and `same`, the share of `most_common_share`.
        told: the troubles found before.
        most_steps: steps that a workflow may have.
    """
    if len(history) < WINDOW:
        return []
    now = int(history[-1]["step"])
    same, entropy = _recent_mean(history, "same"), _recent_mean(history, "entropy")
    depth = fmean(line["steps"] for line in history[-WINDOW:])
    ends = range(WINDOW, len(history) + 1)
    means = [fmean(line["valid"] for line in history[end - WINDOW : end]) for end in ends]
    valid, best = means[-1], max(means)
    found: dict[TroubleKind, str] = {}
    if same is not None and same >= SAME_SHARE:
        found[TroubleKind.ONE_WORKFLOW] = f"{same:.0%} of the questions get the same workflow"
    if entropy is not None and entropy < LEAST_ENTROPY:
        found[TroubleKind.ENTROPY_GONE] = f"{entropy:.3f} nats a token"
    if depth >= DEPTH_SHARE * most_steps:
        found[TroubleKind.DEPTH_AT_LIMIT] = f"{depth:.1f} steps a workflow of {most_steps} allowed"
    if valid < best - VALIDITY_LOSS:
        seen = f"{valid:.0%} of the drafts are workflows, after {best:.0%}"
        found[TroubleKind.VALIDITY_FALLS] = seen
    recent = {trouble.kind for trouble in told if now - trouble.step < QUIET_STEPS}
    return [Trouble(kind, now, seen) for kind, seen in found.items() if kind not in recent]


def _recent_mean(history: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean over the last steps if all of them have that figure."""
    values = [line[name] for line in history[-WINDOW:] if line.get(name) is not None]
    return fmean(values) if len(values) == WINDOW else None


class CallCharge(Protocol):
    """The charge for a call in the reward."""

    def raise_cost(self, times: float) -> float:
        """Multiply the charge from now on; return the new coefficient."""
        ...


@dataclass(slots=True, kw_only=True)
class AutoReport:
    """The result of a training with a time limit."""

    folder: Path
    judgements: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The figures of each judged policy, with the policy's name as `stage`."""
    troubles: list[Trouble] = field(default_factory=list[Trouble])
    seconds: float = 0.0
    workflows: int = 0
    """Executed workflows, those of judgements included."""
    calls: int = 0
    usd: float = 0.0

    @property
    def best(self) -> dict[str, Any] | None:
        """The judgement of the kept policy: the first with the greatest share right."""
        return max(self.judgements, key=lambda line: line["right"] or 0.0, default=None)


@final
class TimedSupervision(TrainerCallback):
    """The `Supervision` of a training with a time limit, and its trainer's callback."""

    keeps = True

    def __init__(
        self, settings: TrainSettings, clock: StageClock, on_progress: AutoListener
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_progress = on_progress
        self._history: list[dict[str, Any]] = []
        self._groups: list[list[Hashable]] = []
        self._best: dict[str, torch.Tensor] | None = None
        self._pause, self._judged_at, self._slowest_judgement = 0.0, 0.0, 0.0
        self._step_began, self._slowest_step = 0.0, 0.0
        self.report = AutoReport(folder=settings.output)

    def held_episodes(self, pool: Pool) -> list[Episode]:
        """Return the episodes of the questions kept back."""
        held = draw_kept_back(self._settings)
        return make_episodes(held, pool, self._settings.pool, self._settings.seed)

    def record_rollouts(self, rollouts: Sequence[GradedRollout]) -> None:
        """Count the workflows' calls and dollars, and store the structure of each."""
        report = self.report
        report.workflows += len(rollouts)
        report.calls += sum(each.run.usage.calls - len(each.run.rounds) for each in rollouts)
        report.usd += float(sum(each.run.cost.usd for each in rollouts))
        groups: dict[int, list[Hashable]] = {}
        for each in rollouts:
            flow = each.run.rounds[-1].workflow if each.run.rounds else None
            group = groups.setdefault(each.episode.number, [])
            if isinstance(flow, Workflow):
                group.append(tuple((step.worker, step.access) for step in flow.steps))
        self._groups = list(groups.values())

    def make_callback(
        self,
        trainer: Any,
        *,
        reward: RewardFunction,
        episodes: Sequence[Episode],
        keep: Callable[[], None],
    ) -> Self:
        """Return this object; `keep` writes the current policy into the folder."""
        self._trainer, self._reward, self._episodes = trainer, reward, episodes
        self._keep = keep
        self._pause = max(1.0, self._clock.left(END_REINFORCEMENT) / JUDGEMENTS)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Judge the policy before reinforcement, which may be the best one."""
        self._judge(0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start timing the step, or end the training if no further step fits."""
        self._step_began = self._clock.used
        control.should_training_stop |= self._is_over()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Watch the step's figures, which TRL logs once a step."""
        if logs and "reward" in logs:
            figures = {"step": int(state.global_step), **logs}
            self.watch(self._trainer, self._reward, figures)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Judge the policy if it is due, and end the training in time."""
        self._slowest_step = max(0.7 * self._slowest_step, self._clock.used - self._step_began)
        over = self._is_over()
        if over or self._clock.used - self._judged_at >= self._pause:
            self._judge(int(state.global_step))
        control.should_training_stop |= over

    def _is_over(self) -> bool:
        """Tell whether there is no time for another step and a last judgement."""
        wanted = 1.5 * (self._slowest_step + self._slowest_judgement)
        return self._clock.left(END_REINFORCEMENT) < wanted

    def _judge(self, step: int) -> None:
        """Judge the policy on the questions kept back, and keep it if it is the best so far."""
        began, report = self._clock.used, self.report
        line = evaluate_policy(self._trainer, self._reward, self._episodes, step)
        self._judged_at = self._clock.used
        self._slowest_judgement = max(self._slowest_judgement, self._judged_at - began)
        better = report.best is None or (line["right"] or 0.0) > (report.best["right"] or 0.0)
        RunFolder(report.folder).add_evaluation(line | {"best": better})
        stage = f"step {step}" if step else "before reinforcement"
        report.judgements.append({"stage": stage, **line})
        report.workflows += line["questions"]
        report.calls += round(line["steps"] * line["questions"])
        report.usd += line["usd"]
        mark = ", the best so far" if better else ""
        right = "unknown" if line["right"] is None else f"{line['right']:.1%}"
        self._on_progress(f"{stage}: {right} of {line['counted']} held-back questions right{mark}")
        if better:
            bare = without_adapters(self._trainer.accelerator.unwrap_model(self._trainer.model))
            self._best = {name: value.detach().clone() for name, value in bare.state_dict().items()}
            self._keep()

    def watch(self, trainer: Any, reward: CallCharge, figures: Mapping[str, Any]) -> None:
        """Record a step's figures, and act on the troubles that they show."""
        self._history.append({"same": most_common_share(self._groups), **figures})
        for trouble in find_troubles(self._history, self.report.troubles):
            acted = replace(trouble, done=self.act(trouble.kind, trainer, reward))
            self.report.troubles.append(acted)
            self._on_progress(str(acted))

    def act(self, kind: TroubleKind, trainer: Any, reward: CallCharge) -> str:
        """Act against the trouble, and return what was done."""
        if kind in {TroubleKind.ONE_WORKFLOW, TroubleKind.ENTROPY_GONE}:
            before = max(float(trainer.entropy_coef), 0.005)
            trainer.entropy_coef = min(before * _ENTROPY_GROWTH, _MOST_ENTROPY)
            return f"the entropy bonus is now {trainer.entropy_coef:g}"
        if kind is TroubleKind.DEPTH_AT_LIMIT:
            return f"a call now costs {reward.raise_cost(_COST_GROWTH):g} of a right answer"
        schedule = trainer.lr_scheduler
        schedule.base_lrs = [rate * _RATE_DECAY for rate in schedule.base_lrs]
        for group in trainer.optimizer.param_groups:
            group["lr"] *= _RATE_DECAY
        rate = float(trainer.optimizer.param_groups[0]["lr"])
        if self._best is None:
            return f"the learning rate is now {rate:g}"
        bare = without_adapters(trainer.accelerator.unwrap_model(trainer.model))
        bare.load_state_dict(self._best)
        return f"back to the best policy, with a learning rate of {rate:g}"
