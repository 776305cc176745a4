"""The Run and its events: the record that is served, stored, displayed, trained on and billed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from math import isfinite
from typing import Literal, NewType, TypeVar

from batuta.core.formatting import format_cost, format_count, format_seconds
from batuta.core.message import Delta, Question, Reply, Request, ToolCall
from batuta.core.redaction import clean_message
from batuta.core.run_html import StepRow, render_run_html
from batuta.core.token_estimate import estimate_request_tokens
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
from batuta.usage import ASSUMED_PRICE, ZERO_COST, ZERO_USAGE, Cost, Price, Usage, usage_cost

_Number = TypeVar("_Number", int, float, Decimal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """A choice among several ways to answer, recorded for off-policy evaluation."""

    system: str
    """Name and version of the system that chose; each version learns from scratch."""
    cell: str
    """The kind of question, within which alternatives are compared."""
    arm: str
    """The alternative that was chosen."""
    explored: bool
    """Whether the choice was not the best alternative so far."""
    propensity: float
    """The probability of this choice, in (0, 1]; its inverse is the choice's weight."""


RunId = NewType("RunId", str)


HEDGE_LOST = "outrun"
"""The failure code of a call that was cancelled because another worker answered first."""
_SHOWN_CHARACTERS = 60
"""Maximum number of characters of the answer in a run's `repr`."""


class Outcome(StrEnum):
    """How a run ended."""

    ANSWERED = "answered"
    FALLBACK = "fallback"
    """There was no valid workflow, so the best single worker answered."""
    DEGRADED = "degraded"
    """The complete answer is not from the planned last step but from a substitute, from a worker
    asked the whole question, or from an earlier round."""
    LIMITED = "limited"
    """A limit ended the run, with the complete answer that existed or without any."""
    DECLINED = "declined"
    """The worker reports that the question is outside what it can answer."""
    UNSURE = "unsure"
    """The probability that the answer is correct is below the required minimum, or unknown."""
    WAITING = "waiting"
    """A worker called the client's tools; a run with their results continues the workflow."""
    PLANNED = "planned"
    """A dry run: the workflow was written, and none of its steps was run."""
    REFUSED = "refused"
    """A policy, a plan rule or a person refused the question, its plans or the answer."""
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a run; for tokens, dollars and seconds None means no limit."""

    steps: int = MAX_STEPS
    """Steps of each round's workflow."""
    rounds: int = 1
    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None
    unknown: Price = field(default=ASSUMED_PRICE, repr=False)
    """The price assumed, for the limit in dollars, for a call without a known price."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.rounds < 1:
            raise ValueError("limits on steps and rounds must be at least 1")
        amounts = (self.tokens, self.usd, self.seconds)
        if any(x is not None and x < 0 for x in amounts):
            raise ValueError("limits on tokens, dollars and seconds must not be negative")
        if any(x is not None and not isfinite(x) for x in amounts):
            raise ValueError(
                "a limit on tokens, dollars or seconds must be finite; None is no limit"
            )


def stricter_limit(one: _Number | None, other: _Number | None) -> _Number | None:
    """Return the lower of two limits; None means no limit."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Seconds since the run began."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A call that gave no usable reply, as data."""

    code: str
    """The code of the client's error, such as `rate_limited`; or a code of the engine, such as
    `limit`, `cancelled` or `wrong_form`."""
    message: str
    retryable: bool = False
    usage: Usage = ZERO_USAGE
    cost: Cost = ZERO_COST
    kind: Literal["failure"] = "failure"
    retry_after: float | None = None
    """Seconds that the provider asked to wait."""

    @staticmethod
    def of(error: ClientError) -> Failure:
        """Return the error as data, with anything like a key or an address removed.

        Built-in clients clean their errors themselves; plugged-in clients may not.
        """
        return Failure(
            code=error.code,
            message=clean_message(str(error)),
            retryable=error.retryable,
            usage=error.usage or ZERO_USAGE,
            cost=error.cost or ZERO_COST,
            retry_after=error.retry_after,
        )

    @staticmethod
    def estimated(
        code: str, message: str, request: Request, price: Price | None, *, output: int = 0
    ) -> Failure:
        """Return the failure of a cancelled call, with its estimated tokens and their cost.

        `output` is the number of tokens that had arrived.
        """
        prompt = estimate_request_tokens(request)
        usage = Usage(calls=1, input=prompt, output=output, estimated=1)
        return Failure(code=code, message=message, usage=usage, cost=usage_cost(usage, price))


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed or overtaken call of a step, besides the call that gave the step's result."""

    worker: WorkerId
    failure: Failure
    at: float
    """Seconds since the run began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """A step as it was run, with all that is needed to read it again and replay it."""

    index: int
    planned: WorkerId
    worker: WorkerId
    """The worker that gave `result`: `planned`, or another worker in its place."""
    request: Request | None
    """The step's last request, as sent or as found too long to send; None if there was none, or if
    it was removed."""
    result: Reply | Failure
    span: TimeSpan
    attempts: tuple[Attempt, ...] = ()
    as_fallback: bool = False
    """True if no worker could do the step, so that `worker` was asked the whole question."""

    @property
    def is_substituted(self) -> bool:
        """True if another worker took over because the planned one failed, not as a hedge."""
        return self.worker != self.planned and any(
            attempt.failure.code != HEDGE_LOST for attempt in self.attempts
        )

    @property
    def pending_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the client's tools that the step waits for; empty if it has ended."""
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
    """A decision of the conductor and the steps that were run because of it."""

    decision: Plan | AcceptedAnswer | MalformedPlan
    drafts: tuple[MalformedPlan, ...] = ()
    """Drafts before the decision that were malformed or sent back; their tokens count too."""
    workflow: Workflow | None = None
    """The workflow to run: the plan's, perhaps changed, or the fallback's; None: nothing is run."""
    steps: tuple[StepRun, ...] = ()
    """The steps, in the order in which they ended."""
    planning: TimeSpan = TimeSpan(0.0, 0.0)

    def step(self, index: int) -> StepRun | None:
        """Return the step with that index; None if it was not run."""
        for step in self.steps:
            if step.index == index:
                return step
        return None

    @property
    def is_aside(self) -> bool:
        """True if the round only evaluates an existing answer; its replies are not answers."""
        return isinstance(self.decision, Plan) and self.decision.purpose != "answer"

    @property
    def waiting_steps(self) -> tuple[StepRun, ...]:
        """The steps that wait for the client's tools, in ascending order of their indices."""
        waiting = [step for step in self.steps if step.pending_calls]
        return tuple(sorted(waiting, key=lambda step: step.index)) if waiting else ()

    @property
    def conductor_drafts(self) -> tuple[Draft, ...]:
        """All drafts of this round, the decision's last; each may have cost tokens."""
        if not self.drafts:
            return (self.decision.draft,)
        return (*(malformed.draft for malformed in self.drafts), self.decision.draft)


@dataclass(frozen=True, slots=True)
class ResumeState:
    """The rounds from which a run continues; their cost is counted in the earlier runs."""

    rounds: tuple[Round, ...]
    """All rounds so far without their prompts; the last one is unfinished."""
    runs: tuple[RunId, ...]
    """The runs that executed them, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """The data of a run that are known when it starts."""

    id: RunId
    question: Question
    pool: Pool
    """The workers, in the order in which the conductor saw them."""
    seed: int | None
    """None: sampling need not be repeatable."""
    limits: Limits
    conductor: str
    model: str = ""
    """The served model's name, if the run was served."""
    parent: RunId | None = None
    """The earlier run that this run replays, or whose answer it repeats."""
    started: float = 0.0
    """Seconds since the epoch."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """The versions of Batuta and of its prompt, by name."""
    exploration: Exploration | None = None
    """How the workflow was chosen, if the system learns while it serves."""
    resumed: ResumeState | None = None
    """Set if tool results continue an earlier run's workflow. The first round of this run then
    continues the last round of `resumed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowEstimate:
    """Expected tokens, dollars and time of a workflow, without those of the conductor."""

    steps: tuple[Usage, ...]
    usage: Usage
    cost: Cost
    seconds: float | None = None
    """Seconds of the slowest chain of steps and of the samples; None if a worker's latency is not
    known."""
    samples: Usage = ZERO_USAGE
    """Tokens of asking the question again for the answer's confidence; included in `usage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailTriggered:
    """A guardrail, a plan rule or an approval rule acted; the text it found is not recorded."""

    policy: str
    """The guardrail's or rule's name in the settings."""
    where: str
    """The stage (`input`, `between`, `output` or `plan`), with the message or step that was
    checked, if any, counted from 0: `between:step 1`."""
    action: str
    """The action, such as `redacted`, `flagged`, `blocked`, `failed` or `timed out`. Grounding
    checks also use `marked`, `repaired` and `refused`; plan rules `left out`, `sent back`,
    `repaired` and `refused`; approvals `waits for approval`, `edited` and the verdict's state."""
    count: int = 1
    """Number of findings, or of workers that were left out."""
    by: str = ""
    """The person who decided, as named in the audit trail; empty if no person did."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Run:
    """A question conducted to its end: the fold of its events."""

    header: RunHeader
    rounds: tuple[Round, ...]
    outcome: Outcome
    answer: str | None
    """The complete answer's text, which may be empty; None if there is no answer (`error` says
    why) or if the answer consists of tool calls only."""
    reply: Reply | None = None
    """The reply that the answer is taken from, with its tool calls and finish reason."""
    error: str | None = None
    error_code: str | None = None
    limit: str | None = None
    """The limit that ended the run or truncated its answer: `tokens`, `usd`, `seconds` or `rounds`;
    None: none did."""
    seconds: float = 0.0
    guards: tuple[GuardrailTriggered, ...] = ()
    """The actions of guardrails and rules, in order."""
    expected: WorkflowEstimate | None = None
    """The estimate of a dry run's workflow; None: there is no workflow, or it was run."""
    confidence: float | None = None
    """The probability that the answer is correct; None if it is unknown, as without a confidence
    model that was fitted for the conductor and the worker."""

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
        """The last step of the newest round that answers; None if that step gave no reply.

        Rounds that only evaluate an answer, and rounds without a workflow, are skipped.
        """
        for round_ in reversed(self.rounds):
            if round_.workflow is not None and not round_.is_aside:
                last = round_.step(len(round_.workflow) - 1)
                return last if last is not None and isinstance(last.result, Reply) else None
        return None

    @property
    def conductor_usage(self) -> Usage:
        """Tokens of the conductor's drafts."""
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
        """Return one line: id, outcome, size, cost, time and the beginning of the answer."""
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
        """Return the workflow and the answer as HTML, with all model output escaped."""
        summary = self._summary() + (f": {self.error}" if self.error else "")
        return render_run_html([_step_rows(round_) for round_ in self.rounds], summary, self.answer)


def _shorten_text(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN_CHARACTERS else f"{flat[: _SHOWN_CHARACTERS - 1]}…"


def _step_rows(round_: Round) -> list[StepRow]:
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
    """The conductor decided on a round."""

    round: int
    planned: Round
    """The round, still without steps."""


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step was started."""

    round: int
    index: int
    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDelta:
    """A step's worker sent a fragment; fragments are not recorded."""

    round: int
    index: int
    worker: WorkerId
    """The worker that sent the fragment: the planned worker, or another one in its place."""
    delta: Delta
    is_answer: bool = False
    """Whether the fragment is a final part of the answer, so that the client may be sent it."""


@dataclass(frozen=True, slots=True)
class StepRetried:
    """An attempt at a step failed; a retry or another worker may follow."""

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
    """The run ended; this is its last event."""

    outcome: Outcome
    answer: str | None = None
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
"""A run's events: first a `RunHeader`, last a `RunFinished`."""

EventHandler = Callable[[Event], Awaitable[None]]
