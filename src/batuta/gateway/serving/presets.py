"""The settings' own models, `[models.NAME]`, as they are served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from batuta.config.presets import Preset
from batuta.config.served_systems import preset_system
from batuta.core import Limits
from batuta.errors import ConfigError
from batuta.gateway.serving.baselines import LearnedMethods, find_method
from batuta.gateway.serving.models import ServedModel, model_of_system


def preset_models(
    presets: Iterable[Preset],
    limits: Limits,
    max_rounds: int | None,
    learned: LearnedMethods | None,
) -> tuple[ServedModel, ...]:
    """Every preset as a served model.

    Args:
        presets: as the settings have them.
        limits: the most that a run of any model may spend.
        max_rounds: as the settings say for all models; None: as each conductor needs.
        learned: the methods that outcomes teach.

    Raises:
        ConfigError: one names a baseline that is not there; the sentence says which.
    """
    return tuple(_preset_model(each, limits, max_rounds, learned) for each in presets)


def _preset_model(
    preset: Preset, limits: Limits, max_rounds: int | None, learned: LearnedMethods | None
) -> ServedModel:
    if preset.conductor is None:
        served = _baseline_model(preset, limits, learned)
    else:
        served = model_of_system(preset_system(preset, preset.conductor, limits, max_rounds))
    return replace(served, name=preset.name, description=preset.description or served.description)


def _baseline_model(preset: Preset, limits: Limits, learned: LearnedMethods | None) -> ServedModel:
    name = preset.baseline or ""
    if learned is not None and name in learned.names and preset.is_part:
        reason = f"the baseline {name} has learned of all workers; leave out `workers`"
        raise ConfigError(f"models.{preset.name}: {reason}")
    try:
        return find_method(name, preset.pool, preset.narrow(limits), learned)
    except ConfigError as error:
        raise ConfigError(f"models.{preset.name}: {error}") from None
