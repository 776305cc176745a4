"""An item that is being executed asks the process that gave it out, wherever it runs itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from batuta.errors import ExecutorError

Answer = Callable[[Any], Awaitable[Any]]
"""Answers a question in the driver's process; its errors are raised where it was asked."""


async def refuse_question(question: Any) -> Any:
    """Nobody is there to answer.

    Raises:
        ExecutorError: always.
    """
    raise ExecutorError(f"nobody answers what the work asks: {type(question).__name__}")


_CURRENT: ContextVar[Answer] = ContextVar("answer of the driver", default=refuse_question)


async def ask_driver(question: Any) -> Any:
    """Ask the `answer` of `Executor.run_all`, while an item is executed.

    Both are pickled where the item is executed in another process.

    Raises:
        ExecutorError: there is nobody to answer.
        Exception: what the answer raised.
    """
    return await _CURRENT.get()(question)


def set_answer(answer: Answer | None) -> None:
    """Set where this task's items ask from now on; for executors alone.

    Args:
        answer: who answers; None: nobody.
    """
    _CURRENT.set(refuse_question if answer is None else answer)
