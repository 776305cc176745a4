"""Random well-formed workflows: what a conductor writes before it has learned anything.

The warm start teaches the syntax from these, and evaluation holds a trained conductor against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from batuta.core import (
    MAX_STEPS,
    Accepted,
    Brief,
    Decision,
    Draft,
    Listener,
    Plan,
    Pool,
    Step,
    Workflow,
)
from batuta.core.conductor import SILENT
from batuta.language import render

DEEDS = (
    "Solve the question",
    "Plan the steps",
    "Look up the facts",
    "Verify the solution",
    "Repair the solution",
    "Compare the solutions",
)
"""What a step may be told to do."""
MANNERS = ("by the plan", "from the facts", "independently")
"""How; most steps are not told."""
_WITH_MANNER = 0.1
_READS = 0.6
"""Chance that a step reads a certain earlier one."""
_ACCEPTS = 0.3
"""Chance that a later round lets the answer stand."""


def random_subtask(rng: Random, deeds: Sequence[str] = DEEDS) -> str:
    """An instruction; whether it makes sense at its place is left to chance."""
    manner = f" {rng.choice(MANNERS)}" if rng.random() < _WITH_MANNER else ""
    return f"{rng.choice(deeds)}{manner}."


def random_workflow(
    rng: Random, pool: Pool, max_steps: int = MAX_STEPS, *, revise: bool = False
) -> Workflow:
    """Any workflow of 1 to `max_steps` steps; with `revise`, some steps read the last round."""
    steps: list[Step] = []
    for index in range(rng.randint(1, max_steps)):
        previous = revise and rng.random() < _READS
        earlier = (i for i in range(index) if previous or rng.random() < _READS)
        worker = rng.choice(pool.workers).id
        steps.append(Step(random_subtask(rng), worker, tuple(earlier), previous=previous))
    return Workflow(tuple(steps))


@dataclass(frozen=True, slots=True)
class RandomWorkflows:
    """A conductor that writes a random workflow; the same one for the same seed."""

    name: str = "random"

    async def plan(self, brief: Brief, listener: Listener = SILENT) -> Decision:
        """The workflow; in a later round the answer stands now and then."""
        rng = Random(f"{brief.seed} {brief.sample} {len(brief.previous)} {brief.question.text}")
        revise = bool(brief.previous)
        if revise and rng.random() < _ACCEPTS:
            return Accepted()
        flow = random_workflow(rng, brief.pool, brief.max_steps, revise=revise)
        return Plan(flow, Draft(render(flow, brief.pool, names=True)))
