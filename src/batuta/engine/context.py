"""A run's settings and hooks, the context that its rounds share, and the recorder of its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter

from anyio import CancelScope

from batuta.core import (
    Client,
    Event,
    EventHandler,
    Failure,
    GuardrailTriggered,
    Pool,
    Question,
    Request,
    ResumeState,
    Round,
    RoundPlanned,
    Run,
    RunFinished,
    RunHeader,
    RunId,
    StepDelta,
    StepFinished,
    StepRun,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.core.tool_classes import ToolClasses
from batuta.engine.approval_request import Approver
from batuta.engine.budget import Budget, Funds, Hold
from batuta.engine.confidence import ConfidenceModel
from batuta.engine.resumption import answered_call_ids, merge_rounds
from batuta.engine.workflow_estimate import LatencyLookup, no_latency
from batuta.errors import LimitReachedError
from batuta.guardrails import NO_GUARDRAILS, Guardrails, GuardrailStage
from batuta.language.approval_rules import ApprovalRule
from batuta.language.plan_rules import NO_RULES, PlanRules

DEFAULT_RESAMPLES = 2


@dataclass(frozen=True, slots=True)
class TimeoutPolicy:
    """How long a step may keep a run waiting before another worker is asked."""

    step_seconds: float | None = None
    """Seconds after which a call is cancelled for a substitute; None: no limit. There is none for
    the last candidate, for the repair of an answer's format, for a call of which the client has
    already received text, and for the last step if `hedge_seconds` is set."""
    hedge_seconds: float | None = None
    """Seconds without output of the last step's worker after which a second worker is called in
    parallel; the faster one answers. None: no second call is made."""

    def __post_init__(self) -> None:
        if any(
            seconds is not None and seconds <= 0
            for seconds in (self.step_seconds, self.hedge_seconds)
        ):
            raise ValueError("step_seconds and hedge_seconds must be more than 0, or None")

    @property
    def has_timeout(self) -> bool:
        """True if there is a time after which another worker is asked."""
        return self.step_seconds is not None or self.hedge_seconds is not None


NO_TIMEOUT = TimeoutPolicy()
WorkflowRevision = Callable[[Workflow], tuple[Workflow, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a run that many runs can share."""

    fallback: bool = True
    """If True, the best single worker answers when there is no valid workflow, a substitute is
    asked when a worker fails, and an earlier round's answer is returned when the last step fails
    (after a limit it always is). Training turns it off: a policy learns from the workflow that it
    wrote."""
    retry_whole_question: bool = True
    """If True (with `fallback`), a worker may be asked the whole question when the last step fails
    and no earlier round has an answer. Methods that choose among replies turn it off, since their
    last step need not be an answer."""
    resamples: int = DEFAULT_RESAMPLES
    """How often, at most, a malformed draft is sampled again before the best single worker
    answers."""
    timeouts: TimeoutPolicy = NO_TIMEOUT
    """Time limits of a step, after which another worker is asked."""
    guardrails: Guardrails = NO_GUARDRAILS
    """Checks of the question, of the replies between workers and of the answer."""
    live: bool = False
    """If True, the client receives the text of the last allowed round's last step as it is written,
    unless the answer must be checked as a whole. Once the client has received text, the step is
    neither retried nor replaced: if it fails, or its reply lacks the requested format, the run has
    no answer."""
    dry_run: bool = False
    """True if the run ends after planning, with an estimate, and runs no step."""
    plan_rules: PlanRules = NO_RULES
    """Restrictions on workflows; rules for tags that the question lacks have no effect."""
    tool_classes: ToolClasses = ToolClasses()
    """The effects of the client's tools; only the last step may call tools that change or ask."""
    confidence: ConfidenceModel | None = None
    """Estimates the probability that the answer is correct; None: there is no estimate."""
    approvals: tuple[ApprovalRule, ...] = ()
    """Rules that select the plans that a person must approve before they are run."""
    min_confidence: float | None = None
    """Minimum probability that the answer is correct, by the model `confidence`; None: no minimum.
    If the probability is lower or unknown, one more worker is asked (with `fallback`); if it still
    is, the outcome is `unsure`."""


class Recorder:
    """The events of a run, from which `run()` makes the `Run`."""

    def __init__(self) -> None:
        self.header: RunHeader | None = None
        self.rounds: list[Round] = []
        self.ended: RunFinished | None = None
        self.guards: list[GuardrailTriggered] = []
        self._run: Run | None = None
        """The cached result of `run()`; None after a further event."""

    def add(self, event: Event) -> None:
        """Add the next event; fragments, retries and the starts of steps are not kept."""
        self._run = None
        match event:
            case StepDelta():
                pass  # most events of a stream
            case RunHeader():
                self.header = event
            case RoundPlanned():  # an edited plan is published again
                self.rounds[event.round :] = [event.planned]
            case StepFinished():
                old = self.rounds[event.round]
                self.rounds[event.round] = replace(old, steps=(*old.steps, event.step))
            case GuardrailTriggered():
                self.guards.append(event)
            case RunFinished():
                self.ended = event
            case _:
                pass

    def run(self) -> Run:
        """Return the run.

        Raises:
            ValueError: the RunHeader or the RunFinished event is missing.
        """
        if self.header is None or self.ended is None:
            raise ValueError("a run needs a RunHeader first and a RunFinished last")
        if self._run is not None:
            return self._run
        end = self.ended
        self._run = Run(
            header=self.header,
            rounds=tuple(self.rounds),
            outcome=end.outcome,
            answer=end.answer,
            reply=end.reply,
            error=end.error,
            error_code=end.error_code,
            limit=end.limit,
            seconds=end.seconds,
            guards=tuple(self.guards),
            expected=end.expected,
            confidence=end.confidence,
        )
        return self._run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHooks:
    """The id, budget and listeners of a single run."""

    run_id: RunId | None = None
    """The run's id; None: a new one is made."""
    model: str = ""
    """The served model's name, if the run is served."""
    parent: RunId | None = None
    """The earlier run that this run replays, or whose answer it repeats."""
    emit: EventHandler | None = None
    """Receives the events as they happen (those of cancelled calls at the end), and is awaited
    before the run continues. If set, workers are asked to stream."""
    recorder: Recorder | None = None
    """Collects the events; pass a recorder to have the run even if `conduct` is cancelled."""
    funds: Funds | None = None
    """A budget in addition to the limits; every call is reserved from it too."""
    guarded: tuple[GuardrailTriggered, ...] = ()
    """Actions that guardrails took on the question before the run."""
    revise: WorkflowRevision | None = None
    """Returns the workflow to run in place of each planned one, and the reason, as a clause."""
    approve: Approver | None = None
    """Waits for a person's verdict on a plan; None: no person can be asked."""
    latency: LatencyLookup = no_latency
    """Observed seconds of a worker's call, for the estimate of a dry run."""


@dataclass(slots=True, kw_only=True)
class RunContext:
    """The state of a run in progress."""

    run_id: RunId
    question: Question
    pool: Pool
    clients: Mapping[WorkerId, Client]
    budget: Budget
    recorder: Recorder
    seed: int | None
    emit: EventHandler | None
    resumed: ResumeState | None = None
    settings: RunSettings = RunSettings()
    approve: Approver | None = None
    """Waits for a person's verdict on a plan; None: a plan that needs one is refused."""
    deadline: CancelScope | None = None
    """Ends the run at its time limit; suspended while a person is asked. None: no limit."""
    rules: PlanRules = NO_RULES
    """The rules for plans that hold for this question."""
    asks_whole: bool = False
    """True if each step answers the question itself, as samples do; else only the last step."""
    started_at: float = field(default_factory=perf_counter)
    limit: LimitReachedError | None = None
    """The limit that forbade or interrupted a call, if one did."""
    exposed_failure: Failure | None = None
    """The failure of a last step whose text the client has already received in part."""
    deferred_events: list[Event] = field(default_factory=list[Event])
    """Events of cancelled calls: already recorded, published when the run ends."""

    def elapsed(self) -> float:
        """Return the seconds since the run began."""
        return perf_counter() - self.started_at

    @property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds so far, including those of earlier runs."""
        if self.resumed is None:
            return tuple(self.recorder.rounds)
        return merge_rounds(self.resumed, self.recorder.rounds)

    @property
    def round_offset(self) -> int:
        """Number of rounds that earlier runs finished; this run's first round has that number."""
        return len(self.resumed.rounds) - 1 if self.resumed else 0

    @property
    def round_count(self) -> int:
        """Number of rounds that this run may execute."""
        return max(self.budget.limits.rounds - self.round_offset, 1)

    @property
    def is_live(self) -> bool:
        """True if the client receives the last allowed round's last step as it is written.

        An answer that must be checked as a whole is not shown before it is checked.
        """
        settings = self.settings
        if not settings.live or GuardrailStage.OUTPUT in settings.guardrails.stages:
            return False
        if settings.min_confidence is not None:
            return False
        sampling = self.question.sampling
        several = (sampling.choices or 1) > 1 or sampling.logprobs is not None
        return not (several and self.question.response_format is not None)

    def shows_answer(self, number: int) -> bool:
        """Return True if the last step of this run's round `number` is shown as it is written.

        Only the last allowed round is: the conductor does not judge its answer afterwards.
        """
        return self.is_live and number == self.round_count - 1

    @property
    def run_chain(self) -> frozenset[RunId]:
        """The ids of the earlier runs that this run continues; empty if it continues none."""
        return frozenset(self.resumed.runs) if self.resumed else frozenset()

    def earlier_steps(self, number: int) -> dict[int, StepRun]:
        """Return, by index, the steps of this run's round `number` that earlier runs executed."""
        if self.resumed is None or number:
            return {}
        return {step.index: step for step in self.resumed.rounds[-1].steps}

    def has_results(self, step: StepRun) -> bool:
        """Return True if the client has answered one of the calls for which the step waits."""
        results = answered_call_ids(self.question)
        return any(call.id in results for call in step.pending_calls)

    async def publish(self, event: Event) -> None:
        """Record the event and pass it to the listener."""
        self.recorder.add(event)
        if self.emit is not None:
            await self.emit(event)

    def check_budget(self) -> None:
        """Check that a further call may be made.

        Raises:
            LimitReachedError: a limit is used up; the error is stored in `limit`.
        """
        try:
            self.budget.check()
        except LimitReachedError as error:
            self.limit = error
            raise

    async def reserve(
        self, request: Request, worker: Worker, *, whole: bool = False, waits: bool = True
    ) -> Hold:
        """Reserve the maximum cost of the call, as `Budget.reserve` does.

        The caller must send the reservation's request.

        Raises:
            LimitReachedError: the call does not fit a limit; the error is stored in `limit`.
        """
        try:
            return await self.budget.reserve(request, worker, whole=whole, waits=waits)
        except LimitReachedError as error:
            self.limit = error
            raise
