"""Ensures that every step that runs a program has a program to run."""

from __future__ import annotations

from dataclasses import replace

from batuta.core import Pool, Step, Workflow
from batuta.core.worker import PROGRAM
from batuta.errors import WorkflowError

_FENCES = ("```", "~~~")


def provide_programs(workflow: Workflow, pool: Pool, question: str) -> Workflow:
    """Return the workflow in which each step that runs a program has access to one.

    The program is in a code block of the step's subtask or of the question, or in the reply of a
    model's step that is read. A step that reads no model's step gets access to all earlier ones.

    Args:
        workflow: the draft.
        pool: the workers; those that run programs have the tag `program`.
        question: the question's text.

    Raises:
        WorkflowError: no model's step comes before one that runs a program.
    """
    runs = [PROGRAM in pool[step.worker].tags for step in workflow.steps]
    if not any(runs) or _has_code(question):
        return workflow
    steps: list[Step] = []
    for index, step in enumerate(workflow.steps):
        written = [at for at in range(index) if not runs[at]]
        if not runs[index] or _has_code(step.subtask) or step.previous:
            steps.append(step)
        elif not written:
            raise WorkflowError(
                f"step {index} runs a program, and no step before it writes one: a model has to "
                f"write the program that {step.worker} runs"
            )
        elif set(written).isdisjoint(step.access):
            steps.append(replace(step, access=tuple(sorted({*step.access, *written}))))
        else:
            steps.append(step)
    return Workflow(tuple(steps))


def _has_code(text: str) -> bool:
    return any(fence in text for fence in _FENCES)
