"""Models of the settings' own, `[models.NAME]`: what answers under the name, and on which terms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from batuta.conductors.fixed_workflows import read_workflow_conductor
from batuta.conductors.open_conductor import open_conductor
from batuta.conductors.prompted import ConductorOptions
from batuta.config.aliases import MINI_MODEL, ULTRA_MODEL
from batuta.config.conductors import ConductorOpener
from batuta.config.settings import PresetLimits, PresetSetting
from batuta.config.worker_settings import EffortWord
from batuta.core import MAX_STEPS, Client, Conductor, Limits, Pool, WorkerId
from batuta.core.suggestions import suggest_names
from batuta.errors import ConfigError, WorkflowError

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
        conductor = _open_conductor(setting, opener, pool, limits)
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
    for field in PresetLimits.model_fields:
        wanted, most = getattr(own, field), getattr(limits, field)
        if wanted is not None and most is not None and wanted > most:
            raise ConfigError(f"{where}.limits.{field} must be at most {most:g}, as in [limits]")


def _select_workers(setting: PresetSetting, pool: Pool) -> Pool:
    for worker in setting.workers:
        if worker not in pool:
            known = suggest_names(worker, (one.id for one in pool))
            raise ConfigError(f"there is no worker {worker!r}; {known}")
    return pool.subset(map(WorkerId, setting.workers)) if setting.workers else pool


def _open_conductor(
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
