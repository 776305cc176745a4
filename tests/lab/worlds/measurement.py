"""Measures the world: one fixed workflow near the best everywhere would teach nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from batuta.core import Task, Workflow
from batuta.lab.worlds import hand_written_conductor
from batuta.lab.worlds.grammar import question_families
from batuta.lab.worlds.pools import rehearsal_pool
from batuta.lab.worlds.seeded_random import seeded_generator
from batuta.lab.worlds.tasks import HELD_OUT_FAMILY, TRAINING_FAMILIES, draw_tasks
from lab.worlds.workflow_search import (
    WorkflowWriter,
    build_workflow,
    hand_written_writer,
    measure_accuracy,
    random_workflow,
    single_worker_workflow,
)

ALL_FAMILIES = (*TRAINING_FAMILIES, HELD_OUT_FAMILY)
BANDS = ((1, 2), (3, 4), (5, 6))
"""Easy, medium and hard."""

FamilyBand = tuple[str, int]
"""A family and the number of a band."""


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One line of the table: a way of answering and its accuracy in every cell."""

    name: str
    cells: Mapping[FamilyBand, float]

    def family(self, name: str) -> float:
        """Mean over the bands of a family."""
        return _mean_value(v for (family, _), v in self.cells.items() if family == name)

    def band(self, number: int) -> float:
        """Mean over the families of a band."""
        return _mean_value(v for (_, band), v in self.cells.items() if band == number)

    @property
    def overall(self) -> float:
        """Mean over everything."""
        return _mean_value(self.cells.values())


def _mean_value(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


QuestionsByCell = Mapping[FamilyBand, Sequence[Task]]


def draw_questions(per_cell: int, seed: int) -> QuestionsByCell:
    """Fresh questions for every family and band."""
    return {
        (family, number): tuple(
            task
            for difficulty in band
            for task in draw_tasks(family, per_cell // len(band), seed, difficulty=difficulty)
        )
        for family in ALL_FAMILIES
        for number, band in enumerate(BANDS)
    }


def measure_row(name: str, writer: WorkflowWriter, questions: QuestionsByCell) -> AccuracyRow:
    """A row of the table."""
    return AccuracyRow(
        name, {cell: measure_accuracy(writer, some) for cell, some in questions.items()}
    )


def best_row_name(rows: Sequence[AccuracyRow], family: str) -> str:
    """The name of the best row in a family."""
    return max(rows, key=lambda row: row.family(family)).name


def constant_writer(workflow: Workflow) -> WorkflowWriter:
    """The same workflow for every question."""
    return lambda _: workflow


def fixed_rows(best: str, questions: QuestionsByCell) -> list[AccuracyRow]:
    """Ways that do not look at the question."""
    solve, verify = (best, hand_written_conductor.SOLVE), hand_written_conductor.VERIFY
    votes = [(best, hand_written_conductor.SOLVE)] * 4
    checks = [(best, verify, tuple(range(i))) for i in range(1, 5)]
    shapes = {
        "plan, solve, verify by the best": build_workflow(
            (best, hand_written_conductor.PLAN),
            (best, hand_written_conductor.SOLVE_BY_PLAN, (0,)),
            (best, verify, (0, 1)),
        ),
        "solve, then verify 4x, by the best": build_workflow(solve, *checks),
        "vote of 5 by the best": build_workflow(
            *votes, (best, hand_written_conductor.COMPARE, (0, 1, 2, 3))
        ),
        "plan as the last step": build_workflow(
            solve, ("piano", hand_written_conductor.PLAN, (0,))
        ),
        "verify nothing": build_workflow((best, verify)),
    }
    return [measure_row(name, constant_writer(shape), questions) for name, shape in shapes.items()]


def conditioned_rows(
    singles: Sequence[AccuracyRow], questions: QuestionsByCell, seed: int
) -> list[AccuracyRow]:
    """Ways that look at the question, and the random one that does not."""
    router = {
        family: single_worker_workflow(best_row_name(singles, family).split()[0])
        for family in ALL_FAMILIES
    }
    rng = seeded_generator("random workflows", seed)
    return [
        measure_row(
            "router that knows the family", lambda task: router[_task_family(task)], questions
        ),
        measure_row("random workflows", lambda _: random_workflow(rng), questions),
        measure_row("hand-written conductor", hand_written_writer(rehearsal_pool()), questions),
    ]


def _task_family(task: Task) -> str:
    return next(tag for tag in task.tags if tag in question_families())
