"""Solvers on the engine: every method is executed by `conduct` and counted by its Run.

All calls and all tokens count, the conductor's own too. A served baseline, an evaluated system and
a conductor are all such solvers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from batuta.core import (
    Client,
    Conductor,
    Finish,
    Limits,
    Outcome,
    Pool,
    Question,
    Reply,
    Run,
    Sampling,
    WorkerId,
    solver,
)
from batuta.core.solver import RunCache, RunTests
from batuta.engine.context import RunHooks, RunSettings
from batuta.engine.finalize import reply_text
from batuta.engine.run_loop import conduct
from batuta.engine.samples import SAMPLING_TEMPERATURE


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverContext:
    """The workers that can be called, and what one answer may take."""

    pool: Pool
    clients: Mapping[WorkerId, Client]
    limits: Limits = Limits()
    settings: RunSettings = RunSettings()
    hooks: RunHooks = RunHooks()
    answer_cache: RunCache | None = None
    """Remembers what everybody said; None: they are asked each time."""
    run_tests: RunTests | None = None
    """Tries an answer on the tests that its question shows; None: nothing is executed."""

    def restrict_to(self, *worker_ids: WorkerId) -> SolverContext:
        """Return the context with these workers alone and no substitutes."""
        return replace(self, pool=self.pool.subset(worker_ids))

    def with_sampling(self, worker_id: WorkerId) -> SolverContext:
        """Return the context with the worker at the temperature at which several samples differ."""
        warm = Sampling(temperature=SAMPLING_TEMPERATURE)
        workers = (
            replace(worker, sampling=warm.with_defaults(worker.sampling))
            if worker.id == worker_id
            else worker
            for worker in self.pool
        )
        return replace(self, pool=Pool(tuple(workers)))


Solver: TypeAlias = solver.Solver[SolverContext]
"""A solver that the engine's context serves: all of Batuta's own are such."""


@dataclass(frozen=True, slots=True)
class ConductorSolver:
    """A conductor's workflow, executed to its end."""

    conductor: Conductor
    calls: int | None = None
    rounds: int = 1

    @property
    def name(self) -> str:
        """The conductor's name, and its rounds if there may be several."""
        several = f", {self.rounds} rounds" if self.rounds > 1 else ""
        return f"{self.conductor.name}{several}"

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Return the run; the workflow may have as many steps as the method needs."""
        rounds = self.rounds
        return await run_conductor(
            question,
            self.conductor,
            context=context,
            seed=seed,
            max_steps=self.calls,
            max_rounds=rounds,
            asks_anew=True,
        )


async def run_conductor(
    question: Question,
    conductor: Conductor,
    context: SolverContext,
    seed: int,
    max_steps: int | None = None,
    max_rounds: int = 1,
    *,
    asks_anew: bool = False,
) -> Run:
    """Return the run of `question` conducted.

    Args:
        question: what is asked.
        conductor: who writes the workflow.
        context: who can be called.
        seed: of the run.
        max_steps: in the place of the context's own limit; None: theirs.
        max_rounds: in the place of the context's own limit.
        asks_anew: whether somebody is asked the whole question where a last step fails: not
            where the method chooses among replies, for then a last step may be a mere check.
    """
    return await conduct(
        question,
        conductor,
        context.pool,
        context.clients,
        limits=replace(context.limits, steps=max_steps or context.limits.steps, rounds=max_rounds),
        seed=seed,
        settings=replace(context.settings, retry_whole_question=asks_anew),
        hooks=context.hooks,
    )


def round_replies(run: Run, number: int = 0) -> dict[int, Reply]:
    """Return the replies of a round by their steps' indices, in their order; failures left out."""
    steps = run.rounds[number].steps if number < len(run.rounds) else ()
    found = {step.index: step.result for step in steps if isinstance(step.result, Reply)}
    return dict(sorted(found.items()))


def with_final_reply(run: Run, reply: Reply | None) -> Run:
    """Return the run with `reply` for its answer; without any if there is none to choose.

    What the run itself ended with is no answer then: it may be a mere check.
    """
    if reply is None:
        return _without_answer(run)
    chosen = replace(run, answer=reply_text(reply), reply=reply, error=None, error_code=None)
    if run.outcome is Outcome.LIMITED:
        return chosen
    outcome = Outcome.DECLINED if reply.finish is Finish.DECLINED else Outcome.ANSWERED
    return replace(chosen, outcome=outcome, limit=None)


def _without_answer(run: Run) -> Run:
    """Return the run without the reply that it ended with."""
    if run.reply is None or run.outcome in {Outcome.WAITING, Outcome.FALLBACK}:
        return run
    nothing = replace(run, answer=None, reply=None, error="no worker gave an answer")
    if run.outcome is Outcome.LIMITED:
        return replace(nothing, error_code="limit")
    return replace(nothing, outcome=Outcome.FAILED, error_code="empty_reply")
