"""A request in its session: finds its thread, chooses what runs, and updates the session after it.

The state of a session is in the memory of this process or in the Redis that the replicas share. The
state is loaded before a run and updated after the run.

A session's id is a digest that includes the tenant, so a client that sends another tenant's session
name gets a different id. The state contains no text of the conversation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from time import time
from typing import final

from batuta.conductors.sessions.boundaries import find_moment
from batuta.conductors.sessions.patterns import (
    Conducting,
    SessionPattern,
    SessionView,
    conduct_in_session,
    revise_actor,
    strongest_actor,
)
from batuta.conductors.sessions.saving import estimate_alone
from batuta.conductors.sessions.state import (
    NEW_THREAD,
    SessionEntry,
    SessionRules,
    SessionState,
    SessionThread,
    Turn,
    read_turn,
)
from batuta.core import (
    Limits,
    Plan,
    Pool,
    Question,
    Reply,
    ResumeState,
    Round,
    Run,
    ToolResult,
    WorkerId,
)
from batuta.core.conductor import needed_rounds
from batuta.core.formatting import format_usd
from batuta.core.run import stricter_limit
from batuta.engine.context import WorkflowRevision
from batuta.engine.step_prompt import is_plain
from batuta.gateway.errors import APIError
from batuta.gateway.serving.cost_bound import estimate_prompt_tokens, least_call_usd
from batuta.gateway.serving.models import ServedModel
from batuta.gateway.serving.parsed_call import (
    NO_SESSION_LIMITS,
    ParsedCall,
    SessionLimits,
)
from batuta.gateway.serving.tenant_memory import SessionMemory
from batuta.offload.threads import read_off_loop
from batuta.store.key_permissions import KeyPermissions
from batuta.store.rows import ActingNote

COST_HEADER = "x-batuta-session-cost"
UNPRICED_HEADER = "x-batuta-session-unpriced-calls"
_NO_RETRY = {"x-should-retry": "false"}
_LONGEST_REASON = 600
"""Maximum number of characters of a stored reason."""


@dataclass(slots=True, kw_only=True)
class SessionCall:
    """A request in its session."""

    tenant: str
    id: str
    """The session's id."""
    thread: str
    """The key of the request's thread; empty: the request belongs to none."""
    before: SessionThread
    """The thread at this request, before its run."""
    replaces: str = ""
    """The key of the thread that this one continues after a compaction; empty if there is none."""
    state: SessionState
    """The session's state: before the run, then after it."""
    turn: Turn | None = None
    """The newest turn of the conversation; None if the request does not belong to it."""
    max_cost_usd: Decimal | None = None
    """The session's limit in dollars; None: no limit."""
    tokens: int = 0
    """The estimated tokens of the conversation; 0 unless the session is conducted."""
    acts: bool = False
    """Whether the answering worker becomes the thread's acting worker."""
    consults: bool = False
    """Whether the run's calls of other models count as consultations of the session."""
    is_bound: bool = False
    """Whether the run's limit in dollars is what the session has left."""
    run: str = ""
    """The id of the request's run."""
    is_refused: bool = False
    """Whether a call of the run was refused because it did not fit the session's limit."""
    counted: Decimal = Decimal(0)
    """Dollars that limits count for the run so far."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers about the session's cost so far; an unknown cost is left out."""
        cost = self.state.cost
        headers: dict[str, str] = {}
        if cost.unpriced_calls:
            headers[UNPRICED_HEADER] = str(cost.unpriced_calls)
        if not cost.is_unknown:
            headers[COST_HEADER] = f"{cost.usd:f}"
        return headers

    def cost_error(self) -> APIError:
        """Return the error for a session that has reached its limit in dollars."""
        most, spent = self.max_cost_usd or Decimal(0), self.state.cost.usd
        left = self.state.left_usd(most, self.run) or Decimal(0)
        held = most - spent - left
        holds = f", {format_usd(held)} is held or was not billed," if held > 0 else ""
        message = (
            f"This session has cost {format_usd(spent)}{holds} and may cost {format_usd(most)}, "
            "which leaves too little for this request: start a new session, or raise "
            "orchestration.session.max_cost_usd or the key's limit."
        )
        return _limit_error(message)


def _limit_error(message: str) -> APIError:
    return APIError(429, "session_limit_exceeded", message, headers=_NO_RETRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """The model, limits and workflow that run for a request of a session."""

    call: SessionCall
    served: ServedModel
    limits: Limits
    resumed: ResumeState | None
    """The paused workflow that continues; None: a new one is planned."""
    revise: WorkflowRevision | None = None
    """Revises plans to keep the acting worker if switching does not pay."""


@final
class SessionKeeper:
    """Chooses what runs for each request of a session, and updates the session's state."""

    def __init__(self, memory: SessionMemory) -> None:
        self._memory = memory

    async def begin(
        self,
        call: ParsedCall,
        tenant: str,
        session: str,
        rules: SessionRules,
        *,
        is_kept: bool,
        compacts: bool = False,
        run: str = "",
    ) -> SessionCall:
        """Find the request's thread in its session, and check the session's limits.

        Args:
            call: the request.
            tenant: the session's tenant.
            session: the session's id.
            rules: the settings of sessions, with the key's limits.
            is_kept: whether the request belongs to the conversation.
            compacts: whether the request is for a summary of the conversation.
            run: the id of the request's run.

        Raises:
            APIError: the session has reached a limit.
        """
        question, state = call.question, await self._memory.load(tenant, session)
        limits = call.options.session or NO_SESSION_LIMITS
        thread, before, replaces, turn = "", NEW_THREAD, "", None
        if is_kept:
            turn = await read_off_loop(question.messages, partial(read_turn, question))
            thread, before, replaces = _find_thread(state, turn)
        elif compacts:
            thread, before = _find_summed_up_thread(state, question)
        begun = SessionCall(
            tenant=tenant,
            id=session,
            thread=thread,
            before=before,
            replaces=replaces,
            state=state,
            turn=turn,
            run=run,
            max_cost_usd=stricter_limit(limits.max_cost_usd, rules.max_cost_usd),
        )
        if state.left_usd(begun.max_cost_usd, run) == 0:
            raise begun.cost_error()
        _check_turns(begun, limits, rules)
        return begun

    def conduct(self, plan: SessionPlan, call: ParsedCall, rules: SessionRules) -> SessionPlan:
        """Return the plan with the session's limit and, for an agent's request, its conductor.

        Args:
            plan: what would run without a session.
            call: the request.
            rules: the settings of sessions.

        Raises:
            APIError: the session's remaining dollars do not pay for any call.
        """
        plan = _with_limit(plan, call.question)
        if not _is_conducted(plan.served, call):
            return plan
        conductor = plan.served.conductor
        assert conductor is not None  # noqa: S101 - checked by `_is_conducted`
        plan.call.tokens = estimate_prompt_tokens(call.question)
        view = self._view(plan, call.question, rules)
        plan.call.acts, plan.call.consults = True, isinstance(conductor, SessionPattern)
        conducting = conduct_in_session(conductor, view)
        resumed = plan.resumed
        is_plain = conducting.is_plain or conducting.begins_plainly
        if plan.call.consults and is_plain and resumed and _is_one_call(resumed):
            resumed = None  # its prompt is the conversation itself, resumed or not
        if conducting.continues_workflow and resumed is not None:
            by = conducting.conductor if plan.call.consults else conductor
            served = replace(plan.served, conductor=by)
            reason = f"{view.thread.acting} goes on, nothing is conducted: {view.moment.reason}"
            return replace(plan, served=served, resumed=_with_reason(resumed, reason))
        most = call.options.rounds or plan.served.max_rounds
        return _conduct_anew(plan, conducting, view, most_rounds=most)

    def _view(self, plan: SessionPlan, question: Question, rules: SessionRules) -> SessionView:
        """Return the request as session patterns receive it."""
        call, thread = plan.call, plan.call.before
        turn = call.turn or read_turn(question)
        if thread.acting is None and plan.resumed is not None:
            thread = replace(thread, acting=_planned_actor(plan.resumed))
        rules = replace(rules, unknown=plan.limits.unknown)
        pool = plan.served.pool
        return SessionView(
            thread=thread,
            turn=turn,
            moment=find_moment(thread, question, turn, tokens=call.tokens, pool=pool, rules=rules),
            question=question,
            pool=pool,
            tokens=call.tokens,
            now=time(),
            consultations=call.state.consultations,
            unpaid=_find_unpaid(plan, question),
            rules=rules,
        )

    def estimate_alone(
        self, call: SessionCall, run: Run, question: Question, pool: Pool, rules: SessionRules
    ) -> Decimal | None:
        """Estimate the dollars that the pool's best worker alone would have cost.

        Return None if the pool has one worker, the run made no call, or a price is unknown.
        """
        if len(pool) == 1 or not (run.steps or run.cost.usd or run.cost.unpriced_calls):
            return None
        thread = call.before
        best = strongest_actor(question, pool)
        now, warm = time(), rules.warm_seconds
        return estimate_alone(run, best, question, thread, now=now, warm_seconds=warm)

    async def end(self, call: SessionCall, run: Run) -> None:
        """Add the finished run to the session's state, and set `call.state` to the result."""
        after = replace(call.before, tokens=call.tokens) if call.acts else call.before
        step = run.answering_step if call.acts else None
        if step is not None:
            waits = isinstance(step.result, Reply) and bool(step.result.tool_calls)
            after = replace(after, acting=step.worker, waits=waits, compacted=False)
            after = after.with_prompt(step.worker, call.tokens, time())
        cost = run.cost
        entry = SessionEntry(
            thread=call.thread,
            after=after,
            replaces=call.replaces,
            cost=cost,
            counted=max(Decimal(0), call.counted - cost.usd),
            run=call.run,
            consultations=count_consultations(run) if call.consults else 0,
        )
        call.state = await self._memory.note(call.tenant, call.id, entry)


def _find_thread(state: SessionState, turn: Turn) -> tuple[str, SessionThread, str]:
    """Return the key of the turn's thread, the thread, and the key of the thread it replaces.

    The last key is empty unless the thread continues another one after a compaction.
    """
    if replaces := state.find_compacted(turn):
        return turn.thread_key, state.threads[replaces].after_summary(turn), replaces
    known = state.threads.get(turn.thread_key, NEW_THREAD)
    return turn.thread_key, known.in_turn(turn), ""


def _find_summed_up_thread(state: SessionState, question: Question) -> tuple[str, SessionThread]:
    """Return the key and the thread that a requested summary sums up.

    Claude Code and Codex request a summary at the end of the conversation. opencode sends the
    conversation in one message, so the session's newest thread is returned. The key is empty if the
    thread is unknown, does not wait for tool results or is in another turn.
    """
    *before, last = question.messages
    results = tuple(part for part in last.parts if isinstance(part, ToolResult))
    shown = (*before, replace(last, parts=results)) if results else tuple(before)
    turn = read_turn(replace(question, messages=shown)) if shown else None
    key = turn.thread_key if turn else next(reversed([*state.threads]), "")
    known = state.threads.get(key)
    if known is None or not known.waits or (turn and turn.key != known.turn):
        return "", NEW_THREAD
    return key, replace(known.with_failures(turn) if turn else known, compacted=True)


def _check_turns(call: SessionCall, limits: SessionLimits, rules: SessionRules) -> None:
    """Check that the session may have this turn; only a new turn counts, not its further requests.

    Raises:
        APIError: the session has reached its limit of turns.
    """
    most, turns = stricter_limit(limits.max_turns, rules.max_turns), call.state.turns
    known = call.state.threads.get(call.thread)
    is_new = bool(call.thread) and (known is None or known.turn != call.before.turn)
    if most is not None and is_new and not call.replaces and turns + 1 > most:
        message = (
            f"This session has had {turns} turns and may have {most}: start a new session, or "
            "raise orchestration.session.max_turns or the key's limit."
        )
        raise _limit_error(message)


def rules_of_key(rules: SessionRules, permissions: KeyPermissions) -> SessionRules:
    """Return the settings of sessions, with the key's limits where these are stricter."""
    usd, turns = permissions.session_max_cost, permissions.session_max_turns
    if usd is None and turns is None:
        return rules
    return replace(
        rules,
        max_cost_usd=stricter_limit(rules.max_cost_usd, usd),
        max_turns=stricter_limit(rules.max_turns, turns),
    )


def _with_limit(plan: SessionPlan, question: Question) -> SessionPlan:
    """Return the plan with the run's dollars limited to what the session has left.

    Raises:
        APIError: the session's remaining dollars do not pay for any call. This is raised here, so
            that no stream has begun.
    """
    left = plan.call.state.left_usd(plan.call.max_cost_usd, plan.call.run)
    usd = plan.limits.usd
    if left is None or (usd is not None and usd <= left):
        return plan
    if least_call_usd(question, plan.served.pool, plan.limits.unknown) > left:
        raise plan.call.cost_error()
    plan.call.is_bound = True
    return replace(plan, limits=replace(plan.limits, usd=float(left)))


def _find_unpaid(plan: SessionPlan, question: Question) -> frozenset[WorkerId]:
    """Return the workers whose cheapest call already exceeds the run's limit in dollars."""
    usd, unknown = plan.limits.usd, plan.limits.unknown
    if usd is None:
        return frozenset()
    return frozenset(
        worker.id
        for worker in plan.served.pool
        if least_call_usd(question, Pool((worker,)), unknown) > Decimal(str(usd))
    )


def _is_conducted(served: ServedModel, call: ParsedCall) -> bool:
    """Return True for a request with tools to a conducted model, without its own workflow."""
    options = call.options
    if served.conductor is None or served.direct or not call.question.tools:
        return False
    return options.workflow is None and not options.dry_run


def _conduct_anew(
    plan: SessionPlan, conducting: Conducting, view: SessionView, *, most_rounds: int
) -> SessionPlan:
    """Return the plan of a new workflow by the conductor that the session has chosen.

    Args:
        plan: what would run without a session.
        conducting: the session's choice.
        view: the request.
        most_rounds: maximum number of rounds, of the request or else of the served model.
    """
    served = replace(plan.served, conductor=conducting.conductor, explore=None)
    if conducting.is_plain:
        limits = replace(plan.limits, steps=1, rounds=1)
        served = replace(served, direct=True)
        return replace(plan, served=served, limits=limits, resumed=None)
    revise = None if plan.call.consults else revise_actor(view)
    rounds = max(plan.limits.rounds, min(needed_rounds(conducting.conductor), most_rounds))
    limits = replace(plan.limits, rounds=rounds)
    return replace(plan, served=served, limits=limits, resumed=None, revise=revise)


def _planned_actor(resumed: ResumeState) -> WorkerId | None:
    """Return the worker of the last step of a paused workflow."""
    workflow = resumed.rounds[-1].workflow
    return workflow.steps[-1].worker if workflow is not None else None


def _is_one_call(resumed: ResumeState) -> bool:
    """Return True if the paused workflow is one call with the unchanged conversation."""
    workflow = resumed.rounds[-1].workflow
    return workflow is not None and len(workflow) == 1 and is_plain(workflow.steps[0])


def _with_reason(resumed: ResumeState, reason: str) -> ResumeState:
    *before, last = resumed.rounds
    if isinstance(last.decision, Plan):
        last = replace(last, decision=replace(last.decision, reason=reason))
    return replace(resumed, rounds=(*before, last))


def count_consultations(run: Run) -> int:
    """Return the number of calls of other models than the acting one: of advisers and conductors.

    In each round this is the number of steps other than the workflow's last, and one if a model
    drafted the workflow.
    """
    return sum(_consultations_of(round_) for round_ in run.rounds)


def _consultations_of(round_: Round) -> int:
    last = len(round_.workflow) - 1 if round_.workflow is not None else 0
    advised = sum(1 for step in round_.steps if step.index != last)
    return advised + bool(round_.decision.draft.usage.calls)


def note_acting(call: SessionCall | None, run: Run) -> ActingNote:
    """Return the worker that acted in the run, the one that it replaced, if any, and the reason."""
    step = run.answering_step
    acting = None if step is None else str(step.worker)
    before = call.before.acting if call is not None and call.acts else None
    has_switched = acting is not None and before is not None and before != acting
    return ActingNote(
        acting=acting,
        took_over_from=str(before) if has_switched else None,
        turn=(call.before.turn or None) if call is not None and call.thread else None,
        reason=_join_reasons(run),
    )


def _join_reasons(run: Run) -> str | None:
    """Return the reasons of all rounds' decisions, each once; None if there are none."""
    found = dict.fromkeys(round_.decision.reason for round_ in run.rounds)
    return "; ".join(filter(None, found))[:_LONGEST_REASON] or None
