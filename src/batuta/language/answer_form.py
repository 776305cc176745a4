"""Corrects the end of drafted workflows so that the answer has the form that the question asks for.

Prompted conductors, above all small ones, forget that the last reply is returned unchanged. They
end with a program whose output is neither a choice nor code, or give a single model a subtask
("Identify the pronoun.") that hides what the question says about the form of its answer.
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
_MIN_OPTIONS = 2
_WANTS_CODE = re.compile(
    r"^[ \t]*(?:async )?def \w+\(|^[ \t]*assert \w+\("
    r"|\b(?:write|complete|implement)\b.{0,40}\b(?:function|program|class|method|code|script)\b",
    re.MULTILINE | re.IGNORECASE,
)


def answer_after_program(workflow: Workflow, pool: Pool, question: str, max_steps: int) -> Workflow:
    """Append a step in which a model answers from a program's output, if that is needed.

    If the question lists options or asks for code, a program's output is not an answer in the
    requested form. The last model of the workflow then answers, reading all earlier steps. A
    workflow without a model is returned unchanged.

    Args:
        workflow: the draft.
        pool: the workers; those that run programs have the tag `program`.
        question: the question's text.
        max_steps: maximum number of steps; a workflow that has as many is returned unchanged.
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
    """Return the workflow without its subtask if it is a single step of a language model."""
    if len(workflow) > 1 or not pool[workflow.steps[0].worker].is_model:
        return workflow
    return Workflow((Step(subtask="", worker=workflow.steps[0].worker),))


def lists_options(question: str) -> bool:
    """Return True if a question lists options by letter, including A."""
    letters = set(_OPTION.findall(question))
    return "A" in letters and len(letters) >= _MIN_OPTIONS
