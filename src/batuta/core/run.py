"""The Run, the one record that is served, stored, drawn, trained on and counted, and its events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite
from typing import Literal, NewType

from batuta.core.formatting import format_cost, format_count, format_seconds
from batuta.core.message import Delta, Question, Reply, Request, ToolCall
from batuta.core.redaction import clean_message
from batuta.core.run_html import StepRow, render_run_html
from batuta.core.worker import Pool, WorkerId
from batuta.core.workflow import (
    MAX_STEPS,
    AcceptedAnswer,
    Draft,
    MalformedPlan,
    Plan,
    Step,
    Workflow,
)
from batuta.errors import ClientError
from batuta.usage import ASSUMED_PRICE, ZERO_COST, ZERO_USAGE, Cost, Price, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """A choice among several ways to answer; kept in the run, so that it can be reweighed."""

    system: str
    """Name and version of the system that chose; another version learns anew."""
    cell: str
    """The kind of question, within which ways are compared."""
    arm: str
    """The alternative that was chosen."""
    explored: bool
    """Whether something else than the best so far was tried."""
    propensity: float
    """How likely this choice was, in (0, 1]."""


RunId = NewType("RunId", str)


HEDGE_LOST = "outrun"
"""The code of a call that was cut because another worker answered first."""


class Outcome(StrEnum):
    """How a run ended."""

    ANSWERED = "answered"
    FALLBACK = "fallback"
    """No workflow could be had: the best single worker answered."""
    DEGRADED = "degraded"
    """Somebody else than planned gave the complete answer: a substitute for the last step, the
    fallback worker asked anew, or an earlier round."""
    LIMITED = "limited"
    """A limit ended it, with a complete answer that existed or with none."""
    DECLINED = "declined"
    """The worker says that the question is outside what it can answer."""
    UNSURE = "unsure"
    """There is an answer, and the probability that it is right is below what was asked for."""
    WAITING = "waiting"
    """A worker asked for the client's tools; a run with their results goes on where it stopped."""
    PLANNED = "planned"
    """A dry run: the workflow was written and no worker was called."""
    REFUSED = "refused"
    """A policy forbade the question or the answer."""
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a run; None is no limit."""

    steps: int = MAX_STEPS
    """Steps of each round's workflow."""
    rounds: int = 1
    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None
    unknown: Price = field(default=ASSUMED_PRICE, repr=False)
    """The price that a call without a known price counts as against the limit in dollars."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.rounds < 1:
            raise ValueError("limits on steps and rounds must be at least 1")
        amounts = (self.tokens, self.usd, self.seconds)
        if any(x is not None and x < 0 for x in amounts):
            raise ValueError("limits on tokens, dollars and seconds must not be negative")
        if any(x is not None and not isfinite(x) for x in amounts):
            raise ValueError("a limit on tokens, dollars or seconds is a number; None is no limit")


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Seconds since the run began."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A call that gave no usable reply, as data."""

    code: str
    """The error's code: `rate_limited`, `timed_out`…, or `limit` or `cancelled`."""
    message: str
    retryable: bool = False
    usage: Usage = ZERO_USAGE
    cost: Cost = ZERO_COST
    kind: Literal["failure"] = "failure"
    retry_after: float | None = None
    """Seconds that the provider asked to wait."""

    @staticmethod
    def of(error: ClientError) -> Failure:
        """Return the error as data, without what looks like a key or an address.

        Our own clients have cleaned their errors; one that somebody plugs in may not have.
        """
        return Failure(
            code=error.code,
            message=clean_message(str(error)),
            retryable=error.retryable,
            usage=error.usage or ZERO_USAGE,
            cost=error.cost or ZERO_COST,
            retry_after=error.retry_after,
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call that failed before the one that counted."""

    worker: WorkerId
    failure: Failure
    at: float
    """Seconds since the run began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """A step as it was run; can be read again and replayed."""

    index: int
    planned: WorkerId
    worker: WorkerId
    """The worker that answered: `planned`, or its substitute."""
    request: Request | None
    """Verbatim; None if the step was never called."""
    result: Reply | Failure
    span: TimeSpan
    attempts: tuple[Attempt, ...] = ()
    as_fallback: bool = False
    """Nobody could answer it as planned: `worker` was asked the whole question anew."""

    @property
    def is_substituted(self) -> bool:
        """Return True if another worker than planned answered it because the planned one failed."""
        return self.worker != self.planned and any(
            attempt.failure.code != HEDGE_LOST for attempt in self.attempts
        )

    @property
    def pending_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the client's tools that it waits for; none if it has ended."""
        return self.result.tool_calls if isinstance(self.result, Reply) else ()

    @property
    def usage(self) -> Usage:
        """Tokens of the result and of all failed attempts."""
        if not self.attempts:
            return self.result.usage
        return sum((a.failure.usage for a in self.attempts), self.result.usage)

    @property
    def cost(self) -> Cost:
        """Dollars of the result and of all failed attempts."""
        if not self.attempts:
            return self.result.cost
        return sum((a.failure.cost for a in self.attempts), self.result.cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A decision of the conductor and what was run because of it."""

    decision: Plan | AcceptedAnswer | MalformedPlan
    drafts: tuple[MalformedPlan, ...] = ()
    """Malformed drafts before the decision; their tokens are paid."""
    workflow: Workflow | None = None
    """The workflow that was run: the plan's, or the fallback's; None if none was."""
    steps: tuple[StepRun, ...] = ()
    """The steps, in the order in which they ended."""
    planning: TimeSpan = TimeSpan(0.0, 0.0)

    def step(self, index: int) -> StepRun | None:
        """Return the step of that index, if it was run."""
        for step in self.steps:
            if step.index == index:
                return step
        return None

    @property
    def is_aside(self) -> bool:
        """Return True if it asks about an answer that is there: none of its replies is one."""
        return isinstance(self.decision, Plan) and self.decision.purpose != "answer"

    @property
    def waiting_steps(self) -> tuple[StepRun, ...]:
        """The steps that wait for the client's tools, in their order."""
        waiting = [step for step in self.steps if step.pending_calls]
        return tuple(sorted(waiting, key=lambda step: step.index)) if waiting else ()

    @property
    def conductor_drafts(self) -> tuple[Draft, ...]:
        """Every draft that was paid for in this round."""
        if not self.drafts:
            return (self.decision.draft,)
        return (*(malformed.draft for malformed in self.drafts), self.decision.draft)


@dataclass(frozen=True, slots=True)
class ResumeState:
    """The rounds from which a run continues; earlier runs have executed and paid them."""

    rounds: tuple[Round, ...]
    """All rounds so far without their prompts; the last one is unfinished."""
    runs: tuple[RunId, ...]
    """The runs that executed them, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """A run's data that are known before anything happens."""

    id: RunId
    question: Question
    pool: Pool
    """The workers, in the order in which the conductor saw them."""
    seed: int | None
    """None: sampling was not meant to be repeatable."""
    limits: Limits
    conductor: str
    model: str = ""
    """The served model's name, if the run was served."""
    parent: RunId | None = None
    """The run that this one came from: its worker conducted, or it is run again."""
    started: float = 0.0
    """Seconds since the epoch."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    exploration: Exploration | None = None
    """How the workflow was chosen, where the system learns while it serves."""
    resumed: ResumeState | None = None
    """Set if a tool's results let an earlier run's workflow go on; its first round continues the
    last one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowEstimate:
    """Expected tokens, dollars and time of a workflow; the conductor's own are not in it."""

    steps: tuple[Usage, ...]
    usage: Usage
    cost: Cost
    seconds: float | None = None
    """Seconds of the longest chain of steps; None if the speed of one of its workers is not known.
    """
    samples: Usage = ZERO_USAGE
    """Asking the question again takes this, which is in `usage` too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailTriggered:
    """A policy did something; what it found is not recorded."""

    policy: str
    """The guardrail's name in the settings."""
    where: str
    """`input`, `between` or `output`, and the message or step it looked at: `between:step 1`."""
    action: str
    """`redacted`, `flagged`, `blocked`, `failed` or `timed out`; of checks of an answer's
    sources also `marked`, `repaired` or `refused`."""
    count: int = 1
    """Places that it found."""
    by: str = ""
    """The person who decided, as the audit trail calls them; empty: nobody did."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Run:
    """A question conducted to its end: the fold of its events."""

    header: RunHeader
    rounds: tuple[Round, ...]
    outcome: Outcome
    answer: str | None
    """The complete answer's text, empty if the worker said nothing; None if there is no answer
    (`error` says why) or if it consists of tool calls alone."""
    reply: Reply | None = None
    """The reply that the answer is taken from, with its tool calls and finish."""
    error: str | None = None
    error_code: str | None = None
    limit: str | None = None
    """Which limit ended the run, or cut its answer short, if one did."""
    seconds: float = 0.0
    guards: tuple[GuardrailTriggered, ...] = ()
    """The guardrails' findings, in order."""
    expected: WorkflowEstimate | None = None
    """The estimate of a dry run: what its workflow would take."""
    confidence: float | None = None
    """The probability that the answer is right; None where none was fitted to such a run."""

    @property
    def id(self) -> RunId:
        """The run's id."""
        return self.header.id

    @property
    def steps(self) -> tuple[StepRun, ...]:
        """The steps of all rounds, in the order in which they ended."""
        if len(self.rounds) == 1:
            return self.rounds[0].steps
        return tuple(step for round_ in self.rounds for step in round_.steps)

    @property
    def answering_step(self) -> StepRun | None:
        """The step whose reply reached the client; None: no last step has ended."""
        for round_ in reversed(self.rounds):
            if round_.workflow is not None and not round_.is_aside:
                last = round_.step(len(round_.workflow) - 1)
                return last if last is not None and isinstance(last.result, Reply) else None
        return None

    @property
    def conductor_usage(self) -> Usage:
        """Tokens of the conductor's own drafts."""
        total = ZERO_USAGE
        for round_ in self.rounds:
            for draft in round_.conductor_drafts:
                total += draft.usage
        return total

    @property
    def usage(self) -> Usage:
        """All tokens: the conductor's, every step's, every failed attempt's."""
        total = self.conductor_usage
        for step in self.steps:
            total += step.usage
        return total

    @property
    def cost(self) -> Cost:
        """All dollars: the conductor's, every step's, every failed attempt's."""
        total = ZERO_COST
        for round_ in self.rounds:
            for draft in round_.conductor_drafts:
                total += draft.cost
            for step in round_.steps:
                total += step.cost
        return total

    def __repr__(self) -> str:
        """Return one line: id, outcome, size, cost, time and how the answer begins."""
        return f"<Run {self._summary()}: {_shorten_text(self.answer or self.error or '')!r}>"

    def _summary(self) -> str:
        count = len(self.steps)
        steps = f"{count} step{'' if count == 1 else 's'}"
        tokens, cost = f"{format_count(self.usage.total)} tokens", format_cost(self.cost)
        return (
            f"{self.id} {self.outcome}, {steps}, {tokens}, {cost}, {format_seconds(self.seconds)}"
        )

    def _repr_html_(self) -> str:
        """Show the run in a notebook."""
        return self.to_html()

    def to_html(self) -> str:
        """Return the workflow and the answer as HTML; texts of models are escaped."""
        summary = self._summary() + (f": {self.error}" if self.error else "")
        return render_run_html([_step_rows(round_) for round_ in self.rounds], summary, self.answer)


def _shorten_text(text: str, most: int = 60) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def _step_rows(round_: Round) -> list[StepRow]:
    """Return the steps of a round's workflow, as they are drawn."""
    if round_.workflow is None:
        return []
    levels = round_.workflow.levels
    return [
        _step_row(step, levels[index], round_.step(index))
        for index, step in enumerate(round_.workflow.steps)
    ]


def _step_row(step: Step, level: int, ended: StepRun | None) -> StepRow:
    row = StepRow(worker=step.worker, subtask=step.subtask, reads=step.access, level=level)
    if ended is None:
        return row
    return replace(
        row,
        worker=ended.worker,
        state="done" if isinstance(ended.result, Reply) else "failed",
        tokens=format_count(ended.usage.total),
        cost=format_cost(ended.cost),
        time=format_seconds(ended.span.seconds),
    )


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
