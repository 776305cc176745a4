"""The workflow selector, which picks the workflow that did best on similar questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.features import Floats
from batuta.conductors.fixed_workflows import ROUNDS, ContinuedWorkflow, continue_round
from batuta.conductors.selector.model import state_digest
from batuta.conductors.workflow_selector.reader import QuestionReader
from batuta.core import (
    MAX_ROUNDS,
    CallListener,
    Decision,
    Plan,
    PlanningContext,
    Pool,
    Step,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.embedded.blas import single_blas_thread

KIND = "workflow-selector"
_ALLOWED = f"there are 1 to {MAX_ROUNDS}"
Ranks = NDArray[np.intp]


def describe_steps(workflow: Workflow) -> list[dict[str, Any]]:
    """Return the steps as JSON values."""
    return [
        {"worker": step.worker, "subtask": step.subtask, "access": list(step.access)}
        | ({"previous": True} if step.previous else {})
        for step in workflow.steps
    ]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class WorkflowSelector:
    """A conductor whose workflows come from a searched library.

    A question belongs to a group and to a level of ease in it. Each such cell ranks the library's
    workflows, and the first one that the pool and the limits allow is run. A question of a new kind
    gets the workflow that did best over all groups.
    """

    title: str
    """Its own name, without the version."""
    reader: QuestionReader
    groups: tuple[str, ...]
    """The names of the groups."""
    workflows: tuple[Workflow, ...]
    continuations: tuple[Workflow | None, ...] = ()
    """Run this after each workflow whose last two answers differ; None accepts its answer."""
    rank_glw: Ranks
    """The ranking of the library for each group and level, best first."""
    safest_w: Ranks
    """The ranking for questions of a new kind."""
    ease_gl: Floats
    """The ease at which each next level of a group begins, ascending."""
    stated_rounds: int = 1
    """The rounds that its card asks for, besides those of its continuations."""
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further entries of its card: how it was found."""
    digest: str = field(init=False)
    """The SHA-256 digest of its state, which is its version."""

    def __post_init__(self) -> None:
        groups, levels, library = self.rank_glw.shape
        if groups != self.reader.groups or len(self.groups) != groups:
            raise ValueError("the selector's groups are not its reader's")
        if self.ease_gl.shape != (groups, levels - 1) or library != len(self.workflows):
            raise ValueError("the selector's levels or workflows do not fit its ranking")
        if self.rank_glw.size and not 0 <= self.rank_glw.min() <= self.rank_glw.max() < library:
            raise ValueError("the selector ranks a workflow that it does not have")
        if self.continuations and len(self.continuations) != library:
            raise ValueError("the selector's continuations are not its workflows'")
        if not set(self.safest_w.tolist()) <= set(range(library)):
            raise ValueError("the selector's safest workflow is none that it has")
        if not 1 <= self.stated_rounds <= MAX_ROUNDS:
            raise ValueError(f"the selector asks for {self.stated_rounds} rounds: {_ALLOWED}")
        object.__setattr__(self, "digest", state_digest(*self._state()))

    def __repr__(self) -> str:
        return f"WorkflowSelector({self.name!r}, {len(self.workflows)} workflows)"

    @property
    def name(self) -> str:
        """`workflow-selector/<title>@<version>`."""
        return f"{KIND}/{self.title}@{self.digest[:8]}"

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan the workflow, then its continuation if the answers differ, or accept the answer."""
        if not context.previous:
            return Plan(self.choose(context.question.text, context.pool, context.max_steps))
        place = self._choose_place(context.question.text, context.pool, context.max_steps)
        later = self.continuations[place] if self.continuations and place is not None else None
        return continue_round(context.previous, later)

    @property
    def needed_rounds(self) -> int:
        """The rounds that its workflows need; the settings may allow more."""
        continues = any(one is not None for one in self.continuations)
        return max(self.stated_rounds, ROUNDS if continues else 1)

    def choose(self, question: str, pool: Pool, max_steps: int) -> Workflow:
        """Choose the best workflow for the question that the pool and the limit allow.

        If none of the library can be run, it is the pool's best worker alone.
        """
        place = self._choose_place(question, pool, max_steps)
        if place is not None:
            return self.workflows[place]
        return Workflow((Step(subtask="", worker=pool.ranked()[0].id),))

    def list_candidates(
        self, question: str, pool: Pool, max_steps: int
    ) -> tuple[str, list[ContinuedWorkflow]]:
        """Return the question's kind, and all workflows that can be run, best first."""
        with single_blas_thread():
            (cell,) = self.find_cells([question])
        order = self.safest_w if cell is None else self.rank_glw[cell]
        places: list[int] = order.tolist()
        name = "a new kind" if cell is None else f"{self.groups[cell[0]]} level {cell[1]}"
        return name, [
            ContinuedWorkflow(
                name=f"{place}: {' > '.join(step.worker for step in self.workflows[place].steps)}",
                first=self.workflows[place],
                continuation=self.continuations[place] if self.continuations else None,
            )
            for place in places
            if self._can_run(place, pool, max_steps)
        ]

    def _choose_place(self, question: str, pool: Pool, max_steps: int) -> int | None:
        """Return the index of that workflow in the library; None if none can be run."""
        with single_blas_thread():
            (order,) = self.orders([question])
        places: list[int] = order.tolist()
        return next((p for p in places if self._can_run(p, pool, max_steps)), None)

    def _can_run(self, place: int, pool: Pool, max_steps: int) -> bool:
        flows = [self.workflows[place], *self.continuations[place : place + 1]]
        steps = [step for flow in flows if flow is not None for step in flow.steps]
        longest = max(len(flow) for flow in flows if flow is not None)
        return longest <= max_steps and all(step.worker in pool for step in steps)

    def orders(self, questions: Sequence[str]) -> list[Ranks]:
        """Return the ranking of the library for each question, best first."""
        return [
            self.safest_w if cell is None else self.rank_glw[cell]
            for cell in self.find_cells(questions)
        ]

    def find_cells(self, questions: Sequence[str]) -> list[tuple[int, int] | None]:
        """Return the group and level of each question; None if it is of a new kind."""
        group_n, ease_n, known_n = self.reader(questions)
        level_n = (ease_n[:, None] >= self.ease_gl[group_n]).sum(axis=1)
        return [
            (int(group), int(level)) if known else None
            for group, level, known in zip(group_n, level_n, known_n, strict=True)
        ]

    def save(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Return its card of JSON values, and tensors by name."""
        card, tensors = self._state()
        return {**card, "rounds": self.needed_rounds}, tensors

    def _state(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Return its state without the rounds, which follow from it; its digest is the version."""
        card, tensors = self.reader.save()
        shown = {
            "kind": KIND,
            "name": self.title,
            "groups": list(self.groups),
            "workflows": [describe_steps(flow) for flow in self.workflows],
            "continuations": [
                None if flow is None else describe_steps(flow) for flow in self.continuations
            ],
            "ranking": self.rank_glw.tolist(),
            "safest": self.safest_w.tolist(),
            "reader": card,
            **self.about,
        }
        return shown, {**tensors, "ease_gl": self.ease_gl}
