"""The subject of an evaluation: a pool that can be called, its conductor, and what it remembers."""

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
from batuta.lab.tasks.recorded import ReplayPool
from batuta.language.plan_rules import NO_RULES, PlanRules

MAX_CACHED_RUNS = 512
"""The most runs that are cached, which is more than run concurrently."""


@final
class AnswerCache:
    """The latest runs in which all workers were asked.

    A record gives the same replies again, so systems that read all workers' replies and run on a
    question one after another share one run of it. Each is charged for the whole run.
    """

    def __init__(self) -> None:
        self._runs: dict[Hashable, Run | None] = {}
        self._locks: dict[Hashable, anyio.Lock] = {}

    async def get_or_run(self, key: Hashable, execute: Callable[[], Awaitable[Run]]) -> Run:
        """Return the run of that key; execute it if it is not cached."""
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
"""Names of models that draft workflows without being workers."""


def preset_conductor(name: str) -> str:
    """Name the model that drafts workflows for that preset, where it is no worker."""
    return f"the conductor of {name}"


class CallLimit(Protocol):
    """A budget of all calls of an evaluation."""

    @property
    def is_spent(self) -> bool:
        """Whether a call was refused, so that no further run is started."""
        ...

    def limit_client(self, client: Client, worker: Worker) -> Client:
        """Return a client of that worker that refuses calls beyond the budget."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A pool, its clients, and its conductor."""

    pool: Pool
    clients: Mapping[WorkerId, Client]
    """Empty for a record, whose replay pool gives the clients."""
    conductor: Conductor | None
    """None if a record has no conductor."""
    limits: Limits = Limits()
    mini: Conductor | None = None
    """The conductor that the settings name as batuta-mini; None if `mini` is fitted here
    instead."""
    max_rounds: int | None = None
    """The rounds that the settings allow; None for as many as the conductor needs."""
    presets: tuple[Preset, ...] = ()
    """The models of the settings' own that a conductor answers."""
    confidence: ConfidenceModel | None = None
    """The model that says how sure answers are; None: nothing does."""
    timeouts: TimeoutPolicy = TimeoutPolicy()
    guardrails: Guardrails = field(default=NO_GUARDRAILS, repr=False)
    plan_rules: PlanRules = NO_RULES
    terms: str = ""
    """The settings of timeouts and guardrails as text, for the keys of runs."""
    simulated: bool = False
    """Whether the workers are programs instead of language models."""
    run_tests: RunTests | None = field(default=None, repr=False)
    """Executes the tests that questions show; None if only graders execute programs."""
    source: str = ""
    """The origin of the pool; for simulated workers, a description of them."""
    call_limit: CallLimit | None = field(default=None, repr=False)
    """The budget of the calls; None if there is none."""
    replaced: Mapping[str, str] = field(default_factory=dict[str, str])
    """Digests of identities that have changed since the folder of results was begun, by name."""
    notes: tuple[str, ...] = ()
    """Remarks on the settings to print before anything is run."""
    replay_pool: ReplayPool | None = field(default=None, repr=False)
    """The recorded answers that stand for the workers."""
    answer_cache: AnswerCache | None = field(default=None, repr=False)
    """The answers of all workers of a record, shared by all systems that use them."""

    def clients_for_run(self) -> Mapping[WorkerId, Client]:
        """Return the clients of one run; a record's are new, so that its samples are distinct."""
        return self.clients if self.replay_pool is None else self.replay_pool.clients()

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
            ConfigError: a baseline answers under its name.
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
        """Whether its calls may cost money, as it is neither simulated nor a record."""
        return not self.simulated and self.replay_pool is None

    @property
    def key_text(self) -> str:
        """Return what a run depends on beyond the pool, as text for its key."""
        recorded = self.replay_pool and (self.replay_pool.record.name, self.replay_pool.simulate)
        if self.replay_pool and (version := self.replay_pool.record.version):
            recorded = (version, recorded)
        counted = () if self.limits.usd is None else (self.limits.unknown,)
        executes = ("executes",) if self.run_tests is not None else ()
        terms = (self.terms,) if self.terms else ()
        drafts = {CONDUCTOR, MINI_CONDUCTOR, *(preset_conductor(one.name) for one in self.presets)}
        others = tuple(sorted((n, who) for n, who in self.replaced.items() if n not in drafts))
        terms += (others,) if others else ()
        sure = self.confidence
        sampled = ("sampled",) if sure and sure.samples and sure.collects else ()
        return repr((self.limits, recorded, *counted, *executes, *terms, *sampled))

    def drafting_key(self, drafts: str) -> str:
        """Return what a conductor's run depends on besides, as text for its key.

        Args:
            drafts: the conductor, `CONDUCTOR`, `MINI_CONDUCTOR` or a `preset_conductor`.
        """
        return self.replaced.get(drafts, "")

    @property
    def identities(self) -> dict[str, Identity]:
        """The identities of workers, by name, and of conductors that are not workers."""
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
        """Return the subject with limited calls; call it before `with_call_cache`."""

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
        """Return the subject whose calls are read from the journal if they were paid before."""
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
        """Return the subject with other clients of its workers and of the models that draft."""

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
