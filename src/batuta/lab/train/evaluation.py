"""Evaluation on held-out questions during training; the best checkpoint is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, final

from accelerate.utils import gather_object
from transformers import TrainerCallback

from batuta.core import Pool, Task
from batuta.lab.train.budget import CallRefusedError
from batuta.lab.train.episodes import Episode, make_episodes
from batuta.lab.train.grpo import RolloutFunction
from batuta.lab.train.reward_function import RewardFunction, is_continuable
from batuta.lab.train.rollouts import GradedRollout, PolicyDraft
from batuta.lab.train.run_folder import EVALUATION_FILE, RunFolder, read_jsonl
from batuta.lab.train.settings import TrainSettings

_FIRST_SEED = 7
"""Seed of the first question's run, the same in all evaluations so that they can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldResult:
    """The result on one held-out question."""

    right: float | None
    """Score of the answer, 0 to 1; 0 if there is no score, None if there is no reward."""
    reward: float | None
    """None after an outage or a cancellation."""
    valid: bool
    """True if the draft could be parsed."""
    steps: int
    """Number of executed steps."""
    usd: float | None
    """None if a call's price is unknown."""
    refused: bool
    """True if the training's budget refused a call of the run or of its judge."""

    @staticmethod
    def of(rollout: GradedRollout) -> HeldResult:
        """Return the result of a rollout."""
        grade = rollout.grade
        score = (grade.score or 0.0) if grade else 0.0
        return HeldResult(
            right=None if rollout.reward is None else score,
            reward=rollout.reward,
            valid=is_continuable(rollout),
            steps=len(rollout.run.steps),
            usd=None if rollout.run.cost.unpriced_calls else float(rollout.run.cost.usd),
            refused=rollout.refused,
        )


class Supervision(TrainerCallback):
    """Evaluates policies during training; this base class evaluates nothing."""

    keeps = False
    """True if the supervision chooses the resulting policy itself."""

    def __init__(self, settings: TrainSettings, held: Sequence[Task] = ()) -> None:
        self._settings = settings
        self._held = held

    def held_episodes(self, pool: Pool) -> list[Episode]:
        """Return the held-out questions with their pools, on which policies are evaluated."""
        return make_episodes(self._held, pool, self._settings.pool, self._settings.seed)

    def record_rollouts(self, rollouts: Sequence[GradedRollout]) -> None:
        """Receive the executed workflows of a step; this class ignores them."""

    def attach(
        self,
        trainer: Any,
        reward: RewardFunction,
        episodes: Sequence[Episode],
        keep: Callable[[], None],
    ) -> None:
        """Register as a callback of the trainer; `keep` writes the current policy as the result."""
        self._trainer, self._reward, self._episodes = trainer, reward, episodes
        self._keep = keep
        trainer.add_callback(self)


@final
class TrainingEvaluation(Supervision):
    """Evaluates every few steps, and marks the best checkpoint so that it is not deleted."""

    def __init__(self, settings: TrainSettings, held: Sequence[Task], folder: RunFolder) -> None:
        super().__init__(settings, held)
        self._folder = folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate the policy at the start, or at a checkpoint whose due evaluation is missing."""
        step = int(state.global_step)
        evaluated = {int(line["step"]) for line in read_jsonl(self._folder.path / EVALUATION_FILE)}
        if step not in evaluated and self._is_due(step, state) and self._is_best(step, state):
            state.best_model_checkpoint = str(Path(args.output_dir) / f"checkpoint-{step}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate the policy if due, and request a checkpoint if it is the best so far."""
        step = int(state.global_step)
        if self._is_due(step, state) and self._is_best(step, state):
            control.should_save = True

    def _is_due(self, step: int, state: Any) -> bool:
        return step % self._settings.evaluation.every == 0 or step == state.max_steps

    def _is_best(self, step: int, state: Any) -> bool:
        """Evaluate and record the policy; return True if it is trained and the best so far."""
        line = evaluate_policy(self._trainer, self._reward, self._episodes, step)
        value = line[self._settings.evaluation.metric]
        before = state.best_metric if state.best_global_step else None
        better = step > 0 and value is not None and (before is None or value > before)
        if better:
            state.best_metric, state.best_global_step = value, step
        if self._trainer.is_world_process_zero():
            self._folder.add_evaluation(line | {"best": better})
        self._log(line, state)
        return better

    def _log(self, line: dict[str, Any], state: Any) -> None:
        """Log the figures to TensorBoard and Weights & Biases without losing the step's own log."""
        trainer, figures = self._trainer, {f"eval_{k}": v for k, v in line.items() if v is not None}
        logs_step = trainer.control.should_log
        trainer.callback_handler.on_log(trainer.args, state, trainer.control, figures)
        trainer.control.should_log = logs_step


def evaluate_policy(
    trainer: Any, reward: RewardFunction, episodes: Sequence[Episode], step: int
) -> dict[str, Any]:
    """Evaluate the current policy, sampled greedily, over all processes, and return its figures.

    Raises:
        CallRefusedError: the training's budget does not suffice.
        BatutaError, ExceptionGroup: as `RewardFunction.run_drafts` raises them.
    """
    processes = int(trainer.accelerator.num_processes)
    mine = list(episodes[int(trainer.accelerator.process_index) :: processes])
    # every process samples the same number of drafts, as some engines wait for all processes
    asked = mine + list(episodes[:1]) * (-(-len(episodes) // processes) - len(mine))
    rollout: RolloutFunction = trainer.rollout_func
    texts = rollout.write_greedily(asked, trainer)
    pairs = [(e, PolicyDraft(text=t)) for e, t in zip(mine, texts, strict=False)]
    seeds = [_FIRST_SEED + episode.number for episode in mine]
    found = [HeldResult.of(each) for each in reward.run_drafts(pairs, seeds, trainer)]
    gathered: list[HeldResult] = gather_object(found)
    if any(each.refused for each in gathered):
        raise CallRefusedError
    return {"step": step, **sum_up_held(gathered)}


def sum_up_held(found: Sequence[HeldResult]) -> dict[str, Any]:
    """Return the figures of an evaluation.

    Accuracy and reward are None if no question counts, dollars if a call's price is unknown.
    """
    paid = [each.usd for each in found if each.usd is not None]
    right = [each.right for each in found if each.right is not None]
    rewards = [each.reward for each in found if each.reward is not None]
    return {
        "questions": len(found),
        "counted": len(rewards),
        "right": fmean(right) if right else None,
        "reward": fmean(rewards) if rewards else None,
        "valid": fmean(each.valid for each in found),
        "steps": fmean(each.steps for each in found),
        "usd": sum(paid) if len(paid) == len(found) else None,
    }


def load_best(trainer: Any) -> None:
    """Load the best evaluated policy into the trainer; without evaluation the last policy stays."""
    state = trainer.state
    if state.best_model_checkpoint and state.best_global_step != state.global_step:
        trainer._load_best_model()  # noqa: SLF001


def describe_evaluation(folder: Path, metric: str) -> str | None:
    """Return a sentence on the best policy by `metric`; None if no trained policy has a value."""
    lines = [line for line in read_jsonl(folder / EVALUATION_FILE) if line[metric] is not None]
    later = [line for line in lines if line["step"]]
    if not later:
        return None
    best = max(later, key=lambda line: line[metric])
    kept = (
        f"the policy of step {best['step']} is kept: {metric} {best[metric]:.3f} on "
        f"{best['counted']} held-out questions"
    )
    start = next((line for line in lines if not line["step"]), None)
    if start is None:
        return f"{kept}; this figure chose the policy, so it is slightly optimistic"
    worse = "" if start[metric] < best[metric] else ": no step is better than the start"
    return f"{kept}; before training it was {start[metric]:.3f}{worse}"
