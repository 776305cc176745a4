"""Conductors: who writes the workflow."""

from batuta.solvers.fixed import Fixed, best, chain, plan_solve_verify, single, vote
from batuta.solvers.learned import Learned
from batuta.solvers.recursive import Recursive

__all__ = [
    "Fixed",
    "Learned",
    "Recursive",
    "best",
    "chain",
    "plan_solve_verify",
    "single",
    "vote",
]
