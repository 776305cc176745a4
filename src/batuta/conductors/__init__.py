"""Conductors, which plan the workflows."""

from batuta.conductors.fixed_workflows import (
    FixedConductor,
    RecursiveConductor,
    best_single_worker,
    parallel_vote,
    plan_solve_verify,
    sequential_chain,
    single_worker,
)
from batuta.conductors.llm_conductor import LLMConductor

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
