"""Runs workflows whose steps answer the bare question independently."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.conductors import FixedConductor
from batuta.core import Question, Run, Step, WorkerId, Workflow
from batuta.engine.solver import SolverContext, run_conductor


def build_parallel_workflow(workers: Sequence[WorkerId]) -> Workflow:
    """Return a workflow in which each entry of `workers` answers the bare question in its own step.

    A worker may be named several times; the engine gives every step another seed.
    """
    return Workflow(tuple(Step(subtask="", worker=worker) for worker in workers))


async def sample_best_worker(
    name: str, question: Question, context: SolverContext, seed: int, *, samples: int
) -> Run:
    """Ask the pool's best worker the question `samples` times, at the temperature for samples."""
    who = context.pool.ranked()[0].id
    flow = build_parallel_workflow([who] * samples)
    return await run_conductor(
        question,
        FixedConductor(name, lambda _: flow),
        context=context.restrict_to(who).with_sampling(who),
        seed=seed,
        max_steps=samples,
    )


async def ask_workers_in_parallel(
    name: str, question: Question, context: SolverContext, seed: int, *, workers: Sequence[WorkerId]
) -> Run:
    """Run a workflow that asks each of these workers as often as it is named.

    If the context has a cache of runs, an equal run of the question is reused.
    """
    flow = build_parallel_workflow(workers)

    async def run_workflow() -> Run:
        return await run_conductor(
            question,
            FixedConductor(name, lambda _: flow),
            context=context,
            seed=seed,
            max_steps=len(flow),
        )

    if context.answer_cache is None:
        return await run_workflow()
    return await context.answer_cache.get_or_run((question.text, seed, *workers), run_workflow)
