"""Workflow and clients become a Run: plan, execute, account, record."""

from batuta.engine.budget import Budget, Funds, Hold
from batuta.engine.conduct import conduct, new_run_id
from batuta.engine.estimate import Pace, estimate
from batuta.engine.record import Recorder, fold
from batuta.engine.resume import asking_run, going_on, lightened
from batuta.engine.stage import Patience

__all__ = [
    "Budget",
    "Funds",
    "Hold",
    "Pace",
    "Patience",
    "Recorder",
    "asking_run",
    "conduct",
    "estimate",
    "fold",
    "going_on",
    "lightened",
    "new_run_id",
]
