"""Systems are measured on tasks: run, counted, reported with their uncertainty."""

from batuta.evals.evaluate import Budget, Evaluation, Part, evaluate, measure
from batuta.evals.ledger import Ledger, Result
from batuta.evals.recorded import recorded_parts
from batuta.evals.runner import Terms
from batuta.evals.subject import Subject
from batuta.evals.systems import System, names, system
from batuta.evals.tasksets import TaskSet, open_tasks

__all__ = [
    "Budget",
    "Evaluation",
    "Ledger",
    "Part",
    "Result",
    "Subject",
    "System",
    "TaskSet",
    "Terms",
    "evaluate",
    "measure",
    "names",
    "open_tasks",
    "recorded_parts",
    "system",
]
