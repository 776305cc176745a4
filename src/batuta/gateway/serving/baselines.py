"""Published methods as served models `baseline/NAME`, and the presets `[models.NAME]`.

The methods are plugins: those of the kind `baseline` are always served, those of the kind
`learned-baseline` only with recorded outcomes or, for the cascade, a trained cascade. A method is
loaded when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from batuta.config.conductors import Preset
from batuta.config.served_systems import preset_system
from batuta.core import Limits, Pool
from batuta.core.suggestions import suggest_names
from batuta.engine.solver import Solver
from batuta.errors import ConfigError
from batuta.gateway.serving.models import Outcomes, ServedModel, model_of_system
from batuta.plugins import open_plugin, plugin_names

BASELINE_PREFIX = "baseline/"
"""The prefix of the methods' model names."""
CASCADE = "cascade"
NEEDS_HISTORY = "it learns from outcomes: start the server with --history FILE"
NEEDS_ANSWERS = (
    "it learns from outcomes with their answers: start the server with --history FILE, or with "
    "--cascade FOLDER of a trained cascade"
)

OpenMethod = Callable[[str], Solver]
"""A plugin of the kind `baseline`: returns the method with this name."""


class LearnedMethods(Protocol):
    """Methods that learn from recorded outcomes (`lab.baselines.served.ServedBaselines`)."""

    @property
    def names(self) -> tuple[str, ...]:
        """The methods that can be opened."""
        ...

    @property
    def history(self) -> Outcomes | None:
        """The outcomes; None if none were given."""
        ...

    def open(self, name: str) -> Solver:
        """Open a method."""
        ...


def open_learned_methods(
    pool: Pool, history: Path | None, cascade: Path | None, checker: str | None
) -> LearnedMethods | None:
    """Open the methods that learn from outcomes; return None if all three options are None.

    Raises:
        BatutaError: a file cannot be read or does not fit the pool, or the plugin is missing.
    """
    if history is None and cascade is None and checker is None:
        return None

    def use(opened: Callable[..., LearnedMethods]) -> LearnedMethods:
        return opened(pool, history, cascade, checker)

    return open_plugin("outcomes", "open", use)


def baseline_models(
    pool: Pool, limits: Limits, learned: LearnedMethods | None = None
) -> tuple[ServedModel, ...]:
    """Return each available method as a served model of the pool.

    Args:
        pool: the workers.
        limits: the limits of a run; a fixed number of calls of a loaded method replaces the steps.
        learned: the methods that learn from outcomes; None: none of them is served.
    """
    fixed = {name: partial(_open_fixed, name) for name in plugin_names("baseline")}
    trained = {name: partial(learned.open, name) for name in learned.names} if learned else {}
    return tuple(
        method_model(name, method, pool, limits) for name, method in (fixed | trained).items()
    )


def unavailable_baselines(learned: LearnedMethods | None = None) -> dict[str, str]:
    """Return the model names of methods that lack outcomes to learn from, each with what to do."""
    served = learned.names if learned else ()
    return {
        BASELINE_PREFIX + name: NEEDS_ANSWERS if name == CASCADE else NEEDS_HISTORY
        for name in plugin_names("learned-baseline")
        if name not in served
    }


def find_method(
    name: str, pool: Pool, limits: Limits, learned: LearnedMethods | None
) -> ServedModel:
    """Return the method of this name over a pool.

    Raises:
        ConfigError: the method does not exist, or lacks outcomes to learn from.
    """
    found = {served.name: served for served in baseline_models(pool, limits, learned)}
    if (model := found.get(BASELINE_PREFIX + name)) is not None:
        return model
    if (needed := unavailable_baselines(learned).get(BASELINE_PREFIX + name)) is not None:
        raise ConfigError(f"the baseline {name} is not served: {needed}")
    known = suggest_names(name, (full.removeprefix(BASELINE_PREFIX) for full in found))
    raise ConfigError(f"there is no baseline {name!r}; {known}")


def _open_fixed(name: str) -> Solver:
    def use(opened: OpenMethod) -> Solver:
        return opened(name)

    return open_plugin("baseline", name, use)


def method_model(
    name: str, method: Callable[[], Solver], pool: Pool, limits: Limits
) -> ServedModel:
    """Return a method as a served model, without loading it."""
    return ServedModel(
        name=BASELINE_PREFIX + name,
        conductor=None,
        pool=pool,
        limits=replace(limits, rounds=1),
        description=f"The baseline {name}, a published method to compare with.",
        load=method,
    )


def preset_models(
    presets: Iterable[Preset],
    limits: Limits,
    max_rounds: int | None,
    learned: LearnedMethods | None,
) -> tuple[ServedModel, ...]:
    """Return every preset as a served model.

    Args:
        presets: the presets of the settings.
        limits: the limits of each model, which its preset may lower.
        max_rounds: the settings' limit on rounds; None: as many as each conductor needs.
        learned: the methods that learn from outcomes; None: such methods are not served.

    Raises:
        ConfigError: a preset's baseline is not served, or was trained on all workers and the preset
            names only some.
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
        reason = f"the baseline {name} was trained on all workers; leave out `workers`"
        raise ConfigError(f"models.{preset.name}: {reason}")
    try:
        return find_method(name, preset.pool, preset.narrow(limits), learned)
    except ConfigError as error:
        raise ConfigError(f"models.{preset.name}: {error}") from None
