"""Opens conductors over a pool, from their names or folders and the options of the settings.

Models of the settings' own, `[models.NAME]`, are opened with them: what answers under the name, and
on which terms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from batuta.clients import HttpTransport, WorkerHealth, WorkerSpec, find_provider
from batuta.conductors.draft_breaker import DRAFT_BREAKER
from batuta.conductors.fixed_workflows import (
    best_single_worker,
    panel_fusion,
    parallel_vote,
    plan_solve_verify,
    read_workflow_conductor,
    revised_by_critique,
    single_worker,
    worker_chain,
)
from batuta.conductors.llm_conductor import LLMConductor, StructuredDrafts
from batuta.conductors.prompted import ConductorOptions, prompted_conductor
from batuta.conductors.research import Research, slide_writer
from batuta.conductors.selector import is_selector, open_selector
from batuta.conductors.sessions.lead import LeadAndHands
from batuta.conductors.sessions.patterns import Advise, Escalate, Gate
from batuta.conductors.workflow_selector import is_workflow_selector, open_workflow_selector
from batuta.config.aliases import MINI_MODEL, ULTRA_MODEL
from batuta.config.settings import ConductorSetting, PresetLimits, PresetSetting
from batuta.config.worker_settings import EffortWord, WorkerSetting
from batuta.config.workers import (
    check_sampling,
    open_worker_client,
    worker_spec,
)
from batuta.core import MAX_STEPS, Client, Conductor, Limits, Pool, Sampling, WorkerId
from batuta.core.conductor import conductor_worker
from batuta.core.suggestions import suggest_names
from batuta.embedded.policy import CARD_FILE, ConductorCard, is_policy, open_policy
from batuta.errors import ConfigError, WorkflowError
from batuta.language import PromptOptions

CONDUCTOR = WorkerId("conductor")
"""The id of a conductor that is no worker, and of how its drafts do in `LoadedConfig.health`."""


_OF_PROMPTS = ("descriptions", "examples", "prices", "prompt", "structured")
"""Options of [conductor] that are of a prompt, and of none that a card brings."""
_OF_DRAFTS = ("breaker_pause_s", "breaker_questions", "effort", "max_tokens", "temperature")
"""Options of [conductor] that are of a model that is prompted."""
PROMPTED = "prompted/"
"""The prefix of a prompted conductor's name."""
FIXED: Mapping[str, Callable[[], Conductor]] = {
    "advise": Advise,
    "alone": best_single_worker,
    "best": best_single_worker,
    "critique": revised_by_critique,
    "escalate": Escalate,
    "fusion": panel_fusion,
    "plan-solve-verify": plan_solve_verify,
    "research": Research,
    "slides": slide_writer,
    "vote": parallel_vote,
}
"""Conductors that need no model of their own."""
_CONSULTING: Mapping[str, Callable[[Mapping[WorkerId, Client]], Conductor]] = {
    "gate": lambda clients: Gate(clients=clients),
    "lead-and-hands": lambda clients: LeadAndHands(clients=clients),
}
"""Conductors that ask workers of the pool themselves, to judge or to plan."""
WORKFLOW_SUFFIX = ".txt"
"""The suffix of a file with one workflow."""
_SINGLE = "single/"
_CHAIN = "chain/"
"""The prefix of a chain's name, followed by workers' ids separated by `>`."""
_Number = TypeVar("_Number", int, float)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,99}")
PATTERN_PREFIX = "pattern/"
"""The beginning of the names of the models that are served without a line of settings."""
ALONE = "alone"
"""The pattern of one worker: what it is asked passes through, as with `worker/NAME`."""
_TAKEN = ("worker/", "baseline/", PATTERN_PREFIX)
PATTERNS = {
    ALONE: "The best worker acts, and nobody else is asked.",
    "escalate": "The cheapest worker acts; the best takes over after failures, till the next task.",
    "advise": "The cheapest worker acts; where it is stuck the best one says what to do.",
    "gate": "The cheapest worker acts; another family's model judges whether it is done.",
    "lead-and-hands": "The best worker plans and reviews on a short brief; the cheapest one acts.",
    "fusion": "Three workers answer; the best one compares the answers, and writes its own.",
    "critique": "The best worker answers, the second best criticises, the best one revises.",
}
"""Conductors that are served over all workers as `pattern/NAME`, and what each does."""


def open_trained(place: Path) -> LLMConductor:
    """Open the conductor trained into that folder or GGUF file, which runs in this process.

    Raises:
        ConfigError: the folder or file cannot be used.
    """
    model, card, name = open_policy(place)
    card.check_prompt()
    return LLMConductor(
        name=name,
        client=model,
        rendering=card.rendering,
        sampling=card.sampling,
        rounds=card.rounds,
    )


def open_conductor(
    name: str, pool: Pool, clients: Mapping[WorkerId, Client], options: ConductorOptions
) -> Conductor:
    """Open the conductor of that name or folder.

    Args:
        name: a worker's id, whose model is prompted; one of `FIXED`; `gate`;
            `lead-and-hands`; `single/<id>`; `chain/<id>><id>`, workers in a row; the folder of a
            trained conductor or selector; a trained conductor's GGUF file; or a file `*.txt` with
            one workflow.
        pool: the workers that it conducts.
        clients: the workers' clients.
        options: the options of a prompted conductor.

    Raises:
        ConfigError: there is no such conductor, or its folder cannot be used.
    """
    place = Path(name)
    opened = _open_place(place, pool) if place.exists() else None
    if opened is not None:
        return opened
    if name in FIXED:
        return FIXED[name]()
    if name in _CONSULTING:
        return _CONSULTING[name](clients)
    if name.startswith(_SINGLE) and name.removeprefix(_SINGLE) in pool:
        return single_worker(name.removeprefix(_SINGLE))
    chain = _chain_workers(name)
    if chain and all(one in pool for one in chain):
        return worker_chain(chain)
    if name not in pool:
        known = suggest_names(name, (*FIXED, *_CONSULTING, *(worker.id for worker in pool)))
        missing = f"there is no conductor {name!r} and no folder of a trained one"
        if place.is_dir():
            missing = f"{name} is no folder of a trained conductor: it has no {CARD_FILE}"
        raise ConfigError(f"{missing}; {known}")
    worker = pool[name]
    return prompted_conductor(f"{PROMPTED}{worker.id}", worker, clients[worker.id], options)


def _open_place(place: Path, pool: Pool) -> Conductor | None:
    """Open what was trained into that folder or file; return None if it is nothing known.

    Raises:
        ConfigError: the folder or file cannot be used.
    """
    if place.is_dir() and is_selector(place):
        return open_selector(place)
    if place.is_dir() and is_workflow_selector(place):
        return open_workflow_selector(place)
    if is_policy(place):
        ConductorCard.read(place).check_pool(worker.id for worker in pool)
        return open_trained(place)
    if place.is_file() and place.suffix == WORKFLOW_SUFFIX:
        return _open_workflow(place, pool)
    return None


def _open_workflow(place: Path, pool: Pool) -> Conductor:
    """Open the workflow of that file."""
    try:
        return read_workflow_conductor(place, pool)
    except WorkflowError as error:
        raise ConfigError(f"{place} holds no workflow over this pool: {error}") from None


def _chain_workers(name: str) -> tuple[str, ...]:
    """Return the workers in a chain's name; none if the name is not a chain's."""
    if not name.startswith(_CHAIN):
        return ()
    return tuple(one.strip() for one in name.removeprefix(_CHAIN).split(">"))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model of the settings' own, opened over its workers."""

    name: str
    conductor: Conductor | None
    """The conductor that answers; None: the baseline does."""
    baseline: str | None
    pool: Pool
    is_part: bool = False
    """Whether its pool is named, and may be a part of all workers."""
    limits: PresetLimits
    direct: bool = False
    """Whether a single worker is passed through."""
    effort: EffortWord | None = None
    min_confidence: float | None = None
    description: str = ""

    def narrow(self, limits: Limits) -> Limits:
        """Return the limits with the preset's own in place of those that are less strict."""
        own = self.limits
        return Limits(
            steps=min(own.max_steps or limits.steps, limits.steps),
            rounds=min(own.max_rounds or limits.rounds, limits.rounds),
            tokens=_stricter_limit(own.max_tokens, limits.tokens),
            usd=_stricter_limit(own.max_cost_usd, limits.usd),
            seconds=_stricter_limit(own.deadline_s, limits.seconds),
            unknown=limits.unknown,
        )


def open_presets(
    settings: Mapping[str, PresetSetting],
    opener: ConductorOpener,
    limits: PresetLimits,
) -> tuple[Preset, ...]:
    """Open every preset over its part of the pool.

    Args:
        settings: the presets by their names.
        opener: opens conductors over the whole pool.
        limits: those of the whole file.

    Raises:
        ConfigError: one cannot be used; the sentence names it.
    """
    return tuple(_open_preset(name, each, opener, limits) for name, each in settings.items())


def open_patterns(pool: Pool, clients: Mapping[WorkerId, Client]) -> tuple[Preset, ...]:
    """Open every pattern over the pool; over one worker there is nothing to choose."""
    if len(pool) == 1:
        return ()
    return tuple(
        Preset(
            name=f"{PATTERN_PREFIX}{name}",
            conductor=open_conductor(name, pool, clients, ConductorOptions()),
            baseline=None,
            pool=pool,
            limits=PresetLimits(),
            direct=name == ALONE,
            description=description,
        )
        for name, description in PATTERNS.items()
    )


def _open_preset(
    name: str, setting: PresetSetting, opener: ConductorOpener, limits: PresetLimits
) -> Preset:
    where = f"models.{name[:100]}"
    _check_name(where, name)
    _check_within(where, setting.limits, limits)
    try:
        pool = _select_workers(setting, opener.pool)
        conductor = _preset_conductor(setting, opener, pool, limits)
    except (ConfigError, WorkflowError) as error:
        raise ConfigError(f"{where}: {error}") from None
    kind = setting.conductor or ""
    return Preset(
        name=name,
        conductor=conductor,
        baseline=setting.baseline,
        pool=pool,
        is_part=bool(setting.workers),
        limits=setting.limits,
        direct=kind == "best" or kind.startswith("single/"),
        effort=setting.effort,
        min_confidence=setting.min_confidence,
        description=setting.description,
    )


def _check_name(where: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        reason = "a name has up to 100 letters, digits and . _ : @ / - and begins with a letter"
        raise ConfigError(f"{where}: {reason} or digit")
    if name in {MINI_MODEL, ULTRA_MODEL} or name.startswith(_TAKEN):
        raise ConfigError(f"{where}: another model has that name; choose another")


def _check_within(where: str, own: PresetLimits, limits: PresetLimits) -> None:
    """Return if no limit of the preset is above that of the file, where it would bind nothing."""
    for name in PresetLimits.model_fields:
        wanted, most = getattr(own, name), getattr(limits, name)
        if wanted is not None and most is not None and wanted > most:
            raise ConfigError(f"{where}.limits.{name} must be at most {most:g}, as in [limits]")


def _select_workers(setting: PresetSetting, pool: Pool) -> Pool:
    for worker in setting.workers:
        if worker not in pool:
            known = suggest_names(worker, (one.id for one in pool))
            raise ConfigError(f"there is no worker {worker!r}; {known}")
    return pool.subset(map(WorkerId, setting.workers)) if setting.workers else pool


def _preset_conductor(
    setting: PresetSetting, opener: ConductorOpener, pool: Pool, limits: PresetLimits
) -> Conductor | None:
    """Return the conductor of the preset; None: it has a baseline."""
    if setting.workflow:
        most = setting.limits.max_steps or limits.max_steps or MAX_STEPS
        return read_workflow_conductor(Path(setting.workflow), pool, most)
    return None if setting.conductor is None else opener.over(pool, setting.conductor)


def _stricter_limit(own: _Number | None, other: _Number | None) -> _Number | None:
    if own is None or other is None:
        return other if own is None else own
    return min(own, other)
