"""The fixed pipeline of hand-coded frameworks: plan, solve, verify, repair, answer.

The kind of graph that LangChain's and LangGraph's tutorials build; the roles after Wang et al.,
"Plan-and-Solve Prompting" (arXiv 2305.04091), and Madaan et al., "Self-Refine" (arXiv 2303.17651).
Nothing is fitted, and nothing depends on the question.

Roles are assigned as by an engineer who knows the workers' descriptions and measured accuracy:
planning to the worker whose description recommends it most for that; solving and answering to the
best single worker; verifying and repairing to the other worker that is recommended most for
checking.
"""

from __future__ import annotations

from batuta.conductors import FixedConductor
from batuta.core import Pool, Step, Workflow
from batuta.lab.baselines.roles import CHECKING, PLANNING, best_worker_for_role

PLAN = "Plan the solution: list the steps in order. Do not solve it."
SOLVE = "Solve the question step by step according to the plan and give the final answer."
VERIFY = "Verify the solution step by step and say what is wrong in it."
REPAIR = "Repair the solution where the check found it wrong, and give the whole solution."
ANSWER = "Give the final answer in the form that the question asks for."
CALLS = 5


def fixed_pipeline() -> FixedConductor:
    """Return the conductor of the five roles in sequence."""
    return FixedConductor("pipeline", _pipeline_workflow)


def _pipeline_workflow(pool: Pool) -> Workflow:
    best = pool.ranked()[0].id
    checker = best_worker_for_role(pool, CHECKING, exclude=best)
    return Workflow((
        Step(subtask=PLAN, worker=best_worker_for_role(pool, PLANNING)),
        Step(subtask=SOLVE, worker=best, access=(0,)),
        Step(subtask=VERIFY, worker=checker, access=(0, 1)),
        Step(subtask=REPAIR, worker=checker, access=(0, 1, 2)),
        Step(subtask=ANSWER, worker=best, access=(0, 3)),
    ))  # fmt: skip
