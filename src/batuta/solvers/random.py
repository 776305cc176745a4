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

SOLUTION, PLAN, FACTS = "solution", "plan", "facts"


@dataclass(frozen=True, slots=True)
class Deed:
    """What a step may be told to do."""

    words: str
    makes: str = SOLUTION
    solutions: int = 0
    """Solutions that it must be able to read, or the words have no object."""


DEEDS = (
    Deed("Solve the question"),
    Deed("Plan the steps", PLAN),
    Deed("Look up the facts", FACTS),
    Deed("Verify the solution", solutions=1),
    Deed("Repair the solution", solutions=1),
    Deed("Compare the solutions", solutions=2),
)
MANNERS = {"by the plan": PLAN, "from the facts": FACTS, "independently": None}
"""How, and what must have been read for it; most steps are not told."""
_WITH_MANNER = 0.15
_READS = 0.6
"""Chance that a step reads a certain earlier one."""
_ACCEPTS = 0.3
"""Chance that a later round lets the answer stand."""


def _random_deed(rng: Random, read: Sequence[str] = (), *, last: bool = False) -> Deed:
    """Any deed whose words have their object in what was read; the last one makes a solution."""
    solutions = read.count(SOLUTION)
    fitting = [d for d in DEEDS if d.solutions <= solutions and not (last and d.makes != SOLUTION)]
    return rng.choice(fitting)


def _random_subtask(rng: Random, deed: Deed, read: Sequence[str] = ()) -> str:
    """The deed as an instruction, now and then with a manner."""
    manners = [words for words, needs in MANNERS.items() if needs is None or needs in read]
    manner = f" {rng.choice(manners)}" if rng.random() < _WITH_MANNER else ""
    return f"{deed.words}{manner}."


def random_workflow(
    rng: Random, pool: Pool, max_steps: int = MAX_STEPS, *, revise: bool = False
) -> Workflow:
    """Any workflow of 1 to `max_steps` steps; with `revise`, some steps read the last round.

    Workers, number of steps, who reads whom, and what is done are left to chance; only that words
    mean something at their place is not: a solution is there before it is verified, and the last
    step answers.
    """
    steps: list[Step] = []
    made: list[str] = []
    count = rng.randint(1, max_steps)
    for index in range(count):
        previous = revise and rng.random() < _READS
        earlier = tuple(i for i in range(index) if previous or rng.random() < _READS)
        read = [made[i] for i in earlier] + [SOLUTION] * previous
        deed = _random_deed(rng, read, last=index == count - 1)
        made.append(deed.makes)
        worker = rng.choice(pool.workers).id
        steps.append(Step(_random_subtask(rng, deed, read), worker, earlier, previous=previous))
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
