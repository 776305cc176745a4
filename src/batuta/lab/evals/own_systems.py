"""Systems of one's own, named by a Python file: `--systems mine.py:ByLength`.

The name after the colon is a conductor (it has `plan`), a solver (it has `answer`), a class or
function without arguments that gives one, or a function of a history, which learns from outcomes:

    def fit_mine(history, *, seed=0): ...  # gives a conductor or a solver
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from batuta.core import Conductor
from batuta.errors import ConfigError
from batuta.lab.baselines import ConductorSolver, Solver
from batuta.lab.evals.learned_methods import SolverFitter, UnfittedSolver
from batuta.lab.learners.history import History

_OWN_NAME = re.compile(r"(?P<file>.+\.py):(?P<member>\w+)")


def is_own_system(name: str) -> bool:
    """Tell whether a system's name is that of a member of a Python file."""
    return _OWN_NAME.fullmatch(name) is not None


def open_own_system(name: str) -> tuple[Solver, str]:
    """Return the system of that name, and a digest of its file, which its results depend on.

    The code in the file is run, as that of any program that one starts.

    Raises:
        ConfigError: there is no such file or member, it fails, or it is no system.
    """
    found = _OWN_NAME.fullmatch(name)
    assert found is not None  # noqa: S101 - `is_own_system` was asked
    path = Path(found["file"])
    if not path.is_file():
        raise ConfigError(f"there is no file {path} for the system {name}")
    member = getattr(_run_file(path), found["member"], None)
    if member is None:
        raise ConfigError(f"{path} has no {found['member']}")
    return _as_solver(name, member), blake2b(path.read_bytes(), digest_size=8).hexdigest()


def _run_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(f"own_system_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - it ends in .py
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a stranger's file may do anything
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {reason}") from error
    return module


def _as_solver(name: str, member: Any) -> Solver:
    if callable(member) and _is_learner(member):
        return UnfittedSolver(name, _make_fitter(name, member))
    return _check_system(name, _call_maker(name, member) if callable(member) else member)


def _is_learner(member: Callable[..., Any]) -> bool:
    """Tell whether it is a function of a history."""
    return next(iter(inspect.signature(member).parameters), "") == "history"


def _make_fitter(name: str, fit: Callable[..., Any]) -> SolverFitter:
    takes_seed = "seed" in inspect.signature(fit).parameters

    def fitted(history: History, *, seed: int = 0) -> Solver:
        made = _call_maker(name, fit, history, **({"seed": seed} if takes_seed else {}))
        return _check_system(name, made)

    return fitted


def _call_maker(name: str, member: Callable[..., Any], *given: Any, **named: Any) -> Any:
    try:
        return member(*given, **named)
    except Exception as error:  # a stranger's code may do anything
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name} cannot be made: {type(error).__name__}: {reason}") from error


def _check_system(name: str, made: Any) -> Solver:
    if not hasattr(made, "name"):
        raise ConfigError(f"{name} has no `name`, which its results are filed under")
    if hasattr(made, "answer"):
        return cast("Solver", made)
    if hasattr(made, "plan"):
        return ConductorSolver(cast("Conductor", made))
    raise ConfigError(f"{name} is no system: it has neither `plan` nor `answer`")
