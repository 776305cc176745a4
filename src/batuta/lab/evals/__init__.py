"""Evaluation: runs systems on tasks, counts their costs, and reports results with intervals."""

from batuta.lab.evals.eval_session import StartProgress, evaluate_parts, forecast_parts
from batuta.lab.evals.evaluation import EvalPart, Evaluation
from batuta.lab.evals.matched_budget import MatchedBudget
from batuta.lab.evals.recorded_sets import open_recorded_parts
from batuta.lab.evals.result_log import ResultLog, TrialResult
from batuta.lab.evals.runner import EvalOptions
from batuta.lab.evals.subject import Subject
from batuta.lab.evals.systems import find_system, system_names
from batuta.lab.evals.task_sets import TaskSet, open_tasks

__all__ = [
    "EvalOptions",
    "EvalPart",
    "Evaluation",
    "MatchedBudget",
    "ResultLog",
    "StartProgress",
    "Subject",
    "TaskSet",
    "TrialResult",
    "evaluate_parts",
    "find_system",
    "forecast_parts",
    "open_recorded_parts",
    "open_tasks",
    "system_names",
]
