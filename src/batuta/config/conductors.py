"""Opens conductors over a pool, from the names and options of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from batuta.clients import HttpTransport, WorkerHealth, WorkerSpec, find_provider
from batuta.conductors import LLMConductor
from batuta.conductors.draft_breaker import DRAFT_BREAKER
from batuta.conductors.llm_conductor import StructuredDrafts
from batuta.conductors.open_conductor import PROMPTED, open_conductor
from batuta.conductors.prompted import ConductorOptions, prompted_conductor
from batuta.config.settings import ConductorSetting
from batuta.config.worker_settings import WorkerSetting
from batuta.config.workers import check_sampling, open_worker_client, worker_spec
from batuta.core import Client, Conductor, Pool, Sampling, WorkerId
from batuta.core.conductor import conductor_worker
from batuta.embedded.policy import ConductorCard
from batuta.errors import ConfigError
from batuta.language import PromptOptions

CONDUCTOR = WorkerId("conductor")
"""The id of a conductor that is no worker, and of how its drafts do in `LoadedConfig.health`."""


_OF_PROMPTS = ("descriptions", "examples", "prices", "prompt", "structured")
"""Options of [conductor] that are of a prompt, and of none that a card brings."""
_OF_DRAFTS = ("breaker_pause_s", "breaker_questions", "effort", "max_tokens", "temperature")
"""Options of [conductor] that are of a model that is prompted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorOpener:
    """Opens conductors by name, over one pool."""

    pool: Pool
    clients: Mapping[WorkerId, Client]
    setting: ConductorSetting = ConductorSetting()
    http: HttpTransport | None = None
    """None: only workers of the pool conduct."""
    specs: Mapping[WorkerId, WorkerSpec] = field(default_factory=dict[WorkerId, WorkerSpec])
    """How the workers are reached; empty where they are simulated."""
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    health: WorkerHealth = field(default_factory=lambda: WorkerHealth(DRAFT_BREAKER))

    def ultra(self, name: str | None) -> Conductor:
        """Return the conductor that was named, else the settings', else the best worker's model.

        Raises:
            ConfigError: it cannot be had.
        """
        if name is None and self.setting.model and self.http is not None:
            return self._apart(self.http)
        return self.named(name or self.setting.worker or self.pool.ranked()[0].id)

    def named(self, name: str) -> Conductor:
        """Return the conductor of that name, or of that folder.

        Raises:
            ConfigError: there is none, or its folder cannot be used.
        """
        spec = self.specs.get(WorkerId(name))
        options = self._options(spec.provider if spec else None)
        opened = open_conductor(name, self.pool, self.clients, options)
        if spec and conductor_worker(opened):
            check_sampling(spec, self._own_sampling(), "conductor")
        return opened

    def over(self, pool: Pool, name: str) -> Conductor:
        """Return the conductor of that name over a part of the pool, by any worker of the whole.

        Raises:
            ConfigError: there is none, or its folder cannot be used.
        """
        return self.named(name) if name in self.pool else replace(self, pool=pool).named(name)

    def check_options(self, opened: Iterable[Conductor]) -> None:
        """Return if each option of [conductor] belongs to one of these conductors, else raise.

        Raises:
            ConfigError: one is of none; it is named.
        """
        prompted = [worker for one in opened if (worker := conductor_worker(one))]
        plain = [one for one in prompted if not (self.setting.card and one.id == CONDUCTOR)]
        drafts = () if prompted else _OF_DRAFTS
        shown = () if plain else _OF_PROMPTS
        idle = sorted(self.setting.model_fields_set.intersection((*drafts, *shown)))
        if idle and idle[0] in _OF_PROMPTS and prompted:
            reason = "the card of a trained conductor brings its own prompt"
        else:
            reason = "no model is prompted to conduct"
        if idle:
            raise ConfigError(f"conductor.{idle[0]} has no effect: {reason}")

    def _apart(self, http: HttpTransport) -> LLMConductor:
        """Return a model that is no worker, as it was trained if it has a card."""
        chosen = self.setting.model_dump(
            include={"model", "provider", "base_url", "key_env", "tags", "context_window",
                     "price", "concurrency", "rpm", "tpm", "extra_body"}
        )  # fmt: skip
        spec = worker_spec(WorkerSetting(id=CONDUCTOR, **chosen), self.environ)
        check_sampling(spec, self._own_sampling(), "conductor")
        card = ConductorCard.read(Path(self.setting.card)) if self.setting.card else None
        if card is not None:
            card.check_prompt()
            card.check_pool(worker.id for worker in self.pool)
        client = open_worker_client(spec, http, WorkerHealth(), environ=self.environ)
        name = f"{PROMPTED}{card.name if card else spec.worker.model}"
        return prompted_conductor(name, spec.worker, client, self._options(spec.provider, card))

    def _own_sampling(self) -> Sampling:
        """Return the sampling of drafts that the settings ask for."""
        setting = self.setting
        return Sampling(
            temperature=setting.temperature, max_tokens=setting.max_tokens, effort=setting.effort
        )

    def _options(
        self, provider: str | None = None, card: ConductorCard | None = None
    ) -> ConductorOptions:
        """Return the options of settings and card.

        The settings' sampling goes before the card's.
        """
        bounds = find_provider(provider).schema_bounds if provider else ()
        setting, sampling = self.setting, self._own_sampling()
        return ConductorOptions(
            rendering=card.rendering
            if card
            else PromptOptions(
                descriptions=setting.descriptions, prices=setting.prices, examples=setting.examples
            ),
            sampling=sampling.with_defaults(card.sampling) if card else sampling,
            rounds=card.rounds if card else None,
            size="full" if card else setting.prompt,
            structured=None
            if card or setting.structured is False
            else StructuredDrafts(bounds, is_forced=setting.structured is True),
            health=self.health,
        )
