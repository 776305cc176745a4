"""Ablations of a conductor: its workflows with one property removed.

In the ablation of the Conductor paper (arXiv 2512.04388), every subtask is replaced by "solve the
question". Two further ablations are ours: access lists are shuffled over the steps, or the best
single worker does every step.

Deviation: the paper trains a conductor for its ablation. Here the unchanged conductor writes a
workflow, which is changed before it is run. The draft costs as much as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from batuta.core import CallListener, Conductor, Decision, Plan, PlanningContext, Step, Workflow
from batuta.core.conductor import NULL_LISTENER, needed_rounds

SOLVE = "Solve the question."


@dataclass(frozen=True, slots=True)
class AblatedConductor:
    """A conductor whose workflows are changed before they are run."""

    label: str
    """The change in two words, for the name."""
    inner: Conductor
    change_workflow: Callable[[Workflow, PlanningContext], Workflow]

    @property
    def name(self) -> str:
        """The conductor's name and the change."""
        return f"{self.inner.name}, {self.label}"

    @property
    def needed_rounds(self) -> int:
        """The rounds that the inner conductor needs."""
        return needed_rounds(self.inner)

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Return the inner conductor's decision; if it is a plan, its workflow is changed."""
        decision = await self.inner.plan(context, listener)
        if not isinstance(decision, Plan):
            return decision
        return Plan(self.change_workflow(decision.workflow, context), decision.draft)


def with_solve_only_subtasks(conductor: Conductor) -> AblatedConductor:
    """Keep workers and access lists, but replace every subtask by `SOLVE`."""
    return AblatedConductor(
        "solve only",
        conductor,
        lambda flow, _: _map_steps(flow, lambda step: replace(step, subtask=SOLVE)),
    )


def with_shuffled_access(conductor: Conductor) -> AblatedConductor:
    """Keep workers and subtasks, but shuffle the access lists over the steps.

    References to the same or later steps are dropped, as a step can read only earlier ones.
    """

    def change(flow: Workflow, context: PlanningContext) -> Workflow:
        rng = Random(f"{context.seed} {len(context.previous)} {context.question.text}")
        lists = [step.access for step in flow.steps]
        rng.shuffle(lists)
        return Workflow(
            tuple(
                replace(step, access=tuple(earlier for earlier in access if earlier < index))
                for index, (step, access) in enumerate(zip(flow.steps, lists, strict=True))
            )
        )

    return AblatedConductor("shuffled access", conductor, change)


def with_best_worker(conductor: Conductor) -> AblatedConductor:
    """Keep subtasks and access lists, but give every step to the pool's best worker."""

    def change(flow: Workflow, context: PlanningContext) -> Workflow:
        best = context.pool.ranked()[0].id
        return _map_steps(flow, lambda step: replace(step, worker=best))

    return AblatedConductor("best worker", conductor, change)


def _map_steps(flow: Workflow, change: Callable[[Step], Step]) -> Workflow:
    return Workflow(tuple(change(step) for step in flow.steps))
