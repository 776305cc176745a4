"""The reward of a workflow that was executed and graded.

By default the reward is that of the Conductor paper, section 3.2: 0 for a malformed draft, 0.5 for
a valid workflow with a wrong answer, 1 for a correct answer. Deviations: a cost may be subtracted
for correct answers (xRouter, Router-R1), more of it on easy questions (adaptive length penalty); a
completion affected by a worker's outage is left out of its group instead of earning 0.

`run_reward` computes the base reward and the cost of one run, `scheduled_cost_weight` the schedule
of the cost, and `right_shares` the ease of a question. `mix_rewards` gives a first round a share of
its second rounds' rewards, and `rollouts` takes the mean over executions. Rejection sampling uses
`draft_weights` instead.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from batuta.core import Grade, MalformedPlan, Outcome, Run
from batuta.lab.evals.outage import find_step_outage, is_judge_outage
from batuta.lab.train.settings import RewardSettings

Executions = Sequence[tuple[Run, Grade | None]]
"""The executions of one workflow, with the grades of their answers."""


def run_reward(
    run: Run, grade: Grade | None, settings: RewardSettings, cost_weight: float
) -> float | None:
    """Return the reward of a run; None after an outage, also of the judge, or a cancellation.

    An answer that could not be graded has the reward of a wrong answer, as has a run without an
    answer, whose `grade` is None. `cost_weight`, 0 to 1, is the part of the cost that is charged.
    """
    decision = run.rounds[-1].decision if run.rounds else None
    if isinstance(decision, MalformedPlan):
        return None if decision.outage else settings.malformed
    if has_infrastructure_failure(run) or (grade is not None and is_judge_outage(grade)):
        return None
    if run.answer is None or grade is None or grade.score is None:
        return settings.wrong
    earned = settings.wrong + (settings.right - settings.wrong) * grade.score
    if grade.score < 1:
        return earned
    coefficient = settings.coefficient
    if len(run.rounds) > 1 and settings.coefficient_later is not None:
        coefficient = settings.coefficient_later
    return earned - cost_weight * min(settings.ceiling, coefficient * round_cost(run, settings))


def has_infrastructure_failure(run: Run) -> bool:
    """Return whether the run was cancelled or had an outage, as evaluations define it."""
    if run.outcome is Outcome.CANCELLED:
        return True
    return any(find_step_outage(step) is not None for step in run.steps)


def round_cost(run: Run, settings: RewardSettings) -> float:
    """Return the cost of the run's last round in units of `settings.unit`.

    Tokens and dollars include the draft's; calls are steps. The cost is 0 if `settings.cost` is
    `none`.
    """
    last = run.rounds[-1]
    usage = sum((step.usage for step in last.steps), last.decision.draft.usage)
    if settings.cost == "tokens":
        return usage.total / settings.unit
    if settings.cost == "calls":
        return len(last.steps) / settings.unit
    paid = sum((step.cost for step in last.steps), last.decision.draft.cost)
    return float(paid.usd) / settings.unit if settings.cost == "usd" else 0.0


def scheduled_cost_weight(step: int, settings: RewardSettings) -> float:
    """Return the part of the cost, 0 to 1, that is charged at `step`, counted from 0."""
    return min(1.0, max(0.0, (step + 1 - settings.from_step) / settings.ramp))


def right_shares(
    groups: Sequence[Hashable], executions: Sequence[Executions], settings: RewardSettings
) -> list[float]:
    """Return, for each workflow, the accuracy of its group's executions.

    `groups` has the group of each workflow. Executions without a reward are left out; a group that
    has no other executions has the accuracy 0.
    """
    scores: dict[Hashable, list[float]] = {group: [] for group in groups}
    for group, parts in zip(groups, executions, strict=True):
        known = [grade for run, grade in parts if run_reward(run, grade, settings, 0) is not None]
        scores[group] += [(grade and grade.score) or 0.0 for grade in known]
    means = {group: sum(each) / max(1, len(each)) for group, each in scores.items()}
    return [means[group] for group in groups]


def mix_rewards(
    rewards: Sequence[float | None], first_rows: Sequence[int | None], discount: float
) -> list[float | None]:
    """Mix the reward of each continued first round with the rewards of its second rounds.

    A first round's reward becomes (1 - discount) times its own reward plus `discount` times the
    mean reward of the second rounds that continue it (Conductor paper, section 3.3).

    `first_rows` has the row of the first round for each second round, and None for first rounds.
    """
    later: dict[int, list[float]] = {}
    for value, row in zip(rewards, first_rows, strict=True):
        if row is not None and value is not None:
            later.setdefault(row, []).append(value)
    paid = list(rewards)
    for row, values in later.items():
        own = paid[row]
        if own is not None:
            paid[row] = (1 - discount) * own + discount * sum(values) / len(values)
    return paid


def draft_weights(calls: Sequence[int], draft_count: int, shorter: float) -> list[float]:
    """Return the weight of each correct draft of a question; `calls` has the calls of each.

    The shortest correct draft has the value 1, each further call divides the value by `shorter`
    (at least 1), and a wrong draft has the value 0. The weights sum to 1 minus the mean value of
    all `draft_count` drafts: rare successes count more, and a question that all drafts solve in the
    shortest way, or that no draft solves, does not count.
    """
    value = [shorter ** (min(calls) - each) for each in calls]
    lack = 1 - sum(value) / max(1, draft_count)
    return [each * lack / sum(value) for each in value]
