"""Ensures that every step that runs a program has a program to run."""

from __future__ import annotations

from dataclasses import replace

from batuta.core import Pool, Step, Workflow
from batuta.core.worker import PROGRAM
from batuta.errors import WorkflowError

_FENCES = ("```", "~~~")


def provide_programs(workflow: Workflow, pool: Pool, question: str) -> Workflow:
    """Return the workflow in which each step that runs a program has access to one.

    The program is in a code block of the step's subtask or of the question, in the previous round,
    or in a reply that the step reads. A step without one gets access to all earlier steps that run
    no program.

    Args:
        workflow: the draft.
        pool: the workers; those that run programs have the tag `program`.
        question: the question's text.

    Raises:
        WorkflowError: a step runs a program, but there is none and no earlier step writes one.
    """
    runs = [PROGRAM in pool[step.worker].tags for step in workflow.steps]
    if not any(runs) or _has_code(question):
        return workflow
    steps: list[Step] = []
    for index, step in enumerate(workflow.steps):
        written = [at for at in range(index) if not runs[at]]
        needs_program = runs[index] and not _has_code(step.subtask) and not step.previous
        if needs_program and not written:
            raise WorkflowError(
                f"step {index} runs a program, and no step before it writes one: a model has to "
                f"write the program that {step.worker} runs"
            )
        access = step.access
        if needs_program and set(written).isdisjoint(access):
            access = tuple(sorted({*access, *written}))
        steps.append(replace(step, access=access))
    return Workflow(tuple(steps))


def _has_code(text: str) -> bool:
    return any(fence in text for fence in _FENCES)
