"""Estimates the calls, tokens, dollars and time of a training.

The best basis is the metrics of an earlier run in the same folder with the same policy, pool and
optimiser settings. Without such a run, random workflows over the training's own questions are
priced, and real calls can correct the result. Each figure names its assumptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import islice
from random import Random
from statistics import fmean, median
from typing import Any

from pydantic import ValidationError

from batuta.config.loaded import LoadedConfig
from batuta.core import MAX_STEPS, Failure, Pool, Question, Request, Worker, Workflow, user_message
from batuta.core.cost_bound import bound_call_cost
from batuta.engine.workflow_estimate import EXPECTED_OUTPUT_TOKENS, estimate_workflow
from batuta.lab.learners.random_workflows import random_workflow
from batuta.lab.train.budget import paid_so_far
from batuta.lab.train.episodes import Episode
from batuta.lab.train.rollout_setup import RolloutRunnerFactory
from batuta.lab.train.rollouts import GradedRollout, PolicyDraft
from batuta.lab.train.run_folder import METRICS_FILE, SETTINGS_FILE, RunFolder, read_jsonl
from batuta.lab.train.settings import TrainSettings
from batuta.language import render_workflow
from batuta.usage import ZERO_COST, ZERO_USAGE, Price

PRICED_WORKFLOWS = 300
"""Maximum number of random workflows that are priced, one per question."""
RECENT_STEPS = 20
"""Number of steps at the end of an earlier run from which the figures are taken."""
FRAME_BYTES = 1000
"""Assumed bytes of a worker's prompt besides the question and earlier replies."""
SUBTASK_BYTES = 500
"""Assumed bytes of an earlier step's subtask in the prompt of a later step."""
SECONDS_A_CALL = 15.0
"""Assumed seconds of a call, unless the workers are simulated."""
SIMULATED_SECONDS = 0.0005
"""Assumed seconds of a simulated worker's call on one core."""
GENERATION_SPEED = {"cpu": 1e10, "cuda": 5e13}
"""Assumed operations per second of a device while it writes completions."""
LEARNING_SPEED = {"cpu": 3e10, "cuda": 2e14}
"""Assumed operations per second of a device while it reads prompts or updates weights."""
_SAMPLE_SEED = 1_900_000_000
"""Seed of the first workflow of a sample; each further one adds 1."""


_WORST_CASE = (
    "the worst case: every draft, also of evaluations, calls the most expensive worker five times, "
    "each call reads all earlier replies and writes the most tokens allowed; unknown prices count "
    "as assumed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFigure:
    """One expected number."""

    name: str
    value: float | None
    """None if the figure is unknown."""
    unit: str
    """`count`, `bytes`, `tokens`, `usd` or `seconds`."""
    source: str
    """How it was measured, or what was assumed."""


@dataclass(slots=True)
class Preflight:
    """The forecast of a training, and what prevents it from starting."""

    figures: list[ExpectedFigure] = field(default_factory=list[ExpectedFigure])
    missing: list[str] = field(default_factory=list[str])
    """Sentences, each about something that prevents a start."""
    notes: list[str] = field(default_factory=list[str])
    """Remarks that do not prevent a start."""

    @property
    def is_ready(self) -> bool:
        """True if the training can start."""
        return not self.missing

    def add(self, name: str, value: float | None, unit: str, source: str) -> None:
        """Append an expected figure."""
        self.figures.append(ExpectedFigure(name=name, value=value, unit=unit, source=source))


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """The expected consumption of the workers in all steps, without evaluations."""

    workflows: int
    """Executions of drafts, malformed ones included."""
    steps: float
    """Mean number of calls of a valid workflow."""
    calls: int
    tokens: int
    """Tokens of the workers, input and output."""
    usd: Decimal
    """Dollars for the calls with a known price."""
    unpriced_calls: int | None
    """Calls without a known price; None if their number is unknown, because the earlier run lacks a
    step's dollars."""
    depth: float | None
    """Mean number of calls in sequence in a workflow; None if the figures are an earlier run's,
    which does not record the number."""
    source: str
    """The runs or assumptions that the figures are based on."""


def read_earlier_metrics(settings: TrainSettings) -> list[dict[str, Any]]:
    """Return the metrics of the last steps of an earlier run in the output folder.

    The list is empty if there is no run, or if its policy, pool or optimiser settings differ in
    more than the number of steps, `pool.max_usd` and `pool.journal`.

    Raises:
        StoreError: the metrics cannot be read.
    """
    try:
        text = (settings.output / SETTINGS_FILE).read_text("utf-8")
        before = TrainSettings.model_validate_json(text)
    except (OSError, ValidationError):
        return []
    sizes = before.optimiser.model_copy(update={"steps": settings.optimiser.steps})
    own = {"max_usd": settings.pool.max_usd, "journal": settings.pool.journal}
    pool = before.pool.model_copy(update=own)
    if (before.policy, pool, sizes) != (settings.policy, settings.pool, settings.optimiser):
        return []
    return read_jsonl(settings.output / METRICS_FILE)[-RECENT_STEPS:]


def estimate_cost(
    settings: TrainSettings, episodes: Sequence[Episode], lines: Sequence[dict[str, Any]]
) -> CostEstimate:
    """Estimate the workers' consumption from an earlier run's metrics, or random workflows."""
    o = settings.optimiser
    workflows = o.steps * o.questions * o.group * settings.reward.executions
    basis = [line for line in lines if line.get("steps")]
    if basis:
        return _measured_cost(workflows, basis)
    return _priced_cost(workflows, episodes, settings.seed)


def _measured_cost(workflows: int, lines: Sequence[dict[str, Any]]) -> CostEstimate:
    valid, steps = fmean(each["valid"] for each in lines), fmean(each["steps"] for each in lines)
    executed = workflows * valid
    tokens = fmean(each["worker_tokens"] for each in lines)
    priced = [each["usd"] for each in lines if "usd" in each]
    usd = Decimal(str(round(executed * fmean(priced or [0.0]), 4)))
    source = f"the last {len(lines)} steps of the run in this folder"
    return CostEstimate(
        workflows=workflows,
        steps=steps,
        calls=round(executed * steps),
        tokens=round(executed * tokens),
        usd=usd,
        unpriced_calls=0 if len(priced) == len(lines) else None,
        depth=None,
        source=source,
    )


def _priced_cost(workflows: int, episodes: Sequence[Episode], seed: int) -> CostEstimate:
    rng = Random(f"outlay {seed}")
    usage, cost, depth = ZERO_USAGE, ZERO_COST, 0
    some = list(islice(episodes, PRICED_WORKFLOWS))
    for episode in some:
        flow = random_workflow(rng, episode.pool)
        expected = estimate_workflow(Question.of(episode.task.question), flow, episode.pool)
        usage, cost, depth = usage + expected.usage, cost + expected.cost, depth + flow.depth
    times = workflows / len(some)
    return CostEstimate(
        workflows=workflows,
        steps=usage.calls / len(some),
        calls=round(usage.calls * times),
        tokens=round(usage.total * times),
        usd=(cost.usd * workflows / len(some)).quantize(Decimal("0.0001")),
        unpriced_calls=round(cost.unpriced_calls * times),
        depth=depth / len(some),
        source=(
            f"{len(some)} random workflows on the training's questions, "
            f"{EXPECTED_OUTPUT_TOKENS} tokens a reply, every draft valid"
        ),
    )


def bound_workflow_usd(question: str, pool: Pool, unknown: Price) -> Decimal:
    """Return the maximum cost of one workflow, in dollars.

    It assumes that every step calls the most expensive worker, reads all earlier replies, and
    writes the longest reply allowed. `unknown` is the price of workers without a known price.
    """
    return max(_bound_chain_usd(question, worker, unknown) for worker in pool)


def _bound_chain_usd(question: str, worker: Worker, unknown: Price) -> Decimal:
    total, read = Decimal(0), len(question.encode())
    for _ in range(MAX_STEPS):
        request = Request(messages=(user_message("x" * (read + FRAME_BYTES)),))
        bound = bound_call_cost(request, worker, unknown, whole=True)
        total += bound.max_usd
        read += bound.desired_output + SUBTASK_BYTES
    return total


def estimate_step_time(
    settings: TrainSettings,
    cost: CostEstimate,
    lines: Sequence[dict[str, Any]],
    *,
    parameters: int,
    prompt_tokens: int,
    device: str,
    processes: int,
    call_slots: int,
    simulated: bool,
) -> tuple[float, str]:
    """Return the expected seconds of a step, and the measurement or assumptions behind them.

    `lines` are the metrics of an earlier run, `parameters` is the number of the network's
    parameters, `prompt_tokens` the length of the longest prompt, `device` is `cpu` or `cuda`, and
    `call_slots` the number of calls that the workers can take at once.
    """
    timed = [float(line["step_time"]) for line in lines if line.get("step_time")]
    if timed:
        return median(timed), f"the last {len(timed)} steps of the run in this folder"
    o = settings.optimiser
    calls, runs = cost.calls / o.steps, cost.workflows / o.steps
    if simulated:
        running = calls * SIMULATED_SECONDS
        why = f"{SIMULATED_SECONDS * 1000:g} ms a simulated call"
    else:
        waves = -(-runs // settings.pool.concurrency) * (cost.depth or cost.steps)
        running = max(waves, calls / call_slots) * SECONDS_A_CALL
        why = f"{SECONDS_A_CALL:g} s a call"
    writing, learning = GENERATION_SPEED[device], LEARNING_SPEED[device]
    # Operations per parameter and token: 2 to read or write, 6 to learn, 8 with checkpointing,
    # which computes the forward pass twice. Our sampler and vLLM read a group's prompt once.
    groups, rows = o.questions / processes, o.questions * o.group / processes
    written = rows * o.completion / 2
    read = (rows if o.sampler == "transformers" else groups) * prompt_tokens
    learned = written + (groups if o.shares_prompts else rows) * prompt_tokens
    computing = 2 * (written / writing + read / learning)
    computing += (8 if o.gradient_checkpointing else 6) * learned / learning
    return running + parameters * computing, (
        f"assumed: {why}, {writing:.0e} operations a second while the policy writes and "
        f"{learning:.0e} while it reads and learns, completions of half their length"
    )


# -- a sample of real calls ---------------------------------------------------------------


async def correct_by_calls(
    settings: TrainSettings, assumed: CostEstimate, episodes: Sequence[Episode], calls: int
) -> tuple[CostEstimate, list[str]]:
    """Correct an estimate by random workflows on the training's questions, of `calls` steps in all.

    The calls go into the training's journal and count against its budget, if it has these.

    Returns:
        The corrected estimate, or `assumed` itself if no workflow succeeded; and one sentence for
        each failed call, as its workflow is not counted.

    Raises:
        BatutaError: the pool, the journal or a grader cannot be opened.
        ExceptionGroup: a run failed; it has the first error.
    """
    chosen = _choose_workflows(settings, episodes, calls)
    tasks = [episode.task for episode, _ in chosen]
    opening = RolloutRunnerFactory(settings, RunFolder(settings.output), tasks)
    drafts = [
        (e, PolicyDraft(text=render_workflow(flow, e.pool, names=settings.prompt.compact)))
        for e, flow in chosen
    ]
    try:
        runner = await opening()
        once = replace(runner, rewards=runner.rewards.model_copy(update={"executions": 1}))
        seeds = range(_SAMPLE_SEED, _SAMPLE_SEED + len(drafts))
        rollouts = await once.run_drafts(drafts, seeds, 0)
    finally:
        await opening.close()
    return _compare_sample(assumed, chosen, rollouts)


def _choose_workflows(
    settings: TrainSettings, episodes: Sequence[Episode], calls: int
) -> list[tuple[Episode, Workflow]]:
    rng, remaining = Random(f"bill {settings.seed}"), calls
    chosen: list[tuple[Episode, Workflow]] = []
    while remaining > 0:
        episode = episodes[rng.randrange(len(episodes))]
        flow = random_workflow(rng, episode.pool)
        if len(flow) <= remaining:
            chosen.append((episode, flow))
            remaining -= len(flow)
    return chosen


def _compare_sample(
    assumed: CostEstimate,
    chosen: Sequence[tuple[Episode, Workflow]],
    rollouts: Sequence[GradedRollout],
) -> tuple[CostEstimate, list[str]]:
    """Scale the estimate by the real over the predicted tokens and dollars of the sample."""
    usage, cost, failures = ZERO_USAGE, ZERO_COST, list[str]()
    expected_usage, expected_cost, counted = ZERO_USAGE, ZERO_COST, 0
    for (episode, flow), rollout in zip(chosen, rollouts, strict=True):
        steps = rollout.run.steps
        failed = [f"{s.worker}: {s.result.message}" for s in steps if isinstance(s.result, Failure)]
        failures += failed
        if failed or len(steps) < len(flow):
            continue
        predicted = estimate_workflow(Question.of(episode.task.question), flow, episode.pool)
        counted += 1
        usage = sum((step.usage for step in steps), usage)
        cost = sum((step.cost for step in steps), cost)
        expected_usage += predicted.usage
        expected_cost += predicted.cost
    if not usage.total or not expected_usage.total:
        return assumed, failures
    token_ratio = Decimal(usage.total) / expected_usage.total
    usd_ratio = cost.usd / expected_cost.usd if expected_cost.usd else Decimal(1)
    corrected = replace(
        assumed,
        tokens=round(assumed.tokens * token_ratio),
        usd=(assumed.usd * usd_ratio).quantize(Decimal("0.0001")),
        source=(
            f"{assumed.source.partition(',')[0]}, {token_ratio:.2f} times the assumed tokens and "
            f"{usd_ratio:.2f} times the dollars by {usage.calls} real calls in {counted} "
            "workflows, every draft valid"
        ),
    )
    return corrected, failures


def add_spending(
    settings: TrainSettings,
    cost: CostEstimate,
    config: LoadedConfig,
    prompt_tokens: int,
    *,
    episodes: Sequence[Episode],
    found: Preflight,
) -> None:
    """Add the expected calls, tokens and dollars, their maximum, and the budget to the forecast.

    Raises:
        StoreError: a list of paid calls cannot be read.
    """
    o = settings.optimiser
    rows = f"{o.steps} steps x {o.questions} questions x {o.group} completions"
    if settings.reward.executions > 1:
        rows += f" x {settings.reward.executions} executions"
    policy = o.steps * o.questions * o.group * (prompt_tokens + o.completion)
    found.add("workflows", cost.workflows, "count", rows)
    found.add("steps a workflow", round(cost.steps, 2), "count", cost.source)
    found.add("calls", cost.calls, "count", "of workers, on the same basis")
    found.add("worker tokens", cost.tokens, "tokens", "on the same basis")
    found.add("policy tokens", policy, "tokens", "the policy's own, at most")
    before = _add_rejection_sampling(settings, cost, found)
    beside = _add_evaluation(settings, cost, found)
    if config.simulated:
        invented = f"the workers are simulated; at their invented prices ${cost.usd:,.2f}"
        found.add("dollars", 0, "usd", invented)
        _add_budget(settings, before, cost.usd * (1 + beside), found)
        return
    unpriced = [worker.id for worker in config.pool if worker.price is None]
    usd = None if len(unpriced) == len(config.pool) else float(cost.usd)
    found.add("dollars", usd, "usd", "at list prices without cache hits")
    if unpriced:
        found.add("calls without a price", cost.unpriced_calls, "count", "not in the dollars")
    longest = max((each.task.question for each in episodes), key=len)
    most = (
        cost.workflows
        * (1 + beside)
        * bound_workflow_usd(longest, config.pool, config.limits.unknown)
    )
    found.add("dollars at most", float(most), "usd", _WORST_CASE)
    _add_budget(settings, before, cost.usd * (1 + beside), found)


def _add_budget(settings: TrainSettings, before: Decimal, usd: Decimal, found: Preflight) -> None:
    """Add the budget if there is one, and note for how many steps it suffices if not for all.

    All steps and evaluations are expected to cost `usd`, and the stage before them `before`.
    """
    most, steps = settings.pool.max_usd, settings.optimiser.steps
    if most is None:
        return
    paid = paid_so_far(settings.output)
    basis = f"pool.max_usd; ${paid:,.4f} of it are paid in {settings.output}"
    found.add("budget", float(most), "usd", basis)
    unspent = most - paid - before
    if usd > unspent:
        enough = int(steps * max(unspent, 0) / usd) if usd else 0
        found.notes.append(
            f"the budget is expected to suffice for about {enough} of {steps} steps; the training "
            "then ends with a checkpoint, and --resume continues with a larger pool.max_usd"
        )


def _add_evaluation(settings: TrainSettings, cost: CostEstimate, found: Preflight) -> Decimal:
    """Add the cost of evaluations if there are any; return its ratio to the steps' cost."""
    e, steps = settings.evaluation, settings.optimiser.steps
    if not e.every:
        return Decimal(0)
    times = 1 + len({*range(e.every, steps + 1, e.every), steps})
    share = Decimal(times * e.questions * settings.reward.executions) / cost.workflows
    dollars = f" and ${cost.usd * share:,.2f}" if cost.usd else ""
    basis = f"{times} times {e.questions} held-out questions: about {round(cost.calls * share):,}"
    found.add("evaluations", times, "count", f"{basis} calls{dollars} in addition")
    return share


def _add_rejection_sampling(
    settings: TrainSettings, cost: CostEstimate, found: Preflight
) -> Decimal:
    """Add the cost of rejection sampling, or a note if it has run; return its expected dollars."""
    r, folder = settings.rejection, settings.output / "rejection"
    if not r.rounds:
        return Decimal(0)
    if folder.is_dir():
        found.notes.append(f"training starts from {folder}, the result of rejection sampling")
        return Decimal(0)
    workflows = r.rounds * r.questions * r.group * settings.reward.executions
    share = Decimal(workflows) / cost.workflows
    rows = f"{r.rounds} rounds x {r.questions} questions x {r.group} workflows"
    dollars = f" and ${cost.usd * share:,.2f}" if cost.usd else ""
    bill = f"about {round(cost.calls * share):,} calls of workers{dollars} in addition"
    found.add("rejection sampling", workflows, "count", f"{rows}: {bill}")
    found.notes.append(
        "rejection sampling is configured but has not run: run `batuta train rejection` with the "
        "same settings first, or training starts from the policy before it"
    )
    return cost.usd * share
