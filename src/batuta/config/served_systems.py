"""The system that answers under each served name, with its limits and settings.

`batuta ask`, `batuta serve`, `batuta eval` and the Python interface all build their systems here,
so that the measured system is the served one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from batuta.conductors import best_single_worker
from batuta.config.aliases import MINI_MODEL, ULTRA_MODEL
from batuta.config.conductors import Preset
from batuta.config.loaded import LoadedConfig
from batuta.core import (
    MAX_ROUNDS,
    Client,
    Conductor,
    Limits,
    Pool,
    Question,
    ResumeState,
    Run,
    WorkerId,
)
from batuta.core.conductor import ModelConductor, needed_rounds
from batuta.core.suggestions import suggest_names
from batuta.engine import RunHooks, RunSettings, conduct
from batuta.engine.run_loop import DEFAULT_SETTINGS, NO_HOOKS
from batuta.errors import ConfigError
from batuta.language.plan_rules import NO_RULES

LOCAL_TENANT = "local"
"""The tenant of local use without a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSystem:
    """A conductor and its pool under a served name, with the limits and settings of their runs."""

    name: str
    conductor: Conductor
    pool: Pool
    limits: Limits
    """Limits of a request that sets none; `limits.rounds` is the default number of rounds."""
    max_rounds: int = MAX_ROUNDS
    """Maximum number of rounds that a request may ask for."""
    direct: bool = False
    """True if requests go to a single worker, so that no workflow is planned for each question."""
    effort: str | None = None
    """Default effort of questions; None: each worker's own."""
    settings: RunSettings = DEFAULT_SETTINGS

    @property
    def writes_workflows(self) -> bool:
        """Whether the conductor writes a workflow for each question."""
        return not self.direct

    def with_effort(self, question: Question) -> Question:
        """Return the question with this system's effort, unless it sets its own."""
        if self.effort is None or question.sampling.effort is not None:
            return question
        return replace(question, sampling=replace(question.sampling, effort=self.effort))

    async def answer(
        self,
        question: Question,
        clients: Mapping[WorkerId, Client],
        *,
        seed: int | None = None,
        resumed: ResumeState | None = None,
        live: bool = False,
        dry_run: bool = False,
        hooks: RunHooks = NO_HOOKS,
    ) -> Run:
        """Answer the question as `conduct` does; a run that fails is returned, not raised."""
        settings = self.settings
        if (settings.live, settings.dry_run) != (live, dry_run):
            settings = replace(settings, live=live, dry_run=dry_run)
        return await conduct(
            question,
            self.conductor,
            self.pool,
            clients,
            limits=self.limits,
            seed=seed,
            resumed=resumed,
            settings=settings,
            hooks=hooks if hooks.model == self.name else replace(hooks, model=self.name),
        )

    def with_conductor(self, conductor: Conductor) -> ServedSystem:
        """Return a copy with another conductor, and at least the rounds that it needs."""
        rounds = max(self.limits.rounds, needed_rounds(conductor))
        return replace(self, conductor=conductor, limits=replace(self.limits, rounds=rounds))


def ultra_system(
    pool: Pool,
    conductor: Conductor,
    limits: Limits,
    max_rounds: int | None = None,
    *,
    settings: RunSettings = DEFAULT_SETTINGS,
) -> ServedSystem:
    """Make the system that answers as `batuta-ultra`.

    Args:
        pool: the workers.
        conductor: the conductor that writes the workflows.
        limits: the limits of a run.
        max_rounds: rounds of each run, both the default and the maximum. None: the default is the
            larger of the rounds of `limits` and those that the conductor needs; a request may ask
            for more.
        settings: how runs are executed.
    """
    rounds = max_rounds or max(limits.rounds, needed_rounds(conductor))
    return ServedSystem(
        name=ULTRA_MODEL,
        conductor=conductor,
        pool=pool,
        limits=replace(limits, rounds=rounds),
        max_rounds=max_rounds or MAX_ROUNDS,
        settings=settings,
    )


def mini_system(
    pool: Pool,
    conductor: Conductor | None,
    limits: Limits,
    *,
    settings: RunSettings = DEFAULT_SETTINGS,
) -> ServedSystem:
    """Make the system that answers as `batuta-mini`: one step, or the workflows of a model.

    Args:
        pool: the workers.
        conductor: the conductor that the settings name; None: the best worker.
        limits: the limits of a run.
        settings: how runs are executed.
    """
    writes = isinstance(conductor, ModelConductor)
    return ServedSystem(
        name=MINI_MODEL,
        conductor=conductor or best_single_worker(),
        pool=pool,
        limits=limits if writes else replace(limits, steps=1, rounds=1),
        max_rounds=1,
        direct=not writes,
        settings=settings,
    )


def preset_system(
    preset: Preset,
    conductor: Conductor,
    limits: Limits,
    max_rounds: int | None = None,
    *,
    settings: RunSettings = DEFAULT_SETTINGS,
) -> ServedSystem:
    """Make the system that answers as a preset with a conductor.

    Args:
        preset: the preset.
        conductor: the preset's conductor.
        limits: the limits of a run of any served model.
        max_rounds: the rounds set for all models; see `ultra_system`.
        settings: how runs are executed.
    """
    own = preset.narrow(limits)
    rounds = preset.limits.max_rounds or max_rounds
    settings = replace(settings, min_confidence=preset.min_confidence)
    system = ultra_system(preset.pool, conductor, own, rounds, settings=settings)
    if preset.direct:
        own = replace(own, steps=1, rounds=1)
        system = replace(system, limits=own, max_rounds=1, direct=True)
    return replace(system, name=preset.name, effort=preset.effort)


def ultra_of(config: LoadedConfig) -> ServedSystem:
    """Make the system that answers as `batuta-ultra` under this configuration."""
    return ultra_system(
        config.pool,
        config.conductor,
        config.limits,
        config.max_rounds,
        settings=_run_settings(config),
    )


def choose_system(config: LoadedConfig, name: str | None) -> ServedSystem:
    """Make the system of that name: batuta-ultra, batuta-mini, a preset or a pattern.

    Args:
        config: the configuration.
        name: a served name, not an alias; None: batuta-ultra.

    Raises:
        ConfigError: there is no served model of that name, or a baseline answers under it.
    """
    if name is None or name == ULTRA_MODEL:
        return ultra_of(config)
    if name == MINI_MODEL:
        return mini_system(config.pool, config.mini, config.limits, settings=_run_settings(config))
    preset = next((each for each in config.presets if each.name == name), None)
    if preset is None:
        known = (ULTRA_MODEL, MINI_MODEL, *(each.name for each in config.presets))
        raise ConfigError(f"there is no model {name!r}; {suggest_names(name, known)}")
    if preset.conductor is None:
        raise ConfigError(
            f"{name} is the baseline {preset.baseline}, which only a server answers: start "
            "batuta serve"
        )
    return preset_system(
        preset,
        preset.conductor,
        config.limits,
        config.max_rounds,
        settings=_run_settings(config),
    )


def _run_settings(config: LoadedConfig) -> RunSettings:
    rules = config.plan_rules
    return RunSettings(
        timeouts=config.timeouts,
        guardrails=config.guardrails,
        plan_rules=rules if rules is NO_RULES else rules.of_tenant(LOCAL_TENANT),
        tool_classes=config.sessions.rules.tool_classes,
        confidence=config.confidence,
        approvals=tuple(each for each in config.approvals if each.tenant in {"", LOCAL_TENANT}),
    )
