"""The settings of `batuta train`: a file, with overrides from the command line."""

from __future__ import annotations

import json
import os
import sys
import tomllib
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import typer

from batuta.cli import EXIT_INTERRUPTED
from batuta.config.load import store_target
from batuta.distribution import install_hint
from batuta.errors import ConfigError
from batuta.lab.task_sources import REHEARSAL, WORLD2, check_simulated_questions
from batuta.rendering.terminal import write_error

if TYPE_CHECKING:
    from batuta.lab.train.settings import TrainSettings

EXIT_LIMIT = 4
REQUIRED_PACKAGES = ("torch", "trl", "peft", "accelerate", "datasets")


def load_settings(
    config: Path, changes: Sequence[str] | None, seed: int | None, out: Path | None
) -> TrainSettings:
    """Return the file's settings with the command line's overrides.

    Raises:
        ConfigError: the file cannot be used, or the `[train]` extra is missing.
    """
    require_packages()
    from batuta.config.settings_file import read_settings  # noqa: PLC0415 - after the check
    from batuta.lab.train.settings import TrainSettings  # noqa: PLC0415 - after the check

    overrides = [("seed", seed), ("output", None if out is None else str(out))]
    named = [f"{name}={json.dumps(value)}" for name, value in overrides if value is not None]
    return override_settings(
        read_settings(config, TrainSettings),
        [*(changes or ()), *named],
        f"{config} with the options of the command line",
    )


def check_questions(pool: str, names: Iterable[str], *, allowed: bool) -> None:
    """Raise `ConfigError` for a simulated world's questions to real models, unless allowed."""
    simulated = pool.partition(":")[0] in {REHEARSAL, WORLD2}
    check_simulated_questions(names, pool, simulated=simulated, allowed=allowed)


def with_executor(changes: list[str] | None, executor: str | None) -> list[str]:
    """Return the changes, with another one for the executor if it is not None."""
    named = [] if executor is None else [f"pool.executor={json.dumps(executor)}"]
    return [*(changes or ()), *named]


def require_packages() -> None:
    """Check that the `[train]` extra is installed, and silence its libraries.

    In a terminal, print that they are being loaded.

    Raises:
        ConfigError: a package is missing.
    """
    _silence_libraries()
    for name in REQUIRED_PACKAGES:
        if find_spec(name) is None:
            raise ConfigError(f"training needs {name}; install it: {install_hint('train')}")
    if sys.stderr.isatty():
        write_error("batuta: loading the training libraries\n")


def require_one_process(what: str) -> None:
    """Check that no launcher has started several processes, which would write the same files.

    Raises:
        ConfigError: there are several.
    """
    if (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ConfigError(
            f"{what} runs in one process, and {processes} were started: run it alone; only "
            "`batuta train conductor --config` is divided among processes"
        )


@contextmanager
def budget_exit() -> Generator[None]:
    """Exit with 4 if the budget is spent, or 130 if the training was stopped, with a message.

    Of several processes only the process of rank 0 exits with an error, the others with 0: a
    launcher kills all processes if one fails, and rank 0 may still be writing the checkpoint.

    Raises:
        typer.Exit: the budget is spent, or the training was stopped.
    """
    from batuta.lab.train.budget import BudgetSpentError  # noqa: PLC0415 - after the check
    from batuta.lab.train.stopping import TrainingStoppedError  # noqa: PLC0415 - loads torch

    try:
        yield
    except (BudgetSpentError, TrainingStoppedError) as ended:
        if os.environ.get("RANK", "0") != "0":
            raise typer.Exit(0) from None
        write_error(f"batuta: {ended}\n")
        is_spent = isinstance(ended, BudgetSpentError)
        raise typer.Exit(EXIT_LIMIT if is_spent else EXIT_INTERRUPTED) from None


def add_run_tasks(settings: TrainSettings, store: str | None, share: float) -> TrainSettings:
    """Return the settings with a share of the questions from served runs; print how many there are.

    Raises:
        ConfigError: nothing can be learned from the runs.
        StoreError: the runs cannot be read.
    """
    from batuta.lab.evals.judged_runs import read_judged_runs  # noqa: PLC0415 - after the check
    from batuta.lab.train.questions import mix_in_runs  # noqa: PLC0415 - same

    found = anyio.run(read_judged_runs, store or store_target())
    write_error(f"{found}.\n")
    return mix_in_runs(settings, f"runs:{store}" if store else "runs", share)


def override_settings(
    settings: TrainSettings, changes: Sequence[str], source: str
) -> TrainSettings:
    """Return the settings with `KEY=VALUE` changes, applied in order.

    Messages about the changed settings begin with `source`.

    Raises:
        ConfigError: a change has no key or value, or its setting is unknown or out of range.
    """
    from batuta.config.settings_file import validate_settings  # noqa: PLC0415 - after the check
    from batuta.lab.train.settings import TrainSettings  # noqa: PLC0415 - after the check

    values: dict[str, Any] = settings.model_dump()
    for change in changes:
        values = _merge_values(values, _parse_override(change))
    return validate_settings(values, source, TrainSettings)


def _parse_override(change: str) -> dict[str, Any]:
    """Return `a.b=value` as nested dicts; a value that is not TOML is a string.

    Raises:
        ConfigError: there is no `=`, or no valid key before it.
    """
    key, equals, value = change.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {change}: write KEY=VALUE, such as optimiser.steps=50")
    try:
        return tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        pass
    try:
        return tomllib.loads(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    except tomllib.TOMLDecodeError:
        raise ConfigError(f"--set {change}: {key!r} is not a valid key") from None


def _merge_values(values: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, overridden by the values in `change`, table by table."""
    merged = dict(values)
    for key, value in change.items():
        inner: Any = merged.get(key)
        if isinstance(value, dict) and (inner is None or isinstance(inner, dict)):
            known = cast("dict[str, Any]", inner or {})
            merged[key] = _merge_values(known, cast("dict[str, Any]", value))
        else:
            merged[key] = value
    return merged


def _silence_libraries() -> None:
    """Turn off libraries' warnings, progress bars and telemetry, but keep variables already set."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
