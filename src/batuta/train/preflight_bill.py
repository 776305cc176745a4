"""What a training is expected to cost and how long it takes."""

from __future__ import annotations

from decimal import Decimal

from batuta.config.load import LoadedConfig
from batuta.train.cost_estimate import CostEstimate, StepTime
from batuta.train.preflight_report import Findings
from batuta.train.run_folder import METRICS_FILE, read_jsonl
from batuta.train.settings import TrainSettings


def add_spending(
    settings: TrainSettings,
    cost: CostEstimate,
    config: LoadedConfig,
    prompt_tokens: int,
    *,
    found: Findings,
) -> None:
    """What the workers are expected to cost."""
    o = settings.optimiser
    rows = f"{o.steps} steps x {o.questions} questions x {o.group} completions"
    if settings.reward.executions > 1:
        rows += f" x {settings.reward.executions} executions"
    policy = o.steps * o.questions * o.group * (prompt_tokens + o.completion)
    found.add("workflows", cost.workflows, "count", rows)
    found.add("steps a workflow", round(cost.steps, 2), "count", cost.source)
    found.add("calls", cost.calls, "count", "of workers, by the same")
    found.add("worker tokens", cost.tokens, "tokens", "by the same")
    found.add("policy tokens", policy, "tokens", "its own, at most")
    _add_rejection_sampling(settings, cost, found)
    if config.simulated:
        invented = f"the workers are simulated; at their invented prices ${cost.usd:,.2f}"
        found.add("dollars", 0, "usd", invented)
        return
    unpriced = [worker.id for worker in config.pool if worker.price is None]
    usd = None if len(unpriced) == len(config.pool) else float(cost.usd)
    found.add("dollars", usd, "usd", "at list prices, nothing read from a cache")
    if unpriced:
        found.add("calls without a price", cost.unpriced_calls, "count", "not in the dollars")


def _add_rejection_sampling(settings: TrainSettings, cost: CostEstimate, found: Findings) -> None:
    """What rejection sampling takes, where it is asked for and not done yet."""
    r, done = settings.rejection, settings.output / "rejection"
    if not r.rounds:
        return
    if done.is_dir():
        found.notes.append(f"learning begins from {done}, where rejection sampling has ended")
        return
    workflows = r.rounds * r.questions * r.group * settings.reward.executions
    share = Decimal(workflows) / cost.workflows
    rows = f"{r.rounds} rounds x {r.questions} questions x {r.group} workflows"
    dollars = f" and ${cost.usd * share:,.2f}" if cost.usd else ""
    bill = f"about {round(cost.calls * share):,} calls of workers{dollars} beside those named here"
    found.add("rejection sampling", workflows, "count", f"{rows}: {bill}")
    found.notes.append(
        "rejection sampling is asked for and not done yet: without `batuta train rejection` and "
        "the same settings, learning begins from the policy before it"
    )


def add_time(settings: TrainSettings, expected: StepTime, found: Findings) -> None:
    """How long it is expected to take."""
    found.add("a step", round(expected.seconds, 3), "seconds", expected.source)
    total = expected.seconds * settings.optimiser.steps
    found.add("wall time", round(total, 1), "seconds", f"{settings.optimiser.steps} steps")


def check_run_folder(settings: TrainSettings, found: Findings) -> None:
    """What stands in the run folder already."""
    done = len(read_jsonl(settings.output / METRICS_FILE))
    if done:
        found.notes.append(
            f"{settings.output} holds a run of {done} steps; --resume goes on with it, without "
            "--resume it is written over"
        )
