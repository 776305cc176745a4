"""Conductors, which write the workflows."""

from batuta.conductors.fixed_workflows import (
    FixedConductor,
    best_single_worker,
    parallel_vote,
    plan_solve_verify,
    sequential_chain,
    single_worker,
)
from batuta.conductors.llm_conductor import LLMConductor
from batuta.conductors.recursive_conductor import RecursiveConductor

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
