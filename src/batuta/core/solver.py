"""A solver answers a question with a Run: a conductor on the engine, or a choice among replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Protocol, TypeVar

from batuta.core.message import Question
from batuta.core.run import Run

ContextT_contra = TypeVar("ContextT_contra", contravariant=True)
"""The workers, clients and limits that a solver answers with (`engine.solver.SolverContext`)."""

RunTests = Callable[[str, str], Awaitable[bool | None]]
"""A function from a question and an answer to whether the answer passes the tests that the question
shows; it returns None if the question shows none or they could not be run."""


class RunCache(Protocol):
    """Runs that several solvers share, because the same workers would say the same again."""

    async def get_or_run(self, key: Hashable, execute: Callable[[], Awaitable[Run]]) -> Run:
        """Return the run of that key; execute it if it is not remembered."""
        ...


class Solver(Protocol[ContextT_contra]):
    """Answers a question with a Run.

    Laws: it makes at most `calls` calls of workers (None: its conductor decides), a call that
    had to be repeated aside; the run's usage is that of all its calls; an outage is data;
    cancellation propagates.
    """

    @property
    def name(self) -> str:
        """The method, its version and its numbers: what a result is filed under."""
        ...

    @property
    def calls(self) -> int | None:
        """Calls of workers at most; None: as many as its conductor writes."""
        ...

    async def answer(self, question: Question, context: ContextT_contra, seed: int) -> Run:
        """Return the run; a bad one is returned too, never raised."""
        ...
