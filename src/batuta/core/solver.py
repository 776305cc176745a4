"""Solvers answer a question with a Run, by a conductor's workflow or by choosing among replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Protocol, TypeVar

from batuta.core.message import Question
from batuta.core.run import Run

ContextT_contra = TypeVar("ContextT_contra", contravariant=True)
"""The workers, clients and limits that a solver uses (`engine.solver.SolverContext`)."""

RunTests = Callable[[str, str], Awaitable[bool | None]]
"""Takes a question and an answer; returns whether the answer passes the tests in the question, or
None if the question has no tests or they could not be run."""


class RunCache(Protocol):
    """A cache of runs that several solvers share."""

    async def get_or_run(self, key: Hashable, execute: Callable[[], Awaitable[Run]]) -> Run:
        """Return the run with that key; execute it if it is not cached."""
        ...


class Solver(Protocol[ContextT_contra]):
    """Answers a question with a Run.

    Laws: a solver calls workers at most `calls` times (None: its conductor decides), not counting
    retries; the run's usage is the usage of all calls; an outage is returned as data, not raised;
    cancellation propagates.
    """

    @property
    def name(self) -> str:
        """The method with its version and parameters, which identifies its results."""
        ...

    @property
    def calls(self) -> int | None:
        """Maximum number of calls of workers; None: the solver's conductor decides."""
        ...

    async def answer(self, question: Question, context: ContextT_contra, seed: int) -> Run:
        """Return the run; failed runs are returned, not raised."""
        ...
