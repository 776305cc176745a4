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
from batuta.core.usage import FREE, ZERO
from batuta.engine.estimate import EXPECTED_OUTPUT, estimate
from batuta.solvers.random import random_workflow
from batuta.train.episodes import Episode
from batuta.train.rundir import METRICS, SETTINGS, read_lines
from batuta.train.settings import Settings

PRICED = 300
"""Random workflows that are priced."""
RECENT = 20
"""Steps of an earlier run that say what comes next."""
SECONDS_A_CALL = 15.0
"""Assumed of a worker that is no simulation."""
SIMULATED_SECONDS = 0.0005
"""Of a simulated worker's call, on one core."""
GENERATING = {"cpu": 1e10, "cuda": 5e13}
"""Operations a second that are assumed of a device while it writes."""
LEARNING = {"cpu": 3e10, "cuda": 2e14}
"""And while the weights are moved."""


@dataclass(frozen=True, slots=True)
class Outlay:
    """Expected of the whole training."""

    workflows: int
    """Completions that are played."""
    steps: float
    """Calls of a workflow."""
    calls: int
    tokens: int
    """Of the workers."""
    usd: Decimal
    """For the calls whose price is known."""
    unpriced: int | None
    """Calls whose price is not known; None: an earlier run did not count them."""
    depth: float | None
    """Calls one after another; None: not told by an earlier run."""
    source: str
    """Where the figures come from."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a step is expected to take."""

    seconds: float
    source: str


@dataclass(frozen=True, slots=True)
class Stage:
    """What the time depends on beside the settings."""

    parameters: int
    prompt: int
    """Tokens."""
    device: str
    """`cpu` or `cuda`."""
    processes: int
    places: int
    """Calls that the pool takes at the same time."""
    simulated: bool


def earlier(settings: Settings) -> list[dict[str, Any]]:
    """The last figures of a run in the same folder, if it was of the same policy and sizes."""
    try:
        text = (settings.output / SETTINGS).read_text("utf-8")
        before = Settings.model_validate_json(text)
    except (OSError, ValidationError):
        return []
    sizes = before.optimiser.model_copy(update={"steps": settings.optimiser.steps})
    if (before.policy, before.pool, sizes) != (settings.policy, settings.pool, settings.optimiser):
        return []
    return read_lines(settings.output / METRICS)[-RECENT:]


def outlay(settings: Settings, asked: Sequence[Episode], lines: Sequence[dict[str, Any]]) -> Outlay:
    """What is expected to be spent, by an earlier run's figures or by random workflows."""
    o = settings.optimiser
    workflows = o.steps * o.questions * o.group * settings.reward.executions
    told = [line for line in lines if line.get("steps")]
    return _measured(workflows, told) if told else _priced(workflows, asked, settings.seed)


def _measured(workflows: int, lines: Sequence[dict[str, Any]]) -> Outlay:
    valid, steps = fmean(each["valid"] for each in lines), fmean(each["steps"] for each in lines)
    played = workflows * valid
    tokens = fmean(each["worker_tokens"] for each in lines)
    usd = Decimal(str(round(played * fmean(each["usd"] for each in lines), 4)))
    source = f"the last {len(lines)} steps of the run in this folder"
    return Outlay(
        workflows, steps, round(played * steps), round(played * tokens), usd, None, None, source
    )


def _priced(workflows: int, asked: Sequence[Episode], seed: int) -> Outlay:
    rng = Random(f"outlay {seed}")
    usage, cost, depth = ZERO, FREE, 0
    some = list(islice(asked, PRICED))
    for episode in some:
        flow = random_workflow(rng, episode.pool)
        expected = estimate(Question.of(episode.task.question), flow, episode.pool)
        usage, cost, depth = usage + expected.usage, cost + expected.cost, depth + flow.depth
    times = workflows / len(some)
    return Outlay(
        workflows,
        usage.calls / len(some),
        round(usage.calls * times),
        round(usage.total * times),
        (cost.usd * workflows / len(some)).quantize(Decimal("0.0001")),
        round(cost.unpriced_calls * times),
        depth / len(some),
        f"{len(some)} random workflows on the training's questions, {EXPECTED_OUTPUT} tokens "
        "a reply, every draft valid",
    )


def pace(settings: Settings, spent: Outlay, stage: Stage, lines: Sequence[dict[str, Any]]) -> Pace:
    """Seconds a step, by an earlier run's clock or by assumptions."""
    timed = [float(line["step_time"]) for line in lines if line.get("step_time")]
    if timed:
        return Pace(median(timed), f"the last {len(timed)} steps of the run in this folder")
    playing, why = _playing(settings, spent, stage)
    thinking = _thinking(settings, stage)
    speeds = (
        f"{GENERATING[stage.device]:.0e} operations a second while the policy writes and "
        f"{LEARNING[stage.device]:.0e} while it reads and learns, completions of half their length"
    )
    return Pace(playing + thinking, f"assumed: {why}, {speeds}")


def _playing(settings: Settings, spent: Outlay, stage: Stage) -> tuple[float, str]:
    """Seconds in which a step's workflows are played, and what is assumed."""
    calls = spent.calls / settings.optimiser.steps
    if stage.simulated:
        return calls * SIMULATED_SECONDS, f"{SIMULATED_SECONDS * 1000:g} ms a simulated call"
    runs = spent.workflows / settings.optimiser.steps
    waves = -(-runs // settings.pool.concurrency) * (spent.depth or spent.steps)
    queued = calls / stage.places
    return max(waves, queued) * SECONDS_A_CALL, f"{SECONDS_A_CALL:g} s a call"


def _thinking(settings: Settings, stage: Stage) -> float:
    """Seconds in which the policy writes and learns.

    Operations a parameter and token: 2 to read or write, 6 to learn, 8 with checkpointing, which
    computes the forward pass twice. Our sampler and vLLM read a group's prompt once.
    """
    o = settings.optimiser
    groups, rows = o.questions / stage.processes, o.questions * o.group / stage.processes
    written = rows * o.completion / 2
    read = (rows if o.sampler == "transformers" else groups) * stage.prompt
    shared = o.sampler == "own" and settings.policy.lora is None
    learned = written + (groups if shared else rows) * stage.prompt
    fast = LEARNING[stage.device]
    writing = 2 * (written / GENERATING[stage.device] + read / fast)
    learning = (8 if o.gradient_checkpointing else 6) * learned / fast
    return stage.parameters * (writing + learning)
