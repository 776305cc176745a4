"""The whole reward: what a workflow earns that was run by the engine and graded.

Reward of the Conductor paper, section 3.2: 0 for a malformed draft, 0.5 for a valid workflow whose
answer is wrong, 1 for a right one. Deviations: a cost may be charged, only when the answer is
right (xRouter, Router-R1), and by how easy its question is (adaptive length penalty); a worker's
outage leaves the group instead of scoring 0.

In this order: `run_reward` (base and cost of one run), `step_rewards` (schedule of the cost,
difficulty exponent, mean over executions), `mix_rewards` (first rounds are paid for the second),
`draft_weights` (what rejection sampling uses instead).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from batuta.core import Grade, MalformedPlan, Outcome, Run
from batuta.lab.evals.outage import find_step_outage
from batuta.lab.train.settings import RewardSettings

Executions = Sequence[tuple[Run, Grade | None]]
"""A workflow's runs, and the grades of their answers."""


def run_reward(
    run: Run, grade: Grade | None, settings: RewardSettings, cost_weight: float
) -> float | None:
    """The reward of a run; None if it says nothing about the workflow.

    An answer that no rule can decide, where no judge is named, is worth what a wrong one is.

    Args:
        run: what was run.
        grade: of its answer; None: there is no answer.
        settings: what is paid for what.
        cost_weight: 0 to 1, how much of the cost is charged at this time of the training.
    """
    decision = run.rounds[-1].decision if run.rounds else None
    if isinstance(decision, MalformedPlan):
        return None if decision.outage else settings.malformed
    if has_infrastructure_failure(run):
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
    """Whether a worker failed in a way that is nobody's fault, by evaluation's own list."""
    if run.outcome is Outcome.CANCELLED:
        return True
    return any(find_step_outage(step) is not None for step in run.steps)


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


def step_rewards(
    groups: Sequence[Hashable],
    executions: Sequence[Executions],
    settings: RewardSettings,
    step: int,
) -> list[float | None]:
    """What every workflow of a training step earns, the mean over its executions.

    Args:
        groups: which group each workflow is of.
        executions: of every workflow.
        settings: what is paid for what.
        step: of the training, which says how much of the cost is charged.

    Returns:
        A reward for each workflow; None: a worker's outage, it leaves its group.
    """
    scheduled = scheduled_cost_weight(step, settings)
    found: list[float | None] = []
    for parts, share in zip(executions, right_shares(groups, executions, settings), strict=True):
        weight = scheduled * share**settings.by_ease
        earned = [run_reward(run, grade, settings, weight) for run, grade in parts]
        known = [value for value in earned if value is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def right_shares(
    groups: Sequence[Hashable], executions: Sequence[Executions], settings: RewardSettings
) -> list[float]:
    """For each workflow, the share of its group's executions that are right; 0 to 1.

    Args:
        groups: which group each workflow is of.
        executions: of every workflow.
        settings: what is paid for what; an execution that earns None is left out.
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
    """First rounds are also paid for what the second made of them (paper, section 3.3).

    Reward of a continued first round: (1 - discount) of its own and `discount` of the mean of the
    second round's group.

    Args:
        rewards: of every completion of a step.
        first_rows: for a second round, which completion was its first; None: it is a first round.
        discount: 0 to 1.
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
    """How much each right draft of a question counts.

    A draft is worth 1 if no right one calls fewer workers, and `shorter` times less for each call
    more. The weights sum to what the drafts lack of 1 on average: what is rare counts more, and a
    question that all drafts solve in the shortest way, or none solves, says nothing.

    Args:
        calls: of each right draft.
        draft_count: so many drafts there are, right and wrong.
        shorter: at least 1.
    """
    worth = [shorter ** (min(calls) - each) for each in calls]
    lack = 1 - sum(worth) / max(1, draft_count)
    return [each * lack / sum(worth) for each in worth]
