"""How a session is conducted: which worker acts, and when a second model is asked or takes over.

The session patterns (`escalate`, `advise`, `gate`, `lead-and-hands`) are conductors: without a
session they plan as for a new conversation. In a session all other conductors plan only at
boundaries, and their plan changes the acting worker only if the change pays.

The conversation is in the prompt cache of the acting worker's provider. Another worker reads it at
the uncached price of input, so a switch costs the difference between that worker's uncached and
cached prices. It costs nothing if that worker's provider still has the conversation in its cache,
or if the worker has no cached price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import fmean
from typing import Protocol, runtime_checkable

from batuta.conductors.sessions.boundaries import Boundary, Moment
from batuta.conductors.sessions.review import (
    REVIEWS,
    count_calls,
    find_reviewer,
    judge_round,
    last_answer,
)
from batuta.conductors.sessions.state import DEFAULT_RULES, SessionRules, SessionThread, Turn
from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Client,
    Conductor,
    Decision,
    Plan,
    PlanningContext,
    Pool,
    Question,
    Step,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.formatting import format_usd
from batuta.core.worker import PROGRAM, token_price
from batuta.engine.step_prompt import able_workers
from batuta.usage import MILLION

_DEFAULT_PROBABILITY = 0.5
"""The assumed probability that a worker without a strength or skills solves a task."""
_FAILURE_DISCOUNT = 0.5
"""Factor on the acting worker's probability for each failure in the current task."""
_MOST_NOTES = 3
"""Maximum number of workers that a reason names as not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A possible change of the acting worker, with its cost and gain."""

    leaves: Worker
    """The acting worker."""
    takes: Worker
    """The worker that would take over."""
    cost_usd: Decimal
    """Extra dollars for input that is not in the new worker's prompt cache."""
    gain_usd: Decimal
    """Dollars that the change is expected to gain, before its cost."""
    pays: bool
    """Whether the gain exceeds cost plus margin."""

    @property
    def reason(self) -> str:
        """The decision as a clause with figures."""
        cost, gain = (format_usd(round(usd, 4)) for usd in (self.cost_usd, self.gain_usd))
        if self.pays:
            clause = "no cache is lost" if not self.cost_usd else f"it costs {cost} of cache"
            return (
                f"{self.takes.id} takes over from {self.leaves.id}: {clause} and is expected to "
                f"gain {gain}"
            )
        return (
            f"stayed with {self.leaves.id}: a switch to {self.takes.id} would cost {cost} of cache "
            f"and is expected to gain {gain}"
        )


def price_switch(
    thread: SessionThread,
    leaves: Worker,
    takes: Worker,
    *,
    tokens: int,
    failures: int,
    now: float,
    rules: SessionRules,
) -> Switch:
    """Estimate cost and gain of changing the acting worker.

    Args:
        thread: the conversation, with the cached prompts of each worker.
        leaves: the acting worker.
        takes: the worker that would take over.
        tokens: estimated tokens of the conversation.
        failures: number of tool failures in the current task.
        now: seconds since the epoch.
        rules: the session's rules.
    """
    cost = cold_cost(thread, takes, tokens=tokens, now=now, rules=rules)
    stays = solving_probability(leaves) * _FAILURE_DISCOUNT**failures
    gain = max(0.0, solving_probability(takes) - stays)
    gain_usd = Decimal(str(round(gain, 6))) * rules.worth_usd
    pays = takes.id != leaves.id and gain_usd > rules.margin_usd + cost
    return Switch(leaves=leaves, takes=takes, cost_usd=cost, gain_usd=gain_usd, pays=pays)


def cold_cost(
    thread: SessionThread, worker: Worker, *, tokens: int, now: float, rules: SessionRules
) -> Decimal:
    """Return the extra dollars for the tokens that are not in the worker's prompt cache.

    For a worker without a price, the price `rules.unknown` is assumed.
    """
    warm = thread.warm.get(worker.id)
    cached_tokens = warm.tokens if warm is not None and now - warm.at <= rules.warm_seconds else 0
    price = worker.price or rules.unknown
    cached = price.input if price.cached is None else price.cached
    return max(0, tokens - cached_tokens) * max(Decimal(0), price.input - cached) / MILLION


def solving_probability(worker: Worker) -> float:
    """Return the estimated probability that the worker solves a task.

    It is the worker's strength, else the mean accuracy of its skills, else 0.5.
    """
    if worker.strength is not None:
        return worker.strength
    shares = [skill.share for skill in worker.skills]
    return fmean(shares) if shares else _DEFAULT_PROBABILITY


ADVISE = (
    "The worker that acts here is stuck. Read what was done so far and say what it should do next, "
    "in at most 300 words (400 tokens): the likely cause, then the steps in their order, with the "
    "names of files and commands. Do not act yourself and call no tool."
)
FOLLOW = (
    "Go on with the task. The advice comes from a stronger model that saw the same conversation: "
    "follow it where it is right."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """A request and its session, the input of a session pattern."""

    thread: SessionThread
    turn: Turn
    moment: Moment
    question: Question
    pool: Pool
    tokens: int
    """Estimated tokens of the conversation."""
    now: float
    """Seconds since the epoch."""
    consultations: int = 0
    """Number of calls of a second model in this session so far."""
    unpaid: frozenset[WorkerId] = frozenset()
    """The workers whose calls the session's remaining dollars do not cover."""
    rules: SessionRules = DEFAULT_RULES

    @property
    def acting(self) -> Worker | None:
        """The acting worker; None if there is none, or if it may no longer answer."""
        named = self.thread.acting
        return self.pool[named] if named is not None and named in self.pool else None

    @property
    def failures(self) -> int:
        """Number of tool failures in the current turn."""
        return sum(self.thread.failures.values())

    @property
    def has_failed(self) -> bool:
        """True if the request contains a new failed tool result."""
        return bool(self.turn.new_results and self.turn.actions[-1].failures)

    @property
    def may_consult(self) -> bool:
        """True if a second model may be asked once more."""
        return self.consultations < self.rules.consultations

    def price_of(self, worker: Worker) -> str:
        """Return a clause with the dollars that a switch to the worker costs."""
        cost = cold_cost(self.thread, worker, tokens=self.tokens, now=self.now, rules=self.rules)
        lost = round(cost, 4)
        return f"{format_usd(lost)} of cache is lost" if lost else "no cache is lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conducting:
    """The decision on how to answer a request of a session."""

    conductor: Conductor
    continues_workflow: bool
    """Whether a workflow that waits for tool results is continued, if there is one.

    Under a session pattern, a new workflow replaces a waiting one of a single step with the
    unchanged conversation if `is_plain` or `begins_plainly` is True."""
    is_plain: bool = False
    """Whether one worker is asked the unchanged conversation, without any further step."""
    begins_plainly: bool = False
    """Whether the first step asks one worker the unchanged conversation; further steps may follow.
    """


@runtime_checkable
class SessionPattern(Protocol):
    """A conductor that decides by the state of a session.

    Law: the decision is a function of the view and follows no instruction in a worker's or a
    tool's text.
    """

    def in_session(self, view: SessionView) -> Conducting:
        """Return how the request is answered."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingWorker:
    """A conductor under which one worker acts on the unchanged conversation."""

    name: str
    worker: WorkerId
    reason: str = ""

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan the one step; accept the answer in a later round."""
        if context.previous:
            return AcceptedAnswer()
        return _plan_actor(self.worker, self.reason)


def _plan_actor(worker: WorkerId, reason: str) -> Plan:
    return Plan(Workflow((Step(subtask="", worker=worker),)), reason=reason)


def cheapest_actor(question: Question, pool: Pool, rules: SessionRules) -> Worker:
    """Return the cheapest worker that can see the question and call its tools.

    Of several equally cheap workers, the best is returned. An ability that no worker has is not
    required. Workers that run programs are left out, unless the pool has no others.
    """
    able = able_workers(question, [w for w in pool.ranked() if PROGRAM not in w.tags])
    return min(able or pool.ranked(), key=lambda worker: token_price(worker, rules.unknown))


def note_uncompared(question: Question, pool: Pool, rules: SessionRules) -> str:
    """Return clauses on workers that may be cheaper but were not compared, or at an assumed price.

    At most three workers are named, and none that is known to be more expensive.
    """
    models = [worker for worker in pool.ranked() if worker.is_model]
    able = able_workers(question, models)
    lowest = token_price(cheapest_actor(question, pool, rules), rules.unknown)
    notes: list[str] = []
    for worker in models:
        may_be_cheaper = worker.price is None or token_price(worker, rules.unknown) < lowest
        if worker not in able and may_be_cheaper:
            needed = (*question.needed_tags, *(("tools",) if question.tools else ()))
            tag = next(tag for tag in needed if tag not in worker.tags)
            notes.append(f'{worker.id} was not compared: its [[workers]] has no tag "{tag}"')
        elif worker.price is None and len(models) > 1:
            notes.append(f"{worker.id} was compared at an assumed price: its [[workers]] has none")
    return "".join(f"; {note}" for note in notes[:_MOST_NOTES])


def strongest_actor(question: Question, pool: Pool) -> Worker:
    """Return the best worker that can see the question and call its tools.

    An ability that no worker has is not required.
    """
    return able_workers(question, list(pool.ranked()))[0]


@dataclass(frozen=True, slots=True)
class _BeginsCheaply:
    """A pattern in which the cheapest worker acts at the beginning of a conversation."""

    rules: SessionRules = DEFAULT_RULES
    name: str = ""

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Let the cheapest worker act."""
        return await cheapest_acting(self.name, context, self.rules).plan(context)


def cheapest_acting(name: str, context: PlanningContext, rules: SessionRules) -> ActingWorker:
    """Return a conductor of that name under which the cheapest worker acts, with the reason."""
    worker = cheapest_actor(context.question, context.pool, rules)
    reason = _describe_cheapest(worker, context.pool)
    reason += note_uncompared(context.question, context.pool, rules)
    return ActingWorker(name=name, worker=worker.id, reason=reason)


@dataclass(frozen=True, slots=True)
class Escalate(_BeginsCheaply):
    """The cheapest worker acts; after failures or a stall the best takes over, if that pays.

    The cheapest worker takes over again at the next task, or when the session's remaining dollars
    cover its calls but not the acting worker's.
    """

    name: str = "escalate"

    def in_session(self, view: SessionView) -> Conducting:
        """Choose the acting worker.

        After a failure the best worker replaces an answer without a tool call, if that pays.
        """
        worker, reason = _choose_escalated(view)
        continues = view.moment.boundary is None and worker.id == view.thread.acting
        strong = strongest_actor(view.question, view.pool)
        if view.has_failed and worker.id != strong.id and strong.id not in view.unpaid:
            switch = _price_handover(view, worker, strong)
            if switch.pays:
                doubts = DoubtsClaim(
                    name=self.name,
                    worker=worker.id,
                    reason=reason,
                    then=Workflow((Step(subtask="", worker=strong.id),)),
                    doubt=switch.reason,
                )
                return Conducting(
                    conductor=doubts, continues_workflow=continues, begins_plainly=True
                )
        conductor = ActingWorker(name=self.name, worker=worker.id, reason=reason)
        return Conducting(conductor=conductor, continues_workflow=continues, is_plain=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtsClaim:
    """A conductor under which a worker acts, but an answer without a tool call is replaced.

    The patterns use it for requests in which a new tool result is a failure. An answer without a
    call then means that the worker claims to be done or has given up.
    """

    name: str
    worker: WorkerId
    reason: str
    then: Workflow
    """The workflow that replaces such an answer."""
    doubt: str
    """The reason for that workflow, as a clause."""

    @property
    def needed_rounds(self) -> int:
        """Number of rounds, 2: the worker's, and the round that replaces its answer."""
        return 2

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Let the worker act; run `then` if it called no tool and `max_steps` allows it."""
        if not context.previous:
            return _plan_actor(self.worker, self.reason)
        if len(context.previous) > 1 or last_answer(context) is None:
            return AcceptedAnswer()
        if context.max_steps < len(self.then):
            return AcceptedAnswer(
                reason="kept: the workflow to replace it needs more steps than are allowed"
            )
        return Plan(self.then, reason=f"{self.worker} called nothing after a failure: {self.doubt}")


def _describe_cheapest(worker: Worker, pool: Pool) -> str:
    return f"{worker.id} acts, the cheapest of {len(pool)}"


def _begin_reason(view: SessionView, what: str) -> str:
    """Return the clause `what`, with the reason for the boundary and the workers not compared."""
    return f"{what}: {view.moment.reason}{note_uncompared(view.question, view.pool, view.rules)}"


def judged_reason(view: SessionView, worker: Worker) -> str:
    """Return why that worker acts, for a pattern in which its answer is judged."""
    if view.acting:
        return f"{worker.id} goes on: {view.moment.reason}"
    return _begin_reason(view, f"{worker.id} begins")


_UNPAID = "the session's remaining dollars do not cover a call of "


def _choose_escalated(view: SessionView) -> tuple[Worker, str]:
    """Return the acting worker by the rules of `escalate`, and the reason."""
    cheap = cheapest_actor(view.question, view.pool, view.rules)
    strong = strongest_actor(view.question, view.pool)
    acting, failures = view.acting, view.failures
    is_stalled = view.moment.boundary is Boundary.STALL
    if view.moment.boundary is Boundary.TASK and acting is not None and acting.id != cheap.id:
        return cheap, f"{cheap.id} takes the new task over from {acting.id}: {view.price_of(cheap)}"
    if acting is not None and acting.id in view.unpaid and cheap.id not in view.unpaid:
        return cheap, f"{cheap.id} takes over from {acting.id}: {_UNPAID}{acting.id}"
    if (failures >= view.rules.failures or is_stalled) and strong.id != cheap.id:
        if strong.id in view.unpaid:
            actor = acting or cheap
            return actor, f"{actor.id} goes on: {_UNPAID}{strong.id}"
        if acting is None:
            return strong, f"{strong.id} acts, the best of {len(view.pool)}: {failures} failures"
        if acting.id == cheap.id:
            return _take_over(view, acting, strong)
    if acting is None:
        return cheap, _begin_reason(view, _describe_cheapest(cheap, view.pool))
    return acting, f"{acting.id} goes on: {view.moment.reason}"


def _take_over(view: SessionView, acting: Worker, strong: Worker) -> tuple[Worker, str]:
    """Return the strong worker if the change pays, else the acting one; and the reason."""
    if view.moment.boundary is Boundary.STALL:
        trouble, switch = "a stall", _price_handover(view, acting, strong)
    else:
        trouble = f"{view.failures} failures"
        switch = _price_switch(view, acting, strong, view.failures)
    return (strong if switch.pays else acting), f"after {trouble} {switch.reason}"


def _price_handover(view: SessionView, acting: Worker, strong: Worker) -> Switch:
    """Price the change with at least as many failures as `escalate` needs to hand over."""
    return _price_switch(view, acting, strong, max(view.failures, view.rules.failures))


def _price_switch(view: SessionView, acting: Worker, takes: Worker, failures: int) -> Switch:
    return price_switch(
        view.thread,
        acting,
        takes,
        tokens=view.tokens,
        failures=failures,
        now=view.now,
        rules=view.rules,
    )


@dataclass(frozen=True, slots=True)
class Advise(_BeginsCheaply):
    """The cheapest worker acts; when it is stuck, the best worker advises it.

    `SessionRules.consultations` limits the advice of a session.
    """

    name: str = "advise"

    def in_session(self, view: SessionView) -> Conducting:
        """Let the worker act, with advice if it is stuck.

        After a failure, an answer without a tool call is replaced by advice and a further step.
        """
        acting = view.acting or cheapest_actor(view.question, view.pool, view.rules)
        adviser = strongest_actor(view.question, view.pool)
        is_stuck = view.moment.boundary in {Boundary.SAME_FAILURE, Boundary.STALL}
        may_advise = view.may_consult and adviser.id != acting.id
        if is_stuck and may_advise:
            advised = AdvisedWorker(
                name=self.name,
                worker=acting.id,
                adviser=adviser.id,
                reason=_advice_reason(view, view.moment.reason),
            )
            return Conducting(conductor=advised, continues_workflow=False)
        continues = view.moment.boundary is None or is_stuck
        reason = f"{acting.id} goes on: {view.moment.reason}"
        if view.acting is None:
            reason = _begin_reason(view, _describe_cheapest(acting, view.pool))
        if view.has_failed and may_advise:
            doubts = DoubtsClaim(
                name=self.name,
                worker=acting.id,
                reason=reason,
                then=_advised_workflow(acting.id, adviser.id),
                doubt=_advice_reason(view, ""),
            )
            return Conducting(conductor=doubts, continues_workflow=continues, begins_plainly=True)
        conductor = ActingWorker(name=self.name, worker=acting.id, reason=reason)
        return Conducting(conductor=conductor, continues_workflow=continues, is_plain=True)


def _advice_reason(view: SessionView, why: str) -> str:
    number = f"question {view.consultations + 1} of {view.rules.consultations}"
    return f"a stronger model is asked what to do ({number})" + (f": {why}" if why else "")


def _advised_workflow(worker: WorkerId, adviser: WorkerId) -> Workflow:
    advice = Step(subtask=ADVISE, worker=adviser)
    return Workflow((advice, Step(subtask=FOLLOW, worker=worker, access=(0,))))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisedWorker:
    """A conductor that plans an adviser's step before the acting worker's."""

    name: str
    worker: WorkerId
    adviser: WorkerId
    reason: str

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan the advice and the step that uses it; accept the answer in a later round.

        If only one step is allowed, the worker acts without advice.
        """
        if context.previous:
            return AcceptedAnswer()
        workflow = _advised_workflow(self.worker, self.adviser)
        if context.max_steps < len(workflow):
            return _plan_actor(self.worker, "advice needs two steps, and one is allowed")
        return Plan(workflow, reason=self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The cheapest worker acts; another model, of another family if possible, judges its answer."""

    clients: Mapping[WorkerId, Client]
    rules: SessionRules = DEFAULT_RULES
    name: str = "gate"
    acting: ActingWorker | None = None
    """The acting worker of a session; None: the cheapest worker."""
    consultations: int = 0
    """Number of calls of a judge in the session so far."""

    @property
    def needed_rounds(self) -> int:
        """Maximum number of rounds: the first, and one after each review."""
        return 1 + REVIEWS

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Let the worker act; then have its answer judged, and the work continued if rejected."""
        if not context.previous:
            acting = self.acting or cheapest_acting(self.name, context, self.rules)
            return await acting.plan(context)
        calls = self.consultations + count_calls(context)
        may_judge = calls < self.rules.consultations
        last = last_answer(context)
        reviewer = find_reviewer(last.worker, context) if last else None
        return await judge_round(
            context,
            reviewer,
            client=self.clients.get(reviewer.id) if reviewer else None,
            refusal="" if may_judge else f"a judge was asked {calls} times in this session",
            listener=listener,
        )

    def in_session(self, view: SessionView) -> Conducting:
        """Let the acting worker continue, and have its answer judged."""
        worker = view.acting or cheapest_actor(view.question, view.pool, view.rules)
        acting = ActingWorker(name=self.name, worker=worker.id, reason=judged_reason(view, worker))
        conductor = replace(self, acting=acting, consultations=view.consultations, rules=view.rules)
        return Conducting(conductor=conductor, continues_workflow=view.moment.boundary is None)


def conduct_in_session(conductor: Conductor, view: SessionView) -> Conducting:
    """Return how the request is answered.

    A session pattern decides by itself. Another conductor plans at boundaries; between them, the
    acting worker continues.

    Args:
        conductor: the served model's conductor.
        view: the request and its session.
    """
    if isinstance(conductor, SessionPattern):
        return conductor.in_session(view)
    acting = view.acting
    if view.moment.boundary is not None or acting is None:
        return Conducting(conductor=conductor, continues_workflow=False)
    reason = f"{acting.id} goes on, nothing is conducted: {view.moment.reason}"
    continuing = ActingWorker(name=f"acting/{acting.id}", worker=acting.id, reason=reason)
    return Conducting(conductor=continuing, continues_workflow=True, is_plain=True)


def revise_actor(view: SessionView) -> Callable[[Workflow], tuple[Workflow, str]]:
    """Return a function that keeps the acting worker in a plan's last step unless a switch pays.

    The function returns the workflow to run and the reason.
    """

    def revise(workflow: Workflow) -> tuple[Workflow, str]:
        acting, planned = view.acting, workflow.steps[-1].worker
        boundary = view.moment.reason
        if acting is None or planned == acting.id or planned not in view.pool:
            return workflow, f"conducted: {boundary}"
        switch = _price_switch(view, acting, view.pool[planned], view.failures)
        reason = f"conducted: {boundary}; {switch.reason}"
        if switch.pays:
            return workflow, reason
        last = replace(workflow.steps[-1], worker=acting.id)
        return Workflow((*workflow.steps[:-1], last)), reason

    return revise
