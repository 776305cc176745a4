"""Executors of many runs: this process, or many processes on many machines by Ray."""

from batuta.lab.executor.protocol import Executor, ExecutorJob, ask_driver
from batuta.lab.executor.select import LocalExecutor, open_executor

__all__ = ["Executor", "ExecutorJob", "LocalExecutor", "ask_driver", "open_executor"]
