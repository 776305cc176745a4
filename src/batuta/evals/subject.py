"""What is evaluated: a pool that can be called, and who conducts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from batuta.baselines.answer_cache import AnswerCache
from batuta.clients.cache import CallCacheClient, CallJournal
from batuta.core import Client, Conductor, Limits, Pool, WorkerId
from batuta.solvers import LLMConductor
from batuta.tasks.graders.question_tests import RunTests
from batuta.tasks.recorded import ReplayPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A pool, how its workers are called, and its conductor."""

    pool: Pool
    clients: Mapping[WorkerId, Client]
    """Of a record: none, its replay pool gives them."""
    conductor: Conductor | None
    """None: nobody conducts a record."""
    limits: Limits = Limits()
    simulated: bool = False
    """The workers are programs, not language models."""
    run_tests: RunTests | None = field(default=None, repr=False)
    """Executes the tests that questions show; None: nothing is executed but by the grader."""
    without_echo: set[WorkerId] = field(default_factory=set[WorkerId], repr=False, compare=False)
    """Workers whose servers turned out to echo no prompts; asked once, not for each question."""
    replay_pool: ReplayPool | None = field(default=None, repr=False)
    """The workers are these recorded answers."""
    answer_cache: AnswerCache | None = field(default=None, repr=False)
    """Of a record: what everybody said, for all systems that look at it."""

    def clients_for_run(self) -> Mapping[WorkerId, Client]:
        """The clients of one run: of a record a fresh hand, so that its samples are distinct."""
        return self.clients if self.replay_pool is None else self.replay_pool.clients()

    @property
    def key_text(self) -> str:
        """What a run depends on beyond the pool, for its key."""
        recorded = self.replay_pool and (self.replay_pool.record.name, self.replay_pool.simulate)
        if self.replay_pool and (version := self.replay_pool.record.version):
            recorded = (version, recorded)
        counted = () if self.limits.usd is None else (self.limits.unknown,)
        executes = ("executes",) if self.run_tests is not None else ()
        return repr((self.limits, recorded, *counted, *executes))

    def with_call_cache(self, call_cache: CallJournal) -> Subject:
        """The same, whose calls are read from the journal where they were paid before."""
        clients: dict[WorkerId, Client] = {
            worker: CallCacheClient(client, call_cache, worker)
            for worker, client in self.clients.items()
        }
        conductor = self.conductor
        if isinstance(conductor, LLMConductor):
            model = CallCacheClient(conductor.client, call_cache, f"conductor {conductor.name}")
            conductor = replace(conductor, client=model)
        return replace(self, clients=clients, conductor=conductor)
