"""Published methods to hold a conductor against, one a file, on the same engine and accounts."""

from batuta.baselines.ablations import Altered, best_worker, shuffled_access, solve_only
from batuta.baselines.answers import final, majority, normal, stated
from batuta.baselines.best_of_n import BestOfN
from batuta.baselines.cascade import Cascade, fit_cascade, with_answers_of
from batuta.baselines.cascade_folder import open_cascade, save_cascade
from batuta.baselines.moa import MixtureOfAgents
from batuta.baselines.pipeline import fixed_pipeline
from batuta.baselines.prompted import Prompted
from batuta.baselines.reference import Samples
from batuta.baselines.self_consistency import SelfConsistency
from batuta.baselines.self_reflection import SelfReflection
from batuta.baselines.single import Single
from batuta.baselines.solver import Conducted, Players, Solver

__all__ = [
    "Altered",
    "BestOfN",
    "Cascade",
    "Conducted",
    "MixtureOfAgents",
    "Players",
    "Prompted",
    "Samples",
    "SelfConsistency",
    "SelfReflection",
    "Single",
    "Solver",
    "best_worker",
    "final",
    "fit_cascade",
    "fixed_pipeline",
    "majority",
    "normal",
    "open_cascade",
    "save_cascade",
    "shuffled_access",
    "solve_only",
    "stated",
    "with_answers_of",
]
