"""Conductors: who writes the workflow."""

from batuta.solvers.fixed_workflows import (
    FixedConductor,
    best_single_worker,
    parallel_vote,
    plan_solve_verify,
    sequential_chain,
    single_worker,
)
from batuta.solvers.llm_conductor import LLMConductor
from batuta.solvers.recursive_conductor import RecursiveConductor

__all__ = [
    "FixedConductor",
    "LLMConductor",
    "RecursiveConductor",
    "best_single_worker",
    "parallel_vote",
    "plan_solve_verify",
    "sequential_chain",
    "single_worker",
]
