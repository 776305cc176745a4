"""Where many runs are executed: in this process, or in many processes on many machines by Ray."""

from batuta.executor.asking import ask_driver
from batuta.executor.local import LocalExecutor
from batuta.executor.protocol import Executor, ExecutorJob
from batuta.executor.select import open_executor

__all__ = ["Executor", "ExecutorJob", "LocalExecutor", "ask_driver", "open_executor"]
