"""The subject of an evaluation: a pool that can be called, its conductors and their settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, final

import anyio

from batuta.clients.cache import CallCacheClient, CallJournal
from batuta.clients.providers import Identity, client_identity
from batuta.conductors import LLMConductor
from batuta.conductors.sessions.lead import LeadAndHands
from batuta.conductors.sessions.patterns import Gate
from batuta.config.conductors import Preset
from batuta.config.effort import narrow_system
from batuta.config.served_systems import ServedSystem, mini_system, preset_system, ultra_system
from batuta.core import Client, Conductor, Limits, Pool, Run, Worker, WorkerId
from batuta.core.solver import RunTests
from batuta.engine import RunSettings, TimeoutPolicy
from batuta.engine.confidence import ConfidenceModel
from batuta.errors import ConfigError
from batuta.guardrails import NO_GUARDRAILS, Guardrails
from batuta.lab.baselines import SolverContext
from batuta.lab.tasks.recorded import ReplayPool
from batuta.language.plan_rules import NO_RULES, PlanRules

MAX_CACHED_RUNS = 512
"""Maximum number of cached runs; more than the default number of concurrent runs."""


@final
class AnswerCache:
    """A cache of the latest runs in which all workers of a record answer.

    A record always replays the same replies, so systems that read all workers' replies share one
    run for each question. The usage of the whole run counts for each of these systems.
    """

    def __init__(self) -> None:
        self._runs: dict[Hashable, Run] = {}
        self._locks: dict[Hashable, anyio.Lock] = {}

    async def get_or_run(self, key: Hashable, execute: Callable[[], Awaitable[Run]]) -> Run:
        """Return the cached run of the key, or execute and cache the run."""
        async with self._locks.setdefault(key, anyio.Lock()):
            run = self._runs.get(key)
            if run is None:
                run = self._runs[key] = await execute()
                self._evict_oldest()
        return run

    def _evict_oldest(self) -> None:
        while len(self._runs) > MAX_CACHED_RUNS:
            oldest = next(iter(self._runs))
            del self._runs[oldest], self._locks[oldest]


CONDUCTOR, MINI_CONDUCTOR = "the conductor", "the conductor of mini"
"""Names in `Subject.identities` of conductors' models that are not workers."""


def preset_conductor(name: str) -> str:
    """Return the name in `Subject.identities` of the model of a preset's conductor."""
    return f"the conductor of {name}"


class CallLimit(Protocol):
    """A budget shared by all calls of an evaluation."""

    @property
    def is_spent(self) -> bool:
        """Whether a call was refused, after which no further run is started."""
        ...

    def limit_client(self, client: Client, worker: Worker) -> Client:
        """Return a client of the worker that refuses calls that the budget does not allow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A pool, its clients, its conductors and the settings to run them with."""

    pool: Pool
    clients: Mapping[WorkerId, Client]
    """The workers' clients; empty for a record, whose replay pool creates clients."""
    conductor: Conductor | None
    """The conductor of `ultra`; None if a record has no conductor."""
    limits: Limits = Limits()
    mini: Conductor | None = None
    """The conductor that the settings name for batuta-mini; None if `mini` is a selector that the
    evaluation fits."""
    max_rounds: int | None = None
    """Maximum number of rounds in the settings; None allows as many as the conductor needs."""
    presets: tuple[Preset, ...] = ()
    """The presets (`[models.NAME]`) of the settings."""
    confidence: ConfidenceModel | None = None
    """Estimates the confidence of answers; None if the settings have no confidence model."""
    timeouts: TimeoutPolicy = TimeoutPolicy()
    guardrails: Guardrails = field(default=NO_GUARDRAILS, repr=False)
    plan_rules: PlanRules = NO_RULES
    terms: str = ""
    """Timeouts, policies, plan rules and confidence samples as text, for the keys of runs."""
    simulated: bool = False
    """Whether the workers are programs instead of language models."""
    run_tests: RunTests | None = field(default=None, repr=False)
    """Runs the tests that questions show; None if only graders run programs."""
    source: str = ""
    """The origin of the pool; for simulated workers, a description of them."""
    call_limit: CallLimit | None = field(default=None, repr=False)
    """The budget of the calls; None if there is none."""
    replaced: Mapping[str, str] = field(default_factory=dict[str, str])
    """Digests, by name, of the present identities of the workers, conductors' models and judge that
    were replaced since the results folder was created."""
    notes: tuple[str, ...] = ()
    """Remarks on the settings to print before anything is run."""
    replay_pool: ReplayPool | None = field(default=None, repr=False)
    """The recorded answers that are replayed instead of calling workers; None if not a record."""
    answer_cache: AnswerCache | None = field(default=None, repr=False)
    """Runs in which all workers of a record answer, shared by systems; None if not a record."""

    def clients_for_run(self) -> Mapping[WorkerId, Client]:
        """Return the clients for one run.

        A record gets new clients for each run, because a client counts the samples that it used.
        """
        return self.clients if self.replay_pool is None else self.replay_pool.clients()

    def solver_context(self) -> SolverContext:
        """Return the context in which a solver answers a question, as the server makes it."""
        return SolverContext(
            pool=self.pool,
            clients=self.clients_for_run(),
            limits=self.limits,
            settings=RunSettings(guardrails=self.guardrails, plan_rules=self.plan_rules),
            answer_cache=self.answer_cache,
            run_tests=self.run_tests,
        )

    def ultra(self, conductor: Conductor) -> ServedSystem:
        """Return the system served as batuta-ultra, with that conductor."""
        return ultra_system(
            self.pool,
            conductor,
            self.limits,
            self.max_rounds,
            settings=self._settings,
        )

    def served_mini(self) -> ServedSystem:
        """Return the system served as batuta-mini."""
        return mini_system(self.pool, self.mini, self.limits, settings=self._settings)

    def served_preset(self, preset: Preset) -> ServedSystem:
        """Return the system served as that preset.

        Raises:
            ConfigError: the preset is a baseline.
        """
        if preset.conductor is None:
            reason = f"{preset.name} is the baseline {preset.baseline}; measure that by its name"
            raise ConfigError(reason)
        served = preset_system(
            preset, preset.conductor, self.limits, self.max_rounds, settings=self._settings
        )
        return narrow_system(served)

    @property
    def _settings(self) -> RunSettings:
        return RunSettings(
            timeouts=self.timeouts,
            guardrails=self.guardrails,
            plan_rules=self.plan_rules,
            confidence=self.confidence,
        )

    @property
    def has_prices(self) -> bool:
        """Whether calls may cost money: the subject is neither simulated nor a record."""
        return not self.simulated and self.replay_pool is None

    @property
    def key_text(self) -> str:
        """The settings besides pool and system that a run depends on, as text for its key."""
        recorded = self.replay_pool and (self.replay_pool.record.name, self.replay_pool.simulate)
        if self.replay_pool and (version := self.replay_pool.record.version):
            recorded = (version, recorded)
        counted = () if self.limits.usd is None else (self.limits.unknown,)
        executes = ("executes",) if self.run_tests is not None else ()
        terms = (self.terms,) if self.terms else ()
        drafts = {CONDUCTOR, MINI_CONDUCTOR, *(preset_conductor(one.name) for one in self.presets)}
        others = tuple(sorted((n, who) for n, who in self.replaced.items() if n not in drafts))
        terms += (others,) if others else ()
        model = self.confidence
        sampled = ("sampled",) if model and model.samples and model.collects else ()
        return repr((self.limits, recorded, *counted, *executes, *terms, *sampled))

    def drafting_key(self, drafter: str) -> str:
        """Return the digest of a conductor's model, for the keys of its runs.

        Empty if the model has not changed since the results folder was created, or is a worker.

        Args:
            drafter: `CONDUCTOR`, `MINI_CONDUCTOR` or a name from `preset_conductor`.
        """
        return self.replaced.get(drafter, "")

    @property
    def identities(self) -> dict[str, Identity]:
        """The known identities of workers, and of conductors' models that are no workers."""
        if self.simulated:
            return {str(worker.id): {"source": self.source} for worker in self.pool}
        found = {str(worker): client_identity(client) for worker, client in self.clients.items()}
        drafting = [(CONDUCTOR, self.conductor), (MINI_CONDUCTOR, self.mini)]
        drafting += [(preset_conductor(one.name), one.conductor) for one in self.presets]
        for name, one in drafting:
            if isinstance(one, LLMConductor) and not (one.worker and one.worker.id in self.pool):
                found[name] = client_identity(one.client)
        return {name: identity for name, identity in found.items() if identity}

    def with_call_limit(self, limit: CallLimit) -> Subject:
        """Return the subject with a limit on its calls.

        Add a call cache afterwards, so that cached calls do not count.
        """

        def limit_draft(conductor: LLMConductor) -> Client:
            if conductor.worker is None:
                return conductor.client
            return limit.limit_client(conductor.client, conductor.worker)

        limited = self._with_clients(
            {one.id: limit.limit_client(self.clients[one.id], one) for one in self.pool},
            limit_draft,
        )
        return replace(limited, call_limit=limit)

    def with_call_cache(self, call_cache: CallJournal) -> Subject:
        """Return the subject with a journal that replays calls that were made before."""
        return self._with_clients(
            {
                worker: CallCacheClient(client, call_cache, worker)
                for worker, client in self.clients.items()
            },
            lambda one: CallCacheClient(one.client, call_cache, f"conductor {one.name}"),
        )

    def _with_clients(
        self,
        clients: Mapping[WorkerId, Client],
        draft_client: Callable[[LLMConductor], Client],
    ) -> Subject:
        """Return the subject with other clients of its workers and of its conductors' models."""

        def change(conductor: Conductor | None) -> Conductor | None:
            if isinstance(conductor, Gate | LeadAndHands):
                return replace(conductor, clients=clients)
            if isinstance(conductor, LLMConductor):
                return replace(conductor, client=draft_client(conductor))
            return conductor

        return replace(
            self,
            clients=clients,
            conductor=change(self.conductor),
            mini=change(self.mini),
            presets=tuple(replace(one, conductor=change(one.conductor)) for one in self.presets),
        )
