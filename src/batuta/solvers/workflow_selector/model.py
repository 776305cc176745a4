"""The workflow selector: picks, for each question, the workflow that did best on its like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.core import (
    AcceptedAnswer,
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
from batuta.solvers.selector.model import state_digest
from batuta.solvers.workflow_selector.reader import Floats, QuestionReader

KIND = "workflow-selector"
Ranks = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class WorkflowSelector:
    """A conductor whose workflows come from a library that was searched.

    A question is of a group and of a level of ease in it; each such cell has the library's
    workflows in order of merit, and the first that the pool and the limits allow is played. A
    question of a new kind gets the workflow that did best over all groups.
    """

    title: str
    """Its own name, without the version."""
    reader: QuestionReader
    groups: tuple[str, ...]
    """What the groups are called."""
    workflows: tuple[Workflow, ...]
    rank_glw: Ranks
    """The library's workflows for each group and level, best first."""
    safest_w: Ranks
    """The same for questions of a new kind."""
    ease_gl: Floats
    """Ease from which on a question of the group is of the next level, ascending."""
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What its card says besides: how it was found."""
    digest: str = field(init=False)
    """SHA-256 of all that it knows: the version."""

    def __post_init__(self) -> None:
        groups, levels, library = self.rank_glw.shape
        if groups != self.reader.groups or len(self.groups) != groups:
            raise ValueError("the selector's groups are not its reader's")
        if self.ease_gl.shape != (groups, levels - 1) or library != len(self.workflows):
            raise ValueError("the selector's levels or workflows do not fit its ranking")
        if self.rank_glw.size and not 0 <= self.rank_glw.min() <= self.rank_glw.max() < library:
            raise ValueError("the selector ranks a workflow that it does not have")
        if not set(self.safest_w.tolist()) <= set(range(library)):
            raise ValueError("the selector's safest workflow is none that it has")
        object.__setattr__(self, "digest", state_digest(*self.save()))

    def __repr__(self) -> str:
        return f"WorkflowSelector({self.name!r}, {len(self.workflows)} workflows)"

    @property
    def name(self) -> str:
        """`workflow-selector/<title>@<version>`."""
        return f"{KIND}/{self.title}@{self.digest[:8]}"

    async def plan(
        self, brief: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """The workflow; in a later round, the answer stands."""
        if brief.previous:
            return AcceptedAnswer()
        return Plan(self.choose(brief.question.text, brief.pool, brief.max_steps))

    def choose(self, question: str, pool: Pool, max_steps: int) -> Workflow:
        """The best workflow for the question that the pool and the limit allow.

        If none of the library can be played, the pool's best worker alone.
        """
        with single_blas_thread():
            (order,) = self.orders([question])
        places: list[int] = order.tolist()
        for place in places:
            workflow = self.workflows[place]
            if len(workflow) <= max_steps and all(s.worker in pool for s in workflow.steps):
                return workflow
        return Workflow((Step(subtask="", worker=pool.ranked()[0].id),))

    def orders(self, questions: Sequence[str]) -> list[Ranks]:
        """For each question the library's workflows, best first."""
        group_n, ease_n, known_n = self.reader(questions)
        level_n = (ease_n[:, None] >= self.ease_gl[group_n]).sum(axis=1)
        return [
            self.rank_glw[group, level] if known else self.safest_w
            for group, level, known in zip(group_n, level_n, known_n, strict=True)
        ]

    def save(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Its card (JSON values) and tensors by name."""
        card, tensors = self.reader.save()
        shown = {
            "kind": KIND,
            "name": self.title,
            "groups": list(self.groups),
            "workflows": [
                [
                    {"worker": s.worker, "subtask": s.subtask, "access": list(s.access)}
                    for s in w.steps
                ]
                for w in self.workflows
            ],
            "ranking": self.rank_glw.tolist(),
            "safest": self.safest_w.tolist(),
            "reader": card,
            **self.about,
        }
        return shown, {**tensors, "ease_gl": self.ease_gl}
