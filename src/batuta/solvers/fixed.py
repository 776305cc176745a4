"""Hand-made workflows: the same for every question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batuta.core import (
    Accepted,
    Brief,
    Decision,
    Listener,
    Malformed,
    Plan,
    Pool,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import SILENT, Draft

SOLVE = "Solve the task step by step and give the answer."
PLAN = "Plan how to solve the task: list the steps, do not carry them out."
FOLLOW = "Solve the task by following the plan."
VERIFY = "Check the solution step by step, correct what is wrong, and give the final answer."
DECIDE = "Compare the solutions and give the answer that most of them support."


@dataclass(frozen=True, slots=True)
class Fixed:
    """A conductor that always writes the workflow that `write` gives for the pool."""

    name: str
    write: Callable[[Pool], Workflow]

    async def plan(self, brief: Brief, listener: Listener = SILENT) -> Decision:
        """The workflow; in a later round, the answer stands."""
        if brief.previous:
            return Accepted()
        try:
            return Plan(self.write(brief.pool))
        except KeyError as error:
            return Malformed(Draft(), f"the pool has no worker {error}")


def _known(worker_id: str, pool: Pool) -> WorkerId:
    return pool[worker_id].id


def single(worker_id: str) -> Fixed:
    """That worker alone, with the question as it stands."""

    def write(pool: Pool) -> Workflow:
        return Workflow((Step("", _known(worker_id, pool)),))

    return Fixed(f"single/{worker_id}", write)


def best() -> Fixed:
    """The pool's best worker alone, with the question as it stands."""
    return Fixed("best", lambda pool: Workflow((Step("", pool.ranked()[0].id),)))


def chain(subtasks: Sequence[str], worker_ids: Sequence[str] = ()) -> Fixed:
    """One subtask after another, each reading all before it; the best worker by default."""

    def write(pool: Pool) -> Workflow:
        workers = list(worker_ids) or [pool.ranked()[0].id] * len(subtasks)
        steps = zip(subtasks, workers, strict=True)
        return Workflow(
            tuple(Step(s, _known(w, pool), tuple(range(i))) for i, (s, w) in enumerate(steps))
        )

    return Fixed("chain", write)


def plan_solve_verify(worker_ids: Sequence[str] = ()) -> Fixed:
    """Plan, solve, verify: the fixed pipeline of hand-coded frameworks."""
    return Fixed("plan-solve-verify", chain((PLAN, FOLLOW, VERIFY), worker_ids).write)


def vote(voters: int = 3, worker_ids: Sequence[str] = ()) -> Fixed:
    """Independent solutions at the same time, then the best worker decides between them.

    Raises:
        ValueError: fewer than one voter.
    """
    if voters < 1:
        raise ValueError(f"a vote needs at least one voter, not {voters}")

    def write(pool: Pool) -> Workflow:
        ranked = [worker.id for worker in pool.ranked()]
        workers = [_known(w, pool) for w in worker_ids] or ranked
        votes = [Step(SOLVE, workers[i % len(workers)]) for i in range(voters)]
        return Workflow((*votes, Step(DECIDE, ranked[0], tuple(range(voters)))))

    return Fixed(f"vote@{voters}", write)
