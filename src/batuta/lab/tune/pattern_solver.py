"""Runs a pattern of the server within a tuning run, by the conductor that the server uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from batuta.conductors.fixed_workflows import FixedConductor
from batuta.conductors.prompted import ConductorOptions
from batuta.conductors.sessions.patterns import cheapest_actor
from batuta.conductors.sessions.review import find_reviewer
from batuta.conductors.sessions.state import DEFAULT_RULES
from batuta.config.conductors import PATTERN_PREFIX, open_conductor
from batuta.core import Client, Conductor, PlanningContext, Pool, Question, Run, WorkerId
from batuta.core.conductor import needed_rounds
from batuta.engine.solver import SolverContext, run_conductor

_NO_CLIENTS: Mapping[WorkerId, Client] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSolver:
    """A pattern of the server over a pool, as a method that tuning can run."""

    pattern: str
    pool: Pool
    """The pool with the strengths that the recommended settings state."""
    calls: int
    """Maximum number of calls for a question."""

    @property
    def name(self) -> str:
        """The name under which the pattern is served."""
        return f"{PATTERN_PREFIX}{self.pattern}"

    @property
    def rounds(self) -> int:
        """The number of rounds that the pattern needs."""
        return needed_rounds(self._open(_NO_CLIENTS))

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The workers that the pattern asks, in order; in `gate` the second worker judges."""
        conductor = self._open(_NO_CLIENTS)
        if isinstance(conductor, FixedConductor):
            steps = conductor.build_workflow(self.pool).steps
            return tuple(dict.fromkeys(step.worker for step in steps))
        question = Question.of("?")
        actor = cheapest_actor(question, self.pool, DEFAULT_RULES)
        judge = find_reviewer(actor.id, PlanningContext(question=question, pool=self.pool))
        return (actor.id,) if judge is None else (actor.id, judge.id)

    def __str__(self) -> str:
        """Return the pattern's name with its workers."""
        return f"{self.name} of {', '.join(self.workers)}"

    def _open(self, clients: Mapping[WorkerId, Client]) -> Conductor:
        return open_conductor(self.pattern, self.pool, clients, ConductorOptions())

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Run the pattern over its own pool, with the context's clients."""
        context = replace(context, pool=self.pool)
        conductor, rounds = self._open(context.clients), self.rounds
        return await run_conductor(question, conductor, context, seed, max_rounds=rounds)
