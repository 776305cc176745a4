"""Workflow and clients become a Run: plan, execute, account, record."""

from batuta.engine.budget import Budget
from batuta.engine.conduct import conduct, new_run_id
from batuta.engine.estimate import Estimate, estimate
from batuta.engine.record import Recorder, fold

__all__ = ["Budget", "Estimate", "Recorder", "conduct", "estimate", "fold", "new_run_id"]
