"""Published methods to compare a conductor with, on the same engine and accounting."""

from batuta.engine.solver import ConductorSolver, Solver, SolverContext
from batuta.lab.baselines.ablations import (
    AblatedConductor,
    with_best_worker,
    with_shuffled_access,
    with_solve_only_subtasks,
)
from batuta.lab.baselines.answers import (
    find_final_answer,
    find_stated_answer,
    majority_reply,
    normalize_answer,
)
from batuta.lab.baselines.best_of_n import BestOfN
from batuta.lab.baselines.cascade import Cascade
from batuta.lab.baselines.cascade_folder import open_cascade, save_cascade
from batuta.lab.baselines.cascade_training import fit_cascade
from batuta.lab.baselines.moa import MixtureOfAgents, MixtureSolver
from batuta.lab.baselines.pass_at_k import PassAtK
from batuta.lab.baselines.pipeline import fixed_pipeline
from batuta.lab.baselines.prompted import PromptedConductor
from batuta.lab.baselines.self_consistency import SelfConsistency
from batuta.lab.baselines.self_reflection import SelfReflection
from batuta.lab.baselines.single import SingleWorker

__all__ = [
    "AblatedConductor",
    "BestOfN",
    "Cascade",
    "ConductorSolver",
    "MixtureOfAgents",
    "MixtureSolver",
    "PassAtK",
    "PromptedConductor",
    "SelfConsistency",
    "SelfReflection",
    "SingleWorker",
    "Solver",
    "SolverContext",
    "find_final_answer",
    "find_stated_answer",
    "fit_cascade",
    "fixed_pipeline",
    "majority_reply",
    "normalize_answer",
    "open_cascade",
    "save_cascade",
    "with_best_worker",
    "with_shuffled_access",
    "with_solve_only_subtasks",
]
