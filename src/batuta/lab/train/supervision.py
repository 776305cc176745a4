"""Supervision of a training with a time limit: its clock, and the evaluations that choose a policy.

The policy is evaluated on held-out questions, before and during reinforcement, and the folder
always has the best policy so far. The training ends when there is no time for another step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from batuta.lab.train.evaluation import Supervision, evaluate_policy
from batuta.lab.train.questions import draw_held_out
from batuta.lab.train.rollouts import GradedRollout
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.settings import TrainSettings
from batuta.usage import ZERO_COST

END_REINFORCEMENT = 0.92
"""The share of the time at which reinforcement ends."""
JUDGEMENTS = 8
"""Approximate number of evaluations during reinforcement."""
AutoListener = Callable[[str], None]
"""Called with a sentence about each event."""


@final
class StageClock:
    """The time of a training, divided among its stages."""

    def __init__(
        self, minutes: float, began: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the clock of a training that started at `began`, in seconds, a value of `now`."""
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
        """Divide the time that is left among the stages; loading libraries has taken the rest."""
        self._before = self.used

    def left(self, share: float) -> float:
        """Return the seconds until a share, 0 to 1, of the time is used; negative afterwards."""
        return self._before + share * (self._seconds - self._before) - self.used

    def until(self, end: float) -> Callable[[float], bool]:
        """Return a function that says whether a share, 0 to 1, of a stage's time has passed.

        The stage begins now and ends when the share `end` of the training's time is used.
        """
        began, seconds = self.used, self.left(end)
        return lambda part: self.used - began >= part * seconds


@dataclass(slots=True, kw_only=True)
class AutoReport:
    """The result of a training with a time limit."""

    folder: Path
    """The folder of the run during the training, then that of the policy."""
    judgements: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The figures of each evaluated policy, with its name as `stage`."""
    seconds: float = 0.0
    workflows: int = 0
    """Number of workflows executed in evaluations and in reinforcement."""
    calls: int = 0
    usd: float | None = 0.0
    """None if a call's price is unknown."""

    def add_usd(self, usd: float | None) -> None:
        """Add dollars; None stands for calls whose price is unknown."""
        self.usd = None if usd is None or self.usd is None else self.usd + usd

    @property
    def best(self) -> dict[str, Any] | None:
        """The figures of the kept policy, the first with the highest accuracy; None before any."""
        return max(self.judgements, key=lambda line: line["right"] or 0.0, default=None)


@final
class TimedSupervision(Supervision):
    """Evaluates the policy of a training with a time limit, keeps the best, and ends in time."""

    keeps = True

    def __init__(
        self, settings: TrainSettings, clock: StageClock, on_progress: AutoListener
    ) -> None:
        super().__init__(settings, draw_held_out(settings))
        self._clock = clock
        self._on_progress = on_progress
        self._pause, self._judged_at, self._slowest_judgement = 0.0, 0.0, 0.0
        self._step_began, self._slowest_step = 0.0, 0.0
        self.report = AutoReport(folder=settings.output)

    def record_rollouts(self, rollouts: Sequence[GradedRollout]) -> None:
        """Count workflows, dollars and the calls of workers, without the policy's own drafts."""
        report = self.report
        report.workflows += len(rollouts)
        report.calls += sum(each.run.usage.calls - len(each.run.rounds) for each in rollouts)
        cost = sum((each.run.cost for each in rollouts), ZERO_COST)
        report.add_usd(None if cost.unpriced_calls else float(cost.usd))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate the policy before reinforcement, as it may be the best."""
        self._pause = max(1.0, self._clock.left(END_REINFORCEMENT) / JUDGEMENTS)
        self._judge(0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start timing the step, or end the training if no further step fits."""
        self._step_began = self._clock.used
        control.should_training_stop |= self._is_over()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate the policy if due, and end the training if no further step fits."""
        self._slowest_step = max(0.7 * self._slowest_step, self._clock.used - self._step_began)
        over = self._is_over()
        if over or self._clock.used - self._judged_at >= self._pause:
            self._judge(int(state.global_step))
        control.should_training_stop |= over

    def _is_over(self) -> bool:
        """Return whether there is too little time for another step and a last evaluation."""
        needed = 1.5 * (self._slowest_step + self._slowest_judgement)
        return self._clock.left(END_REINFORCEMENT) < needed

    def _judge(self, step: int) -> None:
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
        report.add_usd(line["usd"])
        mark = ", the best so far" if better else ""
        right = "unknown" if line["right"] is None else f"{line['right']:.1%}"
        self._on_progress(f"{stage}: {right} of {line['counted']} held-out questions right{mark}")
        if better:
            self._keep()
