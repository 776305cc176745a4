"""The rules of a drafted workflow's end: its answer has the form that the question asks for.

A prompted conductor, a small one above all, forgets that the last reply is returned as it is: it
ends with a program whose output is no choice and no code, or gives the one model that it calls a
subtask ("Identify the pronoun.") which takes the place of what the question says of its answer.
"""

from __future__ import annotations

import re

from batuta.core import Pool, Step, Workflow
from batuta.core.worker import PROGRAM

ANSWER_FROM_OUTPUT = (
    "Give the final answer in the form that the question asks for; use what the program printed "
    "where it helps."
)
"""The subtask of the model that answers after a program."""
_OPTION = re.compile(r"^[ \t]*(?:[-*][ \t]*)?\(?([A-H])[).:][ \t]*\S", re.MULTILINE)
_LEAST_OPTIONS = 2
_WANTS_CODE = re.compile(
    r"^[ \t]*(?:async )?def \w+\(|^[ \t]*assert \w+\("
    r"|\b(?:write|complete|implement)\b.{0,40}\b(?:function|program|class|method|code|script)\b",
    re.MULTILINE | re.IGNORECASE,
)


def answer_after_program(workflow: Workflow, pool: Pool, question: str, max_steps: int) -> Workflow:
    """Return the workflow in which a model answers what a program's output does not answer.

    Where the question lists options or asks for code, what a program prints is not the answer in
    the form that is wanted. The model that wrote for the program then answers, from all before it.

    Args:
        workflow: as it was drafted.
        pool: its workers that run programs have the tag `program`.
        question: what is asked.
        max_steps: a workflow that has as many stays as it is.
    """
    steps = workflow.steps
    if PROGRAM not in pool[steps[-1].worker].tags or len(steps) >= max_steps:
        return workflow
    models = [step.worker for step in steps if pool[step.worker].is_model]
    if not models or not (lists_options(question) or _WANTS_CODE.search(question)):
        return workflow
    reads = tuple(range(len(steps)))
    return Workflow((*steps, Step(subtask=ANSWER_FROM_OUTPUT, worker=models[-1], access=reads)))


def ask_single_plainly(workflow: Workflow, pool: Pool) -> Workflow:
    """Return the workflow that asks a model that is called alone the question as it stands."""
    if len(workflow) > 1 or not pool[workflow.steps[0].worker].is_model:
        return workflow
    return Workflow((Step(subtask="", worker=workflow.steps[0].worker),))


def lists_options(question: str) -> bool:
    """Tell whether a question lists options by letters, A among them."""
    letters = set(_OPTION.findall(question))
    return "A" in letters and len(letters) >= _LEAST_OPTIONS
