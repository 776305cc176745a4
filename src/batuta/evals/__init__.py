"""Systems are measured on tasks: run, counted, reported with their uncertainty."""

from batuta.evals.evaluate import Evaluation, Terms, evaluate
from batuta.evals.ledger import Ledger, Result
from batuta.evals.systems import Subject, System, names, system
from batuta.evals.tasksets import TaskSet, open_tasks

__all__ = [
    "Evaluation",
    "Ledger",
    "Result",
    "Subject",
    "System",
    "TaskSet",
    "Terms",
    "evaluate",
    "names",
    "open_tasks",
    "system",
]
