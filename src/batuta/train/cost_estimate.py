"""What a training is expected to take: calls, tokens, dollars, time. Measured where it can be.

A run of the same settings in the same folder is the best guide. Without one, random workflows over
the training's own questions are priced, and the assumptions behind the time are said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from random import Random
from statistics import fmean, median
from typing import Any

from pydantic import ValidationError

from batuta.core import Question
from batuta.engine.workflow_estimate import EXPECTED_OUTPUT_TOKENS, estimate_workflow
from batuta.solvers.random_workflows import random_workflow
from batuta.train.episodes import Episode
from batuta.train.run_folder import METRICS_FILE, SETTINGS_FILE, read_jsonl
from batuta.train.settings import TrainSettings
from batuta.usage import ZERO_COST, ZERO_USAGE

PRICED_WORKFLOWS = 300
"""Random workflows that are priced."""
RECENT_STEPS = 20
"""Steps of an earlier run that say what comes next."""
SECONDS_A_CALL = 15.0
"""Assumed of a worker that is no simulation."""
SIMULATED_SECONDS = 0.0005
"""Of a simulated worker's call, on one core."""
GENERATION_SPEED = {"cpu": 1e10, "cuda": 5e13}
"""Operations a second that are assumed of a device while it writes."""
LEARNING_SPEED = {"cpu": 3e10, "cuda": 2e14}
"""And while the weights are moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Expected of the whole training."""

    workflows: int
    """Completions that are run."""
    steps: float
    """Calls of a workflow."""
    calls: int
    tokens: int
    """Of the workers."""
    usd: Decimal
    """For the calls whose price is known."""
    unpriced_calls: int | None
    """Calls whose price is not known; None: an earlier run did not count them."""
    depth: float | None
    """Calls one after another; None: not told by an earlier run."""
    source: str
    """Where the figures come from."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step is expected to take."""

    seconds: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeInputs:
    """What the time depends on beside the settings."""

    parameters: int
    prompt_tokens: int
    """Tokens."""
    device: str
    """`cpu` or `cuda`."""
    processes: int
    call_slots: int
    """Calls that the pool takes at the same time."""
    simulated: bool


def read_earlier_metrics(settings: TrainSettings) -> list[dict[str, Any]]:
    """The last figures of a run in the same folder, if it was of the same policy and sizes."""
    try:
        text = (settings.output / SETTINGS_FILE).read_text("utf-8")
        before = TrainSettings.model_validate_json(text)
    except (OSError, ValidationError):
        return []
    sizes = before.optimiser.model_copy(update={"steps": settings.optimiser.steps})
    if (before.policy, before.pool, sizes) != (settings.policy, settings.pool, settings.optimiser):
        return []
    return read_jsonl(settings.output / METRICS_FILE)[-RECENT_STEPS:]


def estimate_cost(
    settings: TrainSettings, episodes: Sequence[Episode], lines: Sequence[dict[str, Any]]
) -> CostEstimate:
    """What is expected to be spent, by an earlier run's figures or by random workflows."""
    o = settings.optimiser
    workflows = o.steps * o.questions * o.group * settings.reward.executions
    told = [line for line in lines if line.get("steps")]
    return (
        _measured_cost(workflows, told)
        if told
        else _priced_cost(workflows, episodes, settings.seed)
    )


def _measured_cost(workflows: int, lines: Sequence[dict[str, Any]]) -> CostEstimate:
    valid, steps = fmean(each["valid"] for each in lines), fmean(each["steps"] for each in lines)
    executed = workflows * valid
    tokens = fmean(each["worker_tokens"] for each in lines)
    usd = Decimal(str(round(executed * fmean(each["usd"] for each in lines), 4)))
    source = f"the last {len(lines)} steps of the run in this folder"
    return CostEstimate(
        workflows=workflows,
        steps=steps,
        calls=round(executed * steps),
        tokens=round(executed * tokens),
        usd=usd,
        unpriced_calls=None,
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
            f"{EXPECTED_OUTPUT_TOKENS} tokens "
            "a reply, every draft "
            "valid"
        ),
    )


def estimate_step_time(
    settings: TrainSettings,
    cost: CostEstimate,
    inputs: StepTimeInputs,
    lines: Sequence[dict[str, Any]],
) -> StepTime:
    """Seconds a step, by an earlier run's clock or by assumptions."""
    timed = [float(line["step_time"]) for line in lines if line.get("step_time")]
    if timed:
        return StepTime(median(timed), f"the last {len(timed)} steps of the run in this folder")
    running, why = _rollout_seconds(settings, cost, inputs)
    thinking = _policy_seconds(settings, inputs)
    speeds = (
        f"{GENERATION_SPEED[inputs.device]:.0e} operations a second while the policy writes and "
        f"{LEARNING_SPEED[inputs.device]:.0e} while it reads and learns, completions of half "
        f"their length"
    )
    return StepTime(running + thinking, f"assumed: {why}, {speeds}")


def _rollout_seconds(
    settings: TrainSettings, cost: CostEstimate, inputs: StepTimeInputs
) -> tuple[float, str]:
    """Seconds in which a step's workflows are run, and what is assumed."""
    calls = cost.calls / settings.optimiser.steps
    if inputs.simulated:
        return calls * SIMULATED_SECONDS, f"{SIMULATED_SECONDS * 1000:g} ms a simulated call"
    runs = cost.workflows / settings.optimiser.steps
    waves = -(-runs // settings.pool.concurrency) * (cost.depth or cost.steps)
    queued = calls / inputs.call_slots
    return max(waves, queued) * SECONDS_A_CALL, f"{SECONDS_A_CALL:g} s a call"


def _policy_seconds(settings: TrainSettings, inputs: StepTimeInputs) -> float:
    """Seconds in which the policy writes and learns.

    Operations a parameter and token: 2 to read or write, 6 to learn, 8 with checkpointing, which
    computes the forward pass twice. Our sampler and vLLM read a group's prompt once.
    """
    o = settings.optimiser
    groups, rows = o.questions / inputs.processes, o.questions * o.group / inputs.processes
    written = rows * o.completion / 2
    read = (rows if o.sampler == "transformers" else groups) * inputs.prompt_tokens
    learned = written + (groups if o.shares_prompts else rows) * inputs.prompt_tokens
    fast = LEARNING_SPEED[inputs.device]
    writing = 2 * (written / GENERATION_SPEED[inputs.device] + read / fast)
    learning = (8 if o.gradient_checkpointing else 6) * learned / fast
    return inputs.parameters * (writing + learning)
