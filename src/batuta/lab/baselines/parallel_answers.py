"""Several answers to the bare question at the same time, as a workflow."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.conductors import FixedConductor
from batuta.core import Question, Run, Step, WorkerId, Workflow
from batuta.engine.solver import SolverContext, run_conductor


def build_parallel_workflow(workers: Sequence[WorkerId]) -> Workflow:
    """Each answers the question as it stands; the engine gives every step a seed of its own."""
    return Workflow(tuple(Step(subtask="", worker=worker) for worker in workers))


async def ask_workers_in_parallel(
    name: str, question: Question, context: SolverContext, seed: int, *, workers: Sequence[WorkerId]
) -> Run:
    """The run of a workflow in which each of these workers is asked as often as it is named.

    Args:
        name: of the method.
        question: what is asked.
        context: who can be called.
        seed: of the run.
        workers: who is asked.
    """
    flow = build_parallel_workflow(workers)

    async def asked() -> Run:
        return await run_conductor(
            question,
            FixedConductor(name, lambda _: flow),
            context=context,
            seed=seed,
            max_steps=len(flow),
        )

    if context.answer_cache is None:
        return await asked()
    return await context.answer_cache.get_or_run((question.text, seed, *workers), asked)
