"""The fixed pipeline of hand-coded frameworks: plan, solve, verify, repair, answer.

The kind of graph that LangChain's and LangGraph's tutorials build; the roles after Wang et al.,
"Plan-and-Solve Prompting" (arXiv 2305.04091), and Madaan et al., "Self-Refine" (arXiv 2303.17651).
Nothing is learned and nothing depends on the question.

Roles are given as an engineer would who knows the pool by its descriptions and by the accuracy that
was measured: planning to the worker that is praised most for planning; solving and answering to the
best single worker; verifying to the one among the others that is praised most for checking, and
repairing to the same, who knows what it found.
"""

from __future__ import annotations

from batuta.baselines.roles import CHECKING, PLANNING, suited
from batuta.core import Pool, Step, Workflow
from batuta.solvers import Fixed

PLAN = "Plan the solution: list the steps in order. Do not solve it."
SOLVE = "Solve the question step by step according to the plan and give the final answer."
VERIFY = "Verify the solution step by step and say what is wrong in it."
REPAIR = "Repair the solution where the check found it wrong, and give the whole solution."
ANSWER = "Give the final answer in the form that the question asks for."
CALLS = 5


def fixed_pipeline() -> Fixed:
    """The five roles in a row."""
    return Fixed("pipeline", _written)


def _written(pool: Pool) -> Workflow:
    best = pool.ranked()[0].id
    checker = suited(pool, CHECKING, but=best)
    return Workflow((
        Step(PLAN, suited(pool, PLANNING)),
        Step(SOLVE, best, (0,)),
        Step(VERIFY, checker, (0, 1)),
        Step(REPAIR, checker, (0, 1, 2)),
        Step(ANSWER, best, (0, 3)),
    ))  # fmt: skip
