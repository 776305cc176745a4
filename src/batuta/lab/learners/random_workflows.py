"""Random well-formed workflows.

The SFT warm-up teaches the syntax with them; evaluations compare a trained conductor with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from batuta.core import (
    MAX_STEPS,
    AcceptedAnswer,
    CallListener,
    Decision,
    Draft,
    Plan,
    PlanningContext,
    Pool,
    Step,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.language import render_workflow

SOLUTION, PLAN, FACTS = "solution", "plan", "facts"
"""The kinds of results of steps."""


@dataclass(frozen=True, slots=True)
class SubtaskTemplate:
    """A subtask that a step may have."""

    instruction: str
    produces: str = SOLUTION
    needed_solutions: int = 0
    """Minimum number of solutions that the step must read for the subtask to make sense."""


SUBTASK_TEMPLATES = (
    SubtaskTemplate("Solve the question"),
    SubtaskTemplate("Plan the steps", PLAN),
    SubtaskTemplate("Look up the facts", FACTS),
    SubtaskTemplate("Verify the solution", needed_solutions=1),
    SubtaskTemplate("Repair the solution", needed_solutions=1),
    SubtaskTemplate("Compare the solutions", needed_solutions=2),
)
FREE_PHRASINGS: Mapping[str, tuple[str, ...]] = {
    "Solve the question": (
        "Solve the question step by step",
        "Answer the question",
        "Work out the answer carefully",
        "Compute what is asked for",
        "Find the answer and show the working",
        "Determine the result",
        "Do the whole task and give the result",
        "Calculate the answer in small steps",
    ),
    "Plan the steps": (
        "Plan the steps without carrying them out",
        "Write a plan for the question",
        "Break the task down into steps",
        "List the steps that the answer takes",
        "Outline how to get to the answer",
        "Draft a short plan, no result yet",
    ),
    "Look up the facts": (
        "Look up the facts that the question needs",
        "State what you know about the things in the question",
        "Recall every fact that matters here",
        "Gather the facts first",
        "Retrieve what has to be known for this",
        "Collect the facts, do nothing else",
    ),
    "Verify the solution": (
        "Check the solution step by step",
        "Verify the answer and say whether it holds",
        "Review the solution critically",
        "Examine the working for mistakes",
        "Test the answer against the question",
        "Audit every step of the solution",
        "Validate the result",
    ),
    "Repair the solution": (
        "Correct the solution where it is wrong",
        "Repair what is wrong and give the final answer",
        "Improve the answer if need be",
        "Fix every mistake in the solution",
        "Revise the solution and state the result",
        "Refine the answer",
        "Mend the working and give the result",
    ),
    "Compare the solutions": (
        "Compare the answers and decide",
        "Choose the best of the answers",
        "Reconcile the solutions into one answer",
        "Decide which of the solutions is right",
        "Weigh the answers and give one",
        "Judge between the solutions",
    ),
}
"""Forty wordings of subtasks, by the plain wording."""
MANNER_PHRASES = {"by the plan": PLAN, "from the facts": FACTS, "independently": None}
"""Additions to a subtask, each with the kind of result that the step must read; None: no kind."""
_MANNER_RATE = 0.15
"""The probability of an addition."""
_READ_RATE = 0.6
"""The probability that a step reads a certain earlier step."""
_ACCEPT_RATE = 0.3
"""The probability that a later round accepts the answer."""


def _random_template(rng: Random, read: Sequence[str], *, last: bool) -> SubtaskTemplate:
    """Draw a subtask that makes sense after reading `read`; the last step produces a solution."""
    solutions = read.count(SOLUTION)
    fitting = [
        template
        for template in SUBTASK_TEMPLATES
        if template.needed_solutions <= solutions and (template.produces == SOLUTION or not last)
    ]
    return rng.choice(fitting)


def _random_subtask(
    rng: Random, template: SubtaskTemplate, read: Sequence[str], *, free: bool
) -> str:
    """Word the subtask, sometimes with an addition; `free` draws one of several wordings."""
    manners = [words for words, needs in MANNER_PHRASES.items() if needs is None or needs in read]
    manner = f" {rng.choice(manners)}" if rng.random() < _MANNER_RATE else ""
    if free:
        return f"{rng.choice(FREE_PHRASINGS[template.instruction])}{manner}."
    return f"{template.instruction}{manner}."


def random_workflow(
    rng: Random,
    pool: Pool,
    max_steps: int = MAX_STEPS,
    *,
    revise: bool = False,
    free: bool = False,
) -> Workflow:
    """Draw a workflow of 1 to `max_steps` steps.

    With `revise`, some steps read the previous round and all earlier steps. With `free`, subtasks
    are worded by `FREE_PHRASINGS`.

    Workers, number of steps, access lists and subtasks are random, but each subtask makes sense in
    its position: a solution exists before it is verified, and the last step answers.
    """
    steps: list[Step] = []
    made: list[str] = []
    count = rng.randint(1, max_steps)
    for index in range(count):
        previous = revise and rng.random() < _READ_RATE
        earlier = tuple(i for i in range(index) if previous or rng.random() < _READ_RATE)
        read = [made[i] for i in earlier] + [SOLUTION] * previous
        chosen = _random_template(rng, read, last=index == count - 1)
        made.append(chosen.produces)
        worker = rng.choice(pool.workers).id
        steps.append(
            Step(
                subtask=_random_subtask(rng, chosen, read, free=free),
                worker=worker,
                access=earlier,
                previous=previous,
            )
        )
    return Workflow(tuple(steps))


@dataclass(frozen=True, slots=True)
class RandomConductor:
    """A conductor that writes a random workflow, equal for equal contexts."""

    name: str = "random"

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan a random workflow, or in a later round sometimes accept the answer."""
        rng = Random(
            f"{context.seed} {context.sample} {len(context.previous)} {context.question.text}"
        )
        revise = bool(context.previous)
        if revise and rng.random() < _ACCEPT_RATE:
            return AcceptedAnswer()
        flow = random_workflow(rng, context.pool, context.max_steps, revise=revise)
        return Plan(flow, Draft(text=render_workflow(flow, context.pool, names=True)))
