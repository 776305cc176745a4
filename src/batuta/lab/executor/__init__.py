"""Executors, which run many items: in this process, or in processes of a Ray cluster."""

from batuta.lab.executor.protocol import Executor, ExecutorJob, ask_driver
from batuta.lab.executor.select import LocalExecutor, executor_problem, open_executor

__all__ = [
    "Executor",
    "ExecutorJob",
    "LocalExecutor",
    "ask_driver",
    "executor_problem",
    "open_executor",
]
