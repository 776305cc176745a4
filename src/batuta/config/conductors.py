"""Opens conductors over a pool, from their names or folders and the options of the settings.

Presets (`[models.NAME]`) and patterns, which are served under names of their own, are opened here
too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

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
from batuta.core.run import stricter_limit
from batuta.core.suggestions import suggest_names
from batuta.embedded.policy import CARD_FILE, ConductorCard, is_policy, open_policy
from batuta.errors import ConfigError, WorkflowError
from batuta.language import PromptOptions

CONDUCTOR = WorkerId("conductor")
"""The id of a conducting model that is not a worker; also the key of the conductor's breaker in
`LoadedConfig.health`."""

_PROMPT_OPTIONS = ("descriptions", "examples", "prices", "prompt", "structured")
"""Options of [conductor] that apply only to a prompt that no card describes."""
_DRAFT_OPTIONS = ("breaker_pause_s", "breaker_questions", "effort", "max_tokens", "temperature")
"""Options of [conductor] that apply only to a prompted model."""
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
"""Conductors that are made without a model or clients, by name."""
_CONSULTING: Mapping[str, Callable[[Mapping[WorkerId, Client]], Conductor]] = {
    "gate": lambda clients: Gate(clients=clients),
    "lead-and-hands": lambda clients: LeadAndHands(clients=clients),
}
"""Conductors that call workers of the pool to judge or to plan, by name."""
WORKFLOW_SUFFIX = ".txt"
"""The suffix of a workflow file."""
_SINGLE = "single/"
_CHAIN = "chain/"
"""The prefix of a chain's name; worker ids separated by `>` follow."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,99}")
PATTERN_PREFIX = "pattern/"
"""The prefix of patterns' names; they are served without any setting if the pool has two workers
or more."""
ALONE = "alone"
"""The pattern of one worker: requests pass through unchanged, as with `worker/NAME`."""
_RESERVED_PREFIXES = ("worker/", "baseline/", PATTERN_PREFIX)
PATTERNS = {
    ALONE: "The best worker acts, and nobody else is asked.",
    "escalate": "The cheapest worker acts; the best takes over after failures, till the next task.",
    "advise": "The cheapest worker acts; where it is stuck the best one says what to do.",
    "gate": "The cheapest worker acts; another family's model judges whether it is done.",
    "lead-and-hands": "The best worker plans and reviews on a short brief; the cheapest one acts.",
    "fusion": "Up to three workers answer; the best compares the answers, and writes its own.",
    "critique": "The best worker answers, the second best criticises, the best one revises.",
}
"""Conductors that are served over all workers as `pattern/NAME`, with their descriptions."""


def open_trained(path: Path) -> LLMConductor:
    """Open a trained conductor's folder or GGUF file; its model runs in this process.

    Raises:
        ConfigError: the folder or file cannot be used.
    """
    model, card, name = open_policy(path)
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
    """Open the conductor of that path or, if the path has none, of that name.

    Args:
        name: the id of a worker, whose model is prompted; one of `FIXED`; `gate`;
            `lead-and-hands`; `single/<id>`; `chain/<id>><id>` (workers one after another); the
            folder of a trained conductor or selector; a trained conductor's GGUF file; or a
            workflow file `*.txt`.
        pool: the workers that the conductor can use.
        clients: the workers' clients.
        options: the options of a prompted conductor; the other conductors do not use them.

    Raises:
        ConfigError: there is no such conductor, or its folder or file cannot be used.
    """
    path = Path(name)
    exists = os.path.exists(name)  # noqa: PTH110 - False for a name that is too long
    opened = _open_path(path, pool) if exists else None
    if opened is not None:
        return opened
    if name in FIXED:
        return FIXED[name]()
    if name in _CONSULTING:
        return _CONSULTING[name](clients)
    if name.startswith(_SINGLE) and name.removeprefix(_SINGLE) in pool:
        return single_worker(name.removeprefix(_SINGLE))
    chain = _chain_workers(name)
    if chain and all(worker in pool for worker in chain):
        return worker_chain(chain)
    if name not in pool:
        known = suggest_names(name, (*FIXED, *_CONSULTING, *(worker.id for worker in pool)))
        missing = f"there is no conductor {name!r} and no folder of a trained one"
        if exists and path.is_dir():
            missing = f"{name} is not the folder of a trained conductor: it has no {CARD_FILE}"
        raise ConfigError(f"{missing}; {known}")
    worker = pool[name]
    return prompted_conductor(f"{PROMPTED}{worker.id}", worker, clients[worker.id], options)


def _open_path(path: Path, pool: Pool) -> Conductor | None:
    """Open a trained conductor, a selector or a workflow file; None for another path.

    Raises:
        ConfigError: the folder or file cannot be used.
    """
    if path.is_dir() and is_selector(path):
        return open_selector(path)
    if path.is_dir() and is_workflow_selector(path):
        return open_workflow_selector(path)
    if is_policy(path):
        ConductorCard.read(path).check_pool(worker.id for worker in pool)
        return open_trained(path)
    if path.is_file() and path.suffix == WORKFLOW_SUFFIX:
        return _open_workflow(path, pool)
    return None


def _open_workflow(path: Path, pool: Pool) -> Conductor:
    try:
        return read_workflow_conductor(path, pool)
    except WorkflowError as error:
        raise ConfigError(f"{path} has no workflow over this pool: {error}") from None


def _chain_workers(name: str) -> tuple[str, ...]:
    if not name.startswith(_CHAIN):
        return ()
    return tuple(worker.strip() for worker in name.removeprefix(_CHAIN).split(">"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorOpener:
    """Opens conductors by their names or paths, over one pool."""

    pool: Pool
    clients: Mapping[WorkerId, Client]
    setting: ConductorSetting = ConductorSetting()
    http: HttpTransport | None = None
    """None: `model` of [conductor] is ignored."""
    specs: Mapping[WorkerId, WorkerSpec] = field(default_factory=dict[WorkerId, WorkerSpec])
    """How the workers are reached; empty for simulated workers."""
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    """The environment variables, with the providers' keys and addresses."""
    health: WorkerHealth = field(default_factory=lambda: WorkerHealth(DRAFT_BREAKER))
    """The breaker for malformed drafts, which all prompted conductors share."""

    def default_conductor(self, name: str | None) -> Conductor:
        """Return the named conductor, else that of [conductor], else the best worker, prompted.

        Raises:
            ConfigError: the conductor cannot be opened.
        """
        if name is None and self.setting.model and self.http is not None:
            return self._open_external_model(self.http)
        return self.named(name or self.setting.worker or self.pool.ranked()[0].id)

    def named(self, name: str) -> Conductor:
        """Return the conductor of that name or path, as `open_conductor` takes it.

        Raises:
            ConfigError: there is no such conductor, its folder or file cannot be used, or a
                sampling setting has no effect on its model.
        """
        spec = self.specs.get(WorkerId(name))
        options = self._options(spec.provider if spec else None)
        opened = open_conductor(name, self.pool, self.clients, options)
        if spec and conductor_worker(opened):
            check_sampling(spec, self._own_sampling(), "conductor")
        return opened

    def open_over_subpool(self, pool: Pool, name: str) -> Conductor:
        """Return the conductor opened over a sub-pool; a conducting worker may be outside of it.

        Raises:
            ConfigError: as for `named`.
        """
        return self.named(name) if name in self.pool else replace(self, pool=pool).named(name)

    def check_options(self, opened: Iterable[Conductor]) -> None:
        """Check that each prompt or draft option of [conductor] applies to an opened conductor.

        Raises:
            ConfigError: an option applies to none of them; the message names the first one.
        """
        prompted = [worker for each in opened if (worker := conductor_worker(each))]
        plain = [each for each in prompted if not (self.setting.card and each.id == CONDUCTOR)]
        drafts = () if prompted else _DRAFT_OPTIONS
        shown = () if plain else _PROMPT_OPTIONS
        idle = sorted(self.setting.model_fields_set.intersection((*drafts, *shown)))
        if idle and idle[0] in _PROMPT_OPTIONS and prompted:
            reason = "a trained conductor's card sets the prompt"
        else:
            reason = "no model is prompted to conduct"
        if idle:
            raise ConfigError(f"conductor.{idle[0]} has no effect: {reason}")

    def _open_external_model(self, http: HttpTransport) -> LLMConductor:
        """Open a model that is not a worker; a card, if there is one, sets the prompt.

        Raises:
            ConfigError: the model cannot be reached, or does not match its card or the settings.
        """
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
        setting = self.setting
        return Sampling(
            temperature=setting.temperature, max_tokens=setting.max_tokens, effort=setting.effort
        )

    def _options(
        self, provider: str | None = None, card: ConductorCard | None = None
    ) -> ConductorOptions:
        """Return the options of settings and card; the settings' sampling overrides the card's."""
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
    """A served model that the settings define, or a built-in pattern, opened over its workers."""

    name: str
    conductor: Conductor | None
    """The conductor that answers; None: the baseline answers."""
    baseline: str | None
    """The baseline's name, without `baseline/`; None: the conductor answers."""
    pool: Pool
    is_part: bool = False
    """True if the preset lists its workers, so that its pool may be a subset."""
    limits: PresetLimits
    direct: bool = False
    """True if requests are passed unchanged to a single worker."""
    effort: EffortWord | None = None
    """Default effort of requests; None: each worker's own."""
    min_confidence: float | None = None
    """Minimum probability that an answer is correct; None: no minimum."""
    description: str = ""

    def narrow(self, limits: Limits) -> Limits:
        """Return limits that are each the stricter of the preset's and the given one."""
        own = self.limits
        return Limits(
            steps=min(own.max_steps or limits.steps, limits.steps),
            rounds=min(own.max_rounds or limits.rounds, limits.rounds),
            tokens=stricter_limit(own.max_tokens, limits.tokens),
            usd=stricter_limit(own.max_cost_usd, limits.usd),
            seconds=stricter_limit(own.deadline_s, limits.seconds),
            unknown=limits.unknown,
        )


def open_presets(
    settings: Mapping[str, PresetSetting],
    opener: ConductorOpener,
    limits: PresetLimits,
) -> tuple[Preset, ...]:
    """Open every preset over its part of the pool.

    Args:
        settings: the presets by name.
        opener: opens conductors over the whole pool.
        limits: the limits of the whole file.

    Raises:
        ConfigError: a preset cannot be used; the message names it.
    """
    return tuple(_open_preset(name, each, opener, limits) for name, each in settings.items())


def open_patterns(pool: Pool, clients: Mapping[WorkerId, Client]) -> tuple[Preset, ...]:
    """Open every pattern over the pool; return none if the pool has only one worker."""
    if len(pool) == 1:
        return ()
    return tuple(
        Preset(
            name=f"{PATTERN_PREFIX}{name}",
            # not `open_conductor`, which prefers a folder of that name
            conductor=FIXED[name]() if name in FIXED else _CONSULTING[name](clients),
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
        direct=kind in {"best", ALONE} or kind.startswith(_SINGLE),
        effort=setting.effort,
        min_confidence=setting.min_confidence,
        description=setting.description,
    )


def _check_name(where: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: use 1 to 100 of: letters, digits, `._:@/-`; start with a letter or digit"
        )
    if name in {MINI_MODEL, ULTRA_MODEL} or name.startswith(_RESERVED_PREFIXES):
        raise ConfigError(
            f"{where}: another model has that name, or it begins with worker/, baseline/ or "
            f"{PATTERN_PREFIX}, as other models do; choose another name"
        )


def _check_within(where: str, own: PresetLimits, limits: PresetLimits) -> None:
    """Check that no limit of a preset exceeds that of the file, because it would have no effect."""
    for name in PresetLimits.model_fields:
        limit, highest = getattr(own, name), getattr(limits, name)
        if limit is not None and highest is not None and limit > highest:
            raise ConfigError(
                f"{where}.limits.{name} must be at most {highest:.15g}, as in [limits]"
            )


def _select_workers(setting: PresetSetting, pool: Pool) -> Pool:
    for worker in setting.workers:
        if worker not in pool:
            known = suggest_names(worker, (each.id for each in pool))
            raise ConfigError(f"there is no worker {worker!r}; {known}")
    return pool.subset(map(WorkerId, setting.workers)) if setting.workers else pool


def _preset_conductor(
    setting: PresetSetting, opener: ConductorOpener, pool: Pool, limits: PresetLimits
) -> Conductor | None:
    """Return the conductor of the preset; None for a preset with a baseline."""
    if setting.workflow:
        max_steps = setting.limits.max_steps or limits.max_steps or MAX_STEPS
        return read_workflow_conductor(Path(setting.workflow), pool, max_steps)
    return None if setting.conductor is None else opener.open_over_subpool(pool, setting.conductor)
