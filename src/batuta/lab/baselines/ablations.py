"""A conductor's workflows with one thing taken away: what of them is it that helps?

Conductor paper (arXiv 2512.04388), its ablation without subtasks, where each worker is told to
solve the question. The other two are ours: the access lists handed out to other steps, and every
step by the best single worker.

Deviation: the paper trains a conductor for its ablation; here the same one writes the workflow and
it is altered before it is run, so its draft is paid and its choices are kept but for the one.
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
    """What is done to them, for the name."""
    inner: Conductor
    change_workflow: Callable[[Workflow, PlanningContext], Workflow]

    @property
    def name(self) -> str:
        """The conductor's name and what is done to its workflows."""
        return f"{self.inner.name}, {self.label}"

    @property
    def needed_rounds(self) -> int:
        """The rounds that the conductor's own workflows need."""
        return needed_rounds(self.inner)

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """The inner decision; a plan's workflow is altered, its draft is not."""
        decision = await self.inner.plan(context, listener)
        if not isinstance(decision, Plan):
            return decision
        return Plan(self.change_workflow(decision.workflow, context), decision.draft)


def with_solve_only_subtasks(conductor: Conductor) -> AblatedConductor:
    """The same workers and access lists; every subtask is to solve the question."""
    return AblatedConductor(
        "solve only", conductor, lambda flow, _: _map_steps(flow, _with_solve_subtask)
    )


def with_shuffled_access(conductor: Conductor) -> AblatedConductor:
    """The same workers and subtasks; the access lists in another order over the steps.

    What would not look back is left out, since no step can read a later one.
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
    """The same subtasks and access lists; every step is the pool's best worker's."""

    def change(flow: Workflow, context: PlanningContext) -> Workflow:
        best = context.pool.ranked()[0].id
        return _map_steps(flow, lambda step: replace(step, worker=best))

    return AblatedConductor("best worker", conductor, change)


def _map_steps(flow: Workflow, change: Callable[[Step], Step]) -> Workflow:
    return Workflow(tuple(change(step) for step in flow.steps))


def _with_solve_subtask(step: Step) -> Step:
    return replace(step, subtask=SOLVE)
