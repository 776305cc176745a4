"""Systems are measured on tasks: run, counted, reported with their uncertainty."""

from batuta.evals.eval_session import evaluate_parts, evaluate_task_set
from batuta.evals.evaluation import EvalPart, Evaluation
from batuta.evals.matched_budget import MatchedBudget
from batuta.evals.recorded_sets import open_recorded_parts
from batuta.evals.result_log import ResultLog, TrialResult
from batuta.evals.runner import EvalOptions
from batuta.evals.subject import Subject
from batuta.evals.systems import System, find_system, system_names
from batuta.evals.task_sets import TaskSet, open_tasks

__all__ = [
    "EvalOptions",
    "EvalPart",
    "Evaluation",
    "MatchedBudget",
    "ResultLog",
    "Subject",
    "System",
    "TaskSet",
    "TrialResult",
    "evaluate_parts",
    "evaluate_task_set",
    "find_system",
    "open_recorded_parts",
    "open_tasks",
    "system_names",
]
