"""The events of a run, in the order in which they happen; the Run is what they add up to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from batuta.core.message import Delta, Reply
from batuta.core.run import (
    Attempt,
    GuardrailTriggered,
    Outcome,
    Round,
    RunHeader,
    StepRun,
    WorkflowEstimate,
)
from batuta.core.worker import WorkerId


@dataclass(frozen=True, slots=True)
class RoundPlanned:
    """The conductor decided."""

    round: int
    planned: Round
    """The round before any of its steps."""


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step was started."""

    round: int
    index: int
    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDelta:
    """A step's worker sent a fragment; not part of the record."""

    round: int
    index: int
    worker: WorkerId
    """The worker that sent it: the step's own, or the one asked in its place."""
    delta: Delta
    is_answer: bool = False
    """Whether it belongs to the answer, and nothing will replace it: a live reader sees it."""


@dataclass(frozen=True, slots=True)
class StepRetried:
    """A step's call failed and is tried again, or another worker takes over."""

    round: int
    index: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A step ended."""

    round: int
    step: StepRun


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The run ended; nothing follows."""

    outcome: Outcome
    answer: str | None
    reply: Reply | None = None
    error: str | None = None
    error_code: str | None = None
    limit: str | None = None
    seconds: float = 0.0
    expected: WorkflowEstimate | None = None
    confidence: float | None = None


Event = (
    RunHeader
    | RoundPlanned
    | StepStarted
    | StepDelta
    | StepRetried
    | GuardrailTriggered
    | StepFinished
    | RunFinished
)
"""A run's life in order: a `RunHeader`, then the rest, one `RunFinished` at the end."""

EventHandler = Callable[[Event], Awaitable[None]]
