"""Worked examples for the conductor's prompt, which name the pool's own workers.

Questions that need one, two, three and five steps show that the number of steps depends on the
question.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from batuta.core import Pool, Step, WorkerId, Workflow
from batuta.core.worker import PROGRAM
from batuta.language.parser import render_workflow

ALL = "all"
Read = tuple[int, ...] | str
"""The earlier steps that a step of an example reads; `ALL`: every earlier step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedExample:
    """A question, a workflow for it, and the reason for the workflow."""

    question: str
    reason: str
    roles: tuple[str, ...]
    """The role of each step's worker: a role of `cast_roles`, or `program`."""
    subtasks: tuple[str, ...]
    reads: tuple[Read, ...]


EXAMPLES = (
    WorkedExample(
        question="What is the capital of Australia?",
        reason="Simple recall: one call is enough, and a cheap model knows it.",
        roles=("cheap",),
        subtasks=("Answer the question in one word.",),
        reads=((),),
    ),
    WorkedExample(
        question="A train leaves at 9:40, stands for 25 minutes on the way and arrives at 13:05. "
        "For how long does it move?",
        reason="One slip would spoil it: a second call, best of another model, checks and repairs "
        "the first.",
        roles=("strong", "second"),
        subtasks=(
            "Solve the problem step by step.",
            "Check each step of the solution, repair what is wrong, and give the final answer.",
        ),
        reads=((), (0,)),
    ),
    WorkedExample(
        question="How many positive integers below 1000 are divisible by neither 6 nor 10?",
        reason="Two solutions that do not see each other show a mistake; a third model decides.",
        roles=("strong", "second", "third"),
        subtasks=(
            "Solve the problem step by step.",
            "Solve the problem by counting what must be excluded. Watch for double counting.",
            "Compare the two solutions, find the mistake, and give the final answer.",
        ),
        reads=((), (), (0, 1)),
    ),
    WorkedExample(
        question="Write a Python function that turns a date of the French Republican calendar "
        "into a Gregorian one.",
        reason="Hard, with facts to get right: the rules and the plan first, at the same time; "
        "then the code, a review by another model, and a final version that sees all of it.",
        roles=("second", "strong", "strong", "third", "strong"),
        subtasks=(
            "State the rules of that calendar: months, extra days, leap years, its first day.",
            "Plan the function: input, cases, errors. Do not write the code.",
            "Write the function according to the rules and the plan.",
            "Review the function against the rules. Name every fault with a date that shows it.",
            "Give the complete final function with every fault of the review repaired.",
        ),
        reads=((), (), (0, 1), (0, 2), ALL),
    ),
)


BRIEF_EXAMPLES = (
    WorkedExample(
        question="What is the capital of Australia?",
        reason="Easy.",
        roles=("cheap",),
        subtasks=("Answer the question.",),
        reads=((),),
    ),
    WorkedExample(
        question="Lena packs 12 boxes of 8 pears. She sells 30 pears and packs the rest in bags of "
        "6. How many bags does she fill?",
        reason="Needs arithmetic: solve it, then check it.",
        roles=("strong", "second"),
        subtasks=(
            "Solve the problem step by step.",
            "Check each step of the solution and give the final answer.",
        ),
        reads=((), (0,)),
    ),
    WorkedExample(
        question="Which one does not belong?\nOptions:\n(A) iron\n(B) oak\n(C) copper\n(D) zinc",
        reason="Needs reasoning.",
        roles=("strong",),
        subtasks=("Reason step by step, then give the answer as the question asks for it.",),
        reads=((),),
    ),
)
"""Examples for a small model: easy, arithmetic, reasoning."""
BRIEF_PROGRAM_EXAMPLE = replace(
    BRIEF_EXAMPLES[1],
    reason="Needs arithmetic: write a program, then run it.",
    roles=("strong", "program"),
    subtasks=("Write a Python program that calculates and prints the answer.", "Run the program."),
    reads=((), (0,)),
)
"""Replaces the arithmetic example if roles go by merit and the pool has a worker that runs code."""


PROGRAM_EXAMPLE = WorkedExample(
    question="How many positive integers below 1000 are divisible by neither 6 nor 10?",
    reason="A program counts without a mistake: a model writes it, the worker that runs code runs "
    "it, another model looks at what came out and answers.",
    roles=("strong", "program", "second"),
    subtasks=(
        "Write a short Python program that counts them and prints the count, in one code block.",
        "Run the program.",
        "Give the final answer from what the program printed; solve it yourself if it failed.",
    ),
    reads=((), (0,), (0, 1)),
)
"""Replaces the third example if roles go by merit and the pool has a worker that runs code."""


class DraftWriter(Protocol):
    """Writes an example's draft in the format that the conductor must use."""

    def __call__(self, workflow: Workflow, pool: Pool, thoughts: str) -> str:
        """Return the thoughts, then the workflow."""
        ...


def write_lists(workflow: Workflow, pool: Pool, thoughts: str) -> str:
    """Return the thoughts, then the three lists."""
    return f"{thoughts}\n{render_workflow(workflow, pool)}"


def worked_examples(
    pool: Pool,
    max_steps: int,
    *,
    by_merit: bool,
    brief: bool = False,
    write: DraftWriter = write_lists,
) -> str:
    """Return the examples that fit the step limit, numbered.

    Args:
        pool: the workers that the examples use.
        max_steps: maximum number of steps of a workflow; longer examples are left out.
        by_merit: whether the best workers get the roles. If not, the models get them by position,
            so that nothing is revealed about anonymous workers.
        brief: whether to use the examples for a small model.
        write: writes the drafts.
    """
    workers_by_role = cast_roles(pool) if by_merit else _first_numbers(pool)
    examples = list(BRIEF_EXAMPLES if brief else EXAMPLES)
    runs_code = next((worker.id for worker in pool if PROGRAM in worker.tags), None)
    if runs_code is not None and by_merit:
        workers_by_role["program"] = runs_code
        examples[1 if brief else 2] = BRIEF_PROGRAM_EXAMPLE if brief else PROGRAM_EXAMPLE
    fitting = [example for example in examples if len(example.roles) <= max_steps]
    return "\n\n".join(
        f"EXAMPLE {number}\nQuestion: {example.question}\n"
        f"{write(_example_workflow(example, workers_by_role), pool, example.reason)}"
        for number, example in enumerate(fitting, 1)
    )


def cast_roles(pool: Pool) -> dict[str, WorkerId]:
    """Return the worker of each role: the three best, and the one with the cheapest output.

    Without prices the weakest counts as the cheapest. In a small pool a worker may have several
    roles.
    """
    ranked = pool.ranked()
    priced = [(worker.price.output, worker) for worker in reversed(ranked) if worker.price]
    # A worker with an unknown price does not count as cheap.
    cheap = min(priced, key=lambda row: row[0])[1] if priced else ranked[-1]
    return _assign_roles([worker.id for worker in ranked], cheap.id)


def _first_numbers(pool: Pool) -> dict[str, WorkerId]:
    ids = [worker.id for worker in pool if worker.is_model]
    ids = ids or [worker.id for worker in pool]
    return _assign_roles(ids, ids[-1])


def _assign_roles(ids: list[WorkerId], cheap: WorkerId) -> dict[str, WorkerId]:
    roles = ("strong", "second", "third")
    return {"cheap": cheap} | {role: ids[i % len(ids)] for i, role in enumerate(roles)}


def _example_workflow(example: WorkedExample, workers_by_role: dict[str, WorkerId]) -> Workflow:
    rows = zip(example.roles, example.subtasks, example.reads, strict=True)
    return Workflow(
        tuple(
            Step(
                subtask=subtask,
                worker=workers_by_role[role],
                access=tuple(range(index)),
                previous=True,
            )
            if isinstance(read, str)
            else Step(subtask=subtask, worker=workers_by_role[role], access=read)
            for index, (role, subtask, read) in enumerate(rows)
        )
    )
