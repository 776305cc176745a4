"""What a workflow earns: played by the engine, graded by the task's grader, then a number.

Reward of the Conductor paper, section 3.2: 0 for a malformed draft, 0.5 for a valid workflow whose
answer is wrong, 1 for a right one. Deviations: a cost may be charged, only when the answer is
right (xRouter, Router-R1), and by how easy its question is (adaptive length penalty); a worker's
outage leaves the group instead of scoring 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from batuta.core import Failure, Grade, MalformedPlan, Outcome, Run
from batuta.train.settings import RewardSettings

Executions = Sequence[tuple[Run, Grade | None]]
"""A workflow's runs, and the grades of their answers."""
_WORKFLOW_FAULTS = ("limit",)
"""Failures that the workflow itself brought about."""


def run_reward(
    run: Run, grade: Grade | None, settings: RewardSettings, cost_weight: float
) -> float | None:
    """The reward of a run; None if it says nothing about the workflow.

    Args:
        run: what was played.
        grade: of its answer; None: there is no answer.
        settings: what is paid for what.
        cost_weight: 0 to 1, how much of the cost is charged at this time of the training.
    """
    decision = run.rounds[-1].decision if run.rounds else None
    if isinstance(decision, MalformedPlan):
        return None if decision.outage else settings.malformed
    if has_infrastructure_failure(run):
        return None
    if run.answer is None or grade is None:
        return settings.wrong
    if grade.score is None:
        return None
    earned = settings.wrong + (settings.right - settings.wrong) * grade.score
    if grade.score < 1:
        return earned
    coefficient = settings.coefficient
    if len(run.rounds) > 1 and settings.coefficient_later is not None:
        coefficient = settings.coefficient_later
    return earned - cost_weight * min(settings.ceiling, coefficient * round_cost(run, settings))


def has_infrastructure_failure(run: Run) -> bool:
    """Whether a worker failed in a way that is nobody's fault, be it that another stepped in."""
    if any(step.worker != step.planned for step in run.steps):
        return True
    failed = (step.result for step in run.steps if isinstance(step.result, Failure))
    return run.outcome is Outcome.CANCELLED or any(f.code not in _WORKFLOW_FAULTS for f in failed)


def round_cost(run: Run, settings: RewardSettings) -> float:
    """What the run's last round cost, in the settings' units."""
    last = run.rounds[-1]
    usage = sum((step.usage for step in last.steps), last.decision.draft.usage)
    if settings.cost == "tokens":
        return usage.total / settings.unit
    if settings.cost == "calls":
        return len(last.steps) / settings.unit
    paid = sum((step.cost for step in last.steps), last.decision.draft.cost)
    return float(paid.usd) / settings.unit if settings.cost == "usd" else 0.0


def scheduled_cost_weight(step: int, settings: RewardSettings) -> float:
    """How much of the cost is charged at that step of the training, 0 to 1."""
    return min(1.0, max(0.0, (step + 1 - settings.from_step) / settings.ramp))


def right_shares(
    groups: Sequence[Hashable], played: Sequence[Executions], settings: RewardSettings
) -> list[float]:
    """For each workflow, the share of its group's executions that are right; 0 to 1.

    Args:
        groups: which group each workflow is of.
        played: every workflow's executions.
        settings: what is paid for what; an execution that earns None is left out.
    """
    scores: dict[Hashable, list[float]] = {group: [] for group in groups}
    for group, parts in zip(groups, played, strict=True):
        known = [grade for run, grade in parts if run_reward(run, grade, settings, 0) is not None]
        scores[group] += [(grade and grade.score) or 0.0 for grade in known]
    means = {group: sum(each) / max(1, len(each)) for group, each in scores.items()}
    return [means[group] for group in groups]
