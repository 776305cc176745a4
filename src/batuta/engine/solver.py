"""Solvers on the engine: every method is executed by `conduct`, and its Run accounts for all calls.

The conductor's own calls and tokens count too. Conductors, served baselines and the systems of an
evaluation are all solvers.
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
    """The workers that can be called, and the limits and settings of one answer."""

    pool: Pool
    clients: Mapping[WorkerId, Client]
    limits: Limits = Limits()
    settings: RunSettings = RunSettings()
    hooks: RunHooks = RunHooks()
    answer_cache: RunCache | None = None
    """Shares runs of the same question between solvers; None: every call is made."""
    run_tests: RunTests | None = None
    """Runs an answer's program on the tests in its question; None: nothing is executed."""

    def restrict_to(self, *worker_ids: WorkerId) -> SolverContext:
        """Return the context with only these workers, of which the pool must have at least one."""
        return replace(self, pool=self.pool.subset(worker_ids))

    def with_sampling(self, worker_id: WorkerId) -> SolverContext:
        """Return the context with the worker at a temperature that makes its samples differ."""
        sampling = Sampling(temperature=SAMPLING_TEMPERATURE)
        workers = (
            replace(worker, sampling=sampling.with_defaults(worker.sampling))
            if worker.id == worker_id
            else worker
            for worker in self.pool
        )
        return replace(self, pool=Pool(tuple(workers)))


Solver: TypeAlias = solver.Solver[SolverContext]
"""A solver that takes a SolverContext; all solvers of Batuta do."""


@dataclass(frozen=True, slots=True)
class ConductorSolver:
    """A solver that answers by a conductor's workflow."""

    conductor: Conductor
    calls: int | None = None
    """Maximum number of steps of a workflow, and so of calls in a round; None: the context's limit.
    """
    rounds: int = 1
    """Maximum number of rounds."""

    @property
    def name(self) -> str:
        """The conductor's name, and the number of rounds if more than one is allowed."""
        several = f", {self.rounds} rounds" if self.rounds > 1 else ""
        return f"{self.conductor.name}{several}"

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Return the run; its workflows have at most `calls` steps, if `calls` is set."""
        return await run_conductor(
            question,
            self.conductor,
            context=context,
            seed=seed,
            max_steps=self.calls,
            max_rounds=self.rounds,
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
    """Conduct `question` and return its run.

    Args:
        question: what is asked.
        conductor: writes the workflow.
        context: the workers, limits and settings.
        seed: the run's seed.
        max_steps: maximum number of steps; None: the context's limit.
        max_rounds: maximum number of rounds, in place of the context's limit.
        asks_anew: whether a worker is asked the whole question if a last step fails. False for
            methods that choose among replies, since their last step may be only a check.
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
    """Return a round's replies by step index, in order; empty if there is no such round.

    Failed steps are left out.
    """
    steps = run.rounds[number].steps if number < len(run.rounds) else ()
    replies = {step.index: step.result for step in steps if isinstance(step.result, Reply)}
    return dict(sorted(replies.items()))


def with_final_reply(run: Run, reply: Reply | None) -> Run:
    """Return the run with `reply` as its answer; if that is None, without an answer.

    With `reply` the run is answered, or declined as the reply says, unless a limit ended it.
    Without `reply` the run's own last reply is dropped, since it may be only a check; but a run
    that waits for tools, or that ended with the best worker's fallback answer, keeps its reply.
    """
    if reply is None:
        return _without_answer(run)
    chosen = replace(run, answer=reply_text(reply), reply=reply, error=None, error_code=None)
    if run.outcome is Outcome.LIMITED:
        return chosen
    outcome = Outcome.DECLINED if reply.finish is Finish.DECLINED else Outcome.ANSWERED
    return replace(chosen, outcome=outcome, limit=None)


def _without_answer(run: Run) -> Run:
    """Return the run without its last reply, unless it waits or ended as a fallback."""
    if run.reply is None or run.outcome in {Outcome.WAITING, Outcome.FALLBACK}:
        return run
    nothing = replace(run, answer=None, reply=None, error="no worker gave an answer")
    if run.outcome is Outcome.LIMITED:
        return replace(nothing, error_code="limit")
    return replace(nothing, outcome=Outcome.FAILED, error_code="empty_reply")
