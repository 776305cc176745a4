"""Several answers to the bare question at the same time, as a workflow."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.baselines.solver import Players, play
from batuta.core import Question, Run, Step, WorkerId, Workflow
from batuta.solvers import Fixed


def sampled(workers: Sequence[WorkerId]) -> Workflow:
    """Each answers the question as it stands; the engine gives every step a seed of its own."""
    return Workflow(tuple(Step("", worker) for worker in workers))


async def everybody(
    name: str, question: Question, players: Players, seed: int, workers: Sequence[WorkerId]
) -> Run:
    """The run of a workflow in which each of these workers is asked as often as it is named.

    Args:
        name: of the method.
        question: what is asked.
        players: who can be called.
        seed: of the run.
        workers: who is asked.
    """
    flow = sampled(workers)

    async def asked() -> Run:
        return await play(question, Fixed(name, lambda _: flow), players, seed, len(flow))

    if players.chorus is None:
        return await asked()
    return await players.chorus.run((question.text, seed, *workers), asked)
