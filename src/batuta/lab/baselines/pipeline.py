"""The fixed pipeline of hand-coded frameworks: plan, solve, verify, repair, answer.

The tutorials of LangChain and LangGraph build graphs of this kind. The roles follow Wang et al.,
"Plan-and-Solve Prompting" (arXiv 2305.04091), and Madaan et al., "Self-Refine" (arXiv 2303.17651).
Nothing is fitted, and nothing depends on the question.

An engineer who knows the workers' descriptions and measured accuracy would assign the roles in the
same way. The planner is the worker whose description recommends it most for planning. The best
single worker solves and answers. Among the other workers, the one recommended most for checking
verifies and repairs; the best single worker does so if it is alone.
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
