"""Prepares and executes calls of every dialect, whole, streamed or in the background.

`RunService.prepare_call` checks permissions and reserves money before anything is sent to the
client. `RunService.execute` runs the call, stores the run and settles its cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import final

import anyio

from batuta.conductors import FixedConductor
from batuta.conductors.sessions.patterns import ActingWorker
from batuta.core import EventHandler, Outcome, Run, RunId, WorkerId
from batuta.core.conductor import conductor_worker
from batuta.core.formatting import as_sentence
from batuta.engine import Recorder, RunHooks, RunSettings, conduct, new_run_id
from batuta.engine.approval_request import Approver
from batuta.engine.budget import Funds
from batuta.engine.solver import Solver, SolverContext
from batuta.errors import StoreError
from batuta.gateway.access.caller import Caller
from batuta.gateway.access.key_watch import KeyWatch
from batuta.gateway.access.rate_limit import RateLimiter
from batuta.gateway.errors import APIError, internal_error, log_exception
from batuta.gateway.serving.admission import AdmissionController, PreparedCall
from batuta.gateway.serving.answer_cache import (
    RepeatableCall,
    RepeatedAnswers,
    repeated_run,
    reply_deltas,
)
from batuta.gateway.serving.approvals import open_approver
from batuta.gateway.serving.capabilities import (
    check_chosen_answer,
    check_response_format,
    enforce_response_format,
)
from batuta.gateway.serving.cost_bound import FirstCallsCost, bound_first_calls
from batuta.gateway.serving.explore import Explorer, mark_explored, note_spent
from batuta.gateway.serving.models import Catalogue, ServedModel
from batuta.gateway.serving.parsed_call import ORCHESTRATION_FIELD, ParsedCall, session_id
from batuta.gateway.serving.prepare import (
    COMPACTION,
    CallPreparer,
    PlanEstimate,
    find_served_model,
    load_served_model,
)
from batuta.gateway.serving.session_call import (
    SessionKeeper,
    SessionPlan,
    note_acting,
    rules_of_key,
)
from batuta.gateway.serving.session_funds import SessionFunds
from batuta.gateway.serving.shadow import ShadowRuns
from batuta.gateway.serving.tenant_memory import (
    CallMemory,
    ConversationWorkers,
    LocalSessions,
    SessionMemory,
)
from batuta.gateway.serving.uploaded_files import NO_FILES_KEPT, UploadedFiles
from batuta.gateway.serving.waiting_runs import PendingToolRuns
from batuta.gateway.telemetry.metrics import Metrics
from batuta.gateway.telemetry.spans import RunSpanExporter
from batuta.guardrails import GuardrailStage, describe_block
from batuta.offload.threads import read_off_loop
from batuta.store import Store
from batuta.store.responses import run_id_of


def seed_of(run_id: RunId) -> int:
    """Return a 31-bit seed derived from the run's id, which is the same when the run is resumed."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4]) >> 1


def _first_calls_cost(prepared: PreparedCall) -> FirstCallsCost:
    """Return an upper bound on the cost of the run's first calls; zero for a cached answer."""
    if prepared.earlier is not None:
        return FirstCallsCost(Decimal(0), Decimal(0))
    served, pool = prepared.served_model, prepared.pool
    acts = served.conductor.worker if isinstance(served.conductor, ActingWorker) else None
    return bound_first_calls(
        prepared.call.question,
        pool,
        prepared.limits,
        direct=served.direct,
        acting=pool[acts] if acts is not None and acts in pool else None,
        conductor_worker=conductor_worker(served.conductor),
    )


@final
class RunService:
    """Prepares calls, runs them and records their runs."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        store: Store | None,
        rate_limiter: RateLimiter,
        pending_tool_runs: PendingToolRuns,
        metrics: Metrics,
        span_exporter: RunSpanExporter | None = None,
        answer_cache: RepeatedAnswers | None = None,
        sessions: SessionMemory | None = None,
        files: UploadedFiles = NO_FILES_KEPT,
        key_watch: KeyWatch | None = None,
    ) -> None:
        """Connect the parts that execute and record runs.

        Args:
            catalogue: the workers and the models.
            store: stores the runs and the budgets; None: nothing is stored.
            rate_limiter: counts the requests, tokens and concurrent runs of each key.
            pending_tool_runs: the runs paused on their clients' tools.
            metrics: counts each run.
            span_exporter: exports the spans of runs; None: spans are not exported.
            answer_cache: the cache of answers; None: answers are not cached.
            sessions: the states of sessions; None: a new memory of this process.
            files: the uploaded files.
            key_watch: cancels the runs of keys that are no longer valid; None: such runs continue.
        """
        self._catalogue = catalogue
        self._conversations = ConversationWorkers()
        self.before_calls = CallMemory()
        """The reasoning and results that preceded clients' tool calls; deleted with their runs."""
        self._files = files
        self.key_watch = key_watch or KeyWatch(None)
        """Cancels the work of keys that are no longer valid."""
        self._preparer = CallPreparer(catalogue, self._conversations, files)
        self._store = store
        self._admission = AdmissionController(store, rate_limiter)
        self._pending_tool_runs = pending_tool_runs
        self._metrics = metrics
        self._span_exporter = span_exporter
        self._answer_cache = answer_cache
        self._explorer = Explorer(store)
        self.shadows = ShadowRuns(store, lambda: catalogue.session_rules)
        self._session_memory = LocalSessions() if sessions is None else sessions
        self._sessions = SessionKeeper(self._session_memory)

    def find_model(self, name: str) -> ServedModel:
        """Return the served model of this name, worker id or alias.

        Raises:
            APIError: there is no such model.
        """
        return find_served_model(self._catalogue, name)

    def estimate_plan(self, call: ParsedCall, caller: Caller) -> PlanEstimate:
        """Estimate the workflow that the request contains, without calling a worker or charging.

        Raises:
            APIError: the request contains no workflow, or one that may not run.
        """
        return self._preparer.estimate_plan(call, caller, self._call_seconds)

    @asynccontextmanager
    async def prepare_call(
        self,
        call: ParsedCall,
        caller: Caller,
        *,
        run_id: RunId | None = None,
        in_background: bool = False,
        already_counted: bool = False,
        durable: bool = False,
    ) -> AsyncGenerator[PreparedCall]:
        """Yield a prepared and admitted call, to be executed at most once within the block.

        Args:
            call: the call.
            caller: the caller.
            run_id: the run's id if a job runs the call, which is then neither cached nor explored;
                None: a new id.
            in_background: whether a job runs the call; `KeyLimitGate` then counts the job instead.
            already_counted: whether the rate limits counted the call when it was submitted.
            durable: whether another process resumes the run if this one dies.

        Raises:
            APIError: the call cannot run; nothing was executed or sent to the client.
            StoreError: the database fails, and the call needs it.
        """
        call = await self._complete_call(call, caller)
        # No await between these two: a reload of the settings would unload the method again.
        await load_served_model(self._catalogue, call.model)
        prepared_call = self._preparer.prepare(call, caller, run_id or new_run_id())
        kind = prepared_call.auxiliary
        is_kept = not call.options.dry_run and kind is None
        await self._begin_in_session(
            prepared_call, call, caller.tenant, is_kept=is_kept, compacts=kind == COMPACTION
        )
        if is_kept and call.question.has_tool_results:
            resumed = await self._pending_tool_runs.find_resumed(
                call.question, prepared_call.pool, caller.tenant
            )
            if resumed is not None:
                prepared_call = replace(prepared_call, resumed=resumed)
        if run_id is None:  # background calls are neither cached nor explored
            prepared_call = await self._find_earlier(prepared_call)
            if prepared_call.served_model.explore is not None:
                prepared_call = await self._choose_arm(prepared_call)
        admission = prepared_call.admission
        try:
            prepared_call = self._conduct_in_session(prepared_call, call)
            await self._admission.admit(
                caller,
                call,
                admission,
                partial(_first_calls_cost, prepared_call),
                in_background=in_background,
                already_counted=already_counted,
                durable=durable,
            )
            try:
                # Checked last: a caller without permission must not cost this work.
                if call.question.response_format is not None:
                    await check_response_format(call.question)
                yield await self._check_workflow(prepared_call)
            except APIError:
                admission.is_durable = False  # a refused job is never resumed: release its money
                await self._admission.give_back_tokens(admission)
                raise
            finally:
                await self._admission.release(caller, admission)
        finally:
            if prepared_call.chosen is not None:
                await self._explorer.settle(prepared_call.chosen)

    async def _complete_call(self, call: ParsedCall, caller: Caller) -> ParsedCall:
        """Return the call with the caller's files, and with what `CallMemory.fill_in` adds."""
        if call.server_tools or call.question.needed_tags:
            call = await self._files.bind(call, caller)
        question = self.before_calls.fill_in(call.question, caller.tenant)
        return call if question is call.question else replace(call, question=question)

    async def _begin_in_session(
        self,
        prepared: PreparedCall,
        call: ParsedCall,
        tenant: str,
        *,
        is_kept: bool,
        compacts: bool,
    ) -> None:
        """Add the call to its session, if it has one; see `SessionKeeper.begin`.

        Raises:
            APIError: the session has reached a limit.
        """
        session = await self._find_session(call, tenant)
        if session is None:
            return
        rules = rules_of_key(self._catalogue.session_rules, prepared.caller.permissions)
        begun = await self._sessions.begin(
            call,
            tenant,
            session,
            rules,
            is_kept=is_kept,
            compacts=compacts,
            run=prepared.run_id,
        )
        prepared.session, prepared.in_session = session, begun

    def _conduct_in_session(self, prepared: PreparedCall, call: ParsedCall) -> PreparedCall:
        """Return the call with the conductor and limits that its session chooses."""
        if prepared.in_session is None or prepared.earlier is not None:
            return prepared
        served = prepared.served_model
        if served.pool is not prepared.pool:
            served = replace(served, pool=prepared.pool)
        plan = SessionPlan(
            call=prepared.in_session,
            served=served,
            limits=prepared.limits,
            resumed=prepared.resumed,
        )
        conducted = self._sessions.conduct(plan, call, self._catalogue.session_rules)
        if conducted is plan:
            return prepared
        return replace(
            prepared,
            served_model=conducted.served,
            limits=conducted.limits,
            resumed=conducted.resumed,
            revise=conducted.revise,
        )

    async def _find_session(self, call: ParsedCall, tenant: str) -> str | None:
        """Return the id of the call's session; None for a request for embeddings.

        This is the session that the request names, else the one of the previous response, else one
        derived from the beginning of the conversation.
        """
        if call.embeds:
            return None
        if call.previous and not call.session and self._store is not None:
            found = await self._store.find_session(run_id_of(call.previous), tenant)
            if found is not None:
                return found
        named = partial(session_id, tenant, call.session, call.question)
        return await read_off_loop(call.question.messages, named)

    async def _choose_arm(self, prepared: PreparedCall) -> PreparedCall:
        """Return the call with the arm that exploration has chosen, if any."""
        served, call = prepared.served_model, prepared.call
        plain = self._catalogue.find_model(served.name)
        if served.explore is None or plain is None or served.conductor is not plain.conductor:
            return prepared  # the conversation is kept on another worker
        if prepared.earlier or prepared.resumed or call.options.dry_run:
            return prepared
        chosen = await self._explorer.choose(
            served,
            call.question,
            prepared.pool,
            limits=prepared.limits,
            run_id=prepared.run_id,
            seed=seed_of(prepared.run_id),
        )
        if chosen is None:
            return prepared
        limits = prepared.limits
        if chosen.usd is not None:
            limits = replace(limits, usd=chosen.usd)
        served = replace(served, conductor=chosen.conductor)
        return replace(prepared, served_model=served, limits=limits, chosen=chosen)

    async def _find_earlier(self, prepared: PreparedCall) -> PreparedCall:
        """Return the call; if it may be cached, with its cache key and any cached answer."""
        cache, call, served = self._answer_cache, prepared.call, prepared.served_model
        options = call.options
        # Answers from tools and files are not cached: the web changes, and files differ by caller.
        has_sources = bool(call.server_tools or call.files)
        may_cache = call.store and options.cache is not False and not has_sources
        if cache is None or not may_cache or not cache.may_repeat(call.question.sampling):
            return prepared
        if options.trace or options.dry_run or prepared.resumed is not None:
            return prepared
        if prepared.min_confidence is not None:
            return prepared
        author = served.conductor.name if served.conductor else served.name
        repeatable = RepeatableCall(
            tenant=prepared.caller.tenant,
            model=served.name,
            question=call.question,
            pool=prepared.pool,
            limits=prepared.limits,
            conductor=author if options.workflow is None else repr(options.workflow),
            guardrails=(*prepared.guardrails.names, *map(repr, prepared.rules.rules)),
        )
        found = await cache.find(repeatable)
        return replace(prepared, repeatable=repeatable, earlier=found.run, cache_result=found.kind)

    async def _check_workflow(self, prepared_call: PreparedCall) -> PreparedCall:
        """Return the call; the guardrails may change the workflow that its request contains.

        Raises:
            APIError: a guardrail blocks the workflow.
        """
        workflow = prepared_call.call.options.workflow
        if workflow is None or GuardrailStage.INPUT not in prepared_call.guardrails.stages:
            return prepared_call
        clean, acts, blocked = await prepared_call.guardrails.check_workflow(workflow)
        if blocked:
            message = as_sentence(describe_block(blocked, acts, "this workflow"))
            raise APIError(400, "policy_blocked", message, param=f"{ORCHESTRATION_FIELD}.workflow")
        by_hand = FixedConductor("by-hand", lambda _: clean)
        served = replace(prepared_call.served_model, conductor=by_hand)
        acts = (*prepared_call.guarded, *acts)
        return replace(prepared_call, served_model=served, guarded=acts)

    async def execute(self, prepared: PreparedCall, emit: EventHandler | None = None) -> Run:
        """Execute and store the run.

        A cancelled run is stored too, unless another process will resume it.

        Raises:
            APIError: the caller's key became invalid, which has cancelled the run.
            StoreError: a durable run cannot be stored.
        """
        key = prepared.caller.shown_key
        if key is None:
            return await self._execute(prepared, emit)
        with self.key_watch.watch(key) as work:
            prepared.admission.key_work = work
            return await self._execute(prepared, emit)
        # The scope was cancelled: the key is no longer valid, so the run is never resumed.
        prepared.admission.is_durable = False
        raise work.refusal or internal_error()

    async def _execute(self, prepared: PreparedCall, emit: EventHandler | None) -> Run:
        if prepared.earlier is not None:
            return await self._repeat_answer(prepared, prepared.earlier, emit)
        recorder = Recorder()
        question, served = prepared.call.question, prepared.served_model
        if served.solver is not None:
            return await self._execute_solver(prepared, served.solver, emit)
        assert served.conductor is not None  # noqa: S101 - a model has a solver or a conductor
        try:
            run = await conduct(
                question,
                served.conductor,
                prepared.pool,
                prepared.clients,
                limits=prepared.limits,
                seed=question.sampling.seed,
                resumed=prepared.resumed,
                settings=self._run_settings(prepared),
                hooks=RunHooks(
                    run_id=prepared.run_id,
                    model=served.name,
                    emit=self._metrics.time_first_token(served.name, emit)
                    if prepared.call.stream
                    else emit,
                    recorder=recorder,
                    funds=self._funds_of(prepared),
                    guarded=prepared.guarded,
                    latency=self._call_seconds,
                    revise=prepared.revise,
                    approve=self._open_approver(prepared),
                ),
            )
            return run if prepared.chosen is None else mark_explored(prepared.chosen, run)
        finally:
            if recorder.ended is not None:
                run = recorder.run()
                if prepared.chosen is not None:
                    run = mark_explored(prepared.chosen, run)
                await self._store_run(prepared, run)
                await self._forget_edits(prepared, run)

    async def _forget_edits(self, prepared: PreparedCall, run: Run) -> None:
        """Delete the edited plans of a finished run; if the database fails, they expire later."""
        if self._store is None or not prepared.approvals:
            return
        if run.outcome is Outcome.CANCELLED and prepared.will_resume():
            return
        with anyio.CancelScope(shield=True):
            try:
                await self._store.approvals.forget_steps(run.id)
            except StoreError as error:
                log_exception(error)

    def _open_approver(self, prepared: PreparedCall) -> Approver | None:
        """Return the approver of the call's plans; None if no approval is needed."""
        if not prepared.approvals:
            return None
        return open_approver(self._store, prepared, self._catalogue.approval_webhook)

    def _funds_of(self, prepared: PreparedCall) -> Funds | None:
        """Return the budgets that the run draws on besides its own limit, if any."""
        budget, session = prepared.admission.reserved_budget, prepared.in_session
        if session is None or session.max_cost_usd is None:
            return budget
        return SessionFunds(self._session_memory, session, budget)

    def _run_settings(self, prepared: PreparedCall) -> RunSettings:
        return RunSettings(
            fallback=prepared.served_model.fallback,
            timeouts=self._catalogue.timeout_policy,
            guardrails=prepared.guardrails,
            live=prepared.can_stream,
            dry_run=prepared.call.options.dry_run,
            plan_rules=prepared.rules,
            tool_classes=self._catalogue.session_rules.tool_classes,
            confidence=self._catalogue.confidence,
            min_confidence=prepared.min_confidence,
            approvals=prepared.approvals,
        )

    async def flush_runs(self) -> None:
        """Wait until every finished run is in the database with its cost.

        Raises:
            StoreError: the database fails.
        """
        if self._store is not None:
            await self._store.flush()

    def _call_seconds(self, worker_id: WorkerId) -> float | None:
        """Return the moving average of the seconds of the worker's calls; None if unknown."""
        health = self._catalogue.health.get(worker_id)
        return health.seconds if health else None

    async def _execute_solver(
        self, prepared: PreparedCall, solver: Solver, emit: EventHandler | None
    ) -> Run:
        """Execute the solver and store its run, even if this coroutine is cancelled."""
        original, recorder, guardrails = prepared.call.question, Recorder(), prepared.guardrails
        question, acts, forbidden = await guardrails.check_question(original)
        hooks = RunHooks(
            run_id=prepared.run_id,
            model=prepared.served_model.name,
            emit=emit,
            recorder=recorder,
            funds=self._funds_of(prepared),
            guarded=(*prepared.guarded, *(() if forbidden else acts)),
        )
        solver_context = SolverContext(
            pool=prepared.pool,
            clients=prepared.clients,
            limits=prepared.limits,
            settings=RunSettings(guardrails=guardrails, plan_rules=prepared.rules),
            hooks=hooks,
        )
        seed = question.sampling.seed
        if seed is None:  # a run resumed after a crash needs the same seed
            seed = seed_of(prepared.run_id)
        run: Run | None = None
        try:
            run = await solver.answer(original if forbidden else question, solver_context, seed)
            run = await enforce_response_format(await check_chosen_answer(run, guardrails))
            return run
        finally:
            if recorder.ended is not None:
                await self._store_run(prepared, run or recorder.run())

    async def _repeat_answer(
        self, prepared: PreparedCall, earlier: Run, emit: EventHandler | None
    ) -> Run:
        """Return a new run with the cached answer, without calling a worker."""
        # An equal question is taken from the earlier run, in which guardrails may have changed it.
        is_similar = prepared.cache_result == "similar"
        question = prepared.call.question if is_similar else earlier.header.question
        run = repeated_run(earlier, prepared.run_id, question)
        if emit is not None and prepared.can_stream and run.reply is not None:
            for event in reply_deltas(run.reply):
                await emit(event)
        await self._store_run(prepared, run)
        return run

    async def _store_run(self, prepared: PreparedCall, run: Run) -> None:
        """Store the run and settle its cost, unless another process will resume the run.

        Raises:
            StoreError: a durable run cannot be stored. For other runs the error is only logged, so
                that the answer is still returned.
        """
        if run.outcome is Outcome.CANCELLED and prepared.will_resume():
            return  # the run is not over: its job keeps the finished steps
        self._report_run(prepared, run)
        caller = prepared.caller
        with anyio.CancelScope(shield=True):
            if run.outcome is Outcome.WAITING:
                is_kept = prepared.call.store
                await self._pending_tool_runs.add(run, caller.tenant, is_kept=is_kept)
            await self._admission.count_tokens(caller, prepared.admission, run)
            alone_usd = self._estimate_alone(prepared, run)
            if prepared.in_session is not None:
                await self._sessions.end(prepared.in_session, run)
            if self._store is not None:
                await self._append_run(self._store, prepared, run, alone_usd)

    async def _append_run(
        self, store: Store, prepared: PreparedCall, run: Run, alone_usd: Decimal | None
    ) -> None:
        """Append the run to the store; then offer it to the shadow runs and to the cache.

        Raises:
            StoreError: a durable run cannot be stored.
        """
        admission = prepared.admission
        try:
            await store.append(
                run,
                prepared.caller.tenant,
                keep=prepared.call.store,
                charge=admission.final_charge,
                session=prepared.session,
                labels=prepared.call.labels,
                alone_usd=alone_usd,
                acted=note_acting(prepared.in_session, run),
            )
        except StoreError as error:
            if admission.is_durable:
                raise  # its job has not ended, and will resume from the finished steps
            log_exception(error)
            return
        admission.is_settled = True
        if self._catalogue.session_rules.shadow_share:
            self.shadows.offer(prepared, run, self._run_settings(prepared))
        cache, repeatable = self._answer_cache, prepared.repeatable
        if cache is not None and repeatable is not None and prepared.earlier is None:
            await cache.keep(repeatable, run)

    def _estimate_alone(self, prepared: PreparedCall, run: Run) -> Decimal | None:
        """Estimate the dollars that the best worker alone would have cost; None if not possible."""
        session, call = prepared.in_session, prepared.call
        if session is None or prepared.earlier is not None or call.options.dry_run:
            return None
        rules = self._catalogue.session_rules
        return self._sessions.estimate_alone(session, run, call.question, prepared.pool, rules)

    def _report_run(self, prepared: PreparedCall, run: Run) -> None:
        """Report the run to exploration, metrics, spans and the memories of conversations."""
        tenant = prepared.caller.tenant
        if prepared.chosen is not None:
            note_spent(prepared.chosen, run)
        self.before_calls.note_run(run, tenant, prepared.pool)
        self._metrics.count_run(run, tenant)
        if self._span_exporter is not None:
            self._span_exporter.export_run(run, tenant)
        if prepared.served_model.direct and len(prepared.pool) > 1:
            planned = prepared.pool.ranked()[0].id
            self._conversations.note_worker(run, tenant, planned)
