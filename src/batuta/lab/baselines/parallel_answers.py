"""A workflow of several independent answers to the bare question."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.conductors import FixedConductor
from batuta.core import Question, Run, Step, WorkerId, Workflow
from batuta.engine.solver import SolverContext, run_conductor


def build_parallel_workflow(workers: Sequence[WorkerId]) -> Workflow:
    """Return a workflow in which each worker answers the question; the engine seeds every step."""
    return Workflow(tuple(Step(subtask="", worker=worker) for worker in workers))


async def ask_workers_in_parallel(
    name: str, question: Question, context: SolverContext, seed: int, *, workers: Sequence[WorkerId]
) -> Run:
    """Run a workflow that asks each of these workers as often as it is named."""
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
