"""Finds the systems to measure by name, including the user's own in a Python file.

A user's own system is named, for example, `mine.py:ByLength`. The member after the colon is a
conductor (with `plan`), a solver (with `answer`), or a class or function that makes one of these
when it is called without arguments. A function with a first parameter `history` learns from
outcomes:

    def fit_mine(history, *, seed=0): ...  # returns a conductor or a solver
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from batuta.config.conductors import Preset
from batuta.core import Conductor, Pool, WorkerId
from batuta.core.suggestions import suggest_names
from batuta.errors import ConfigError
from batuta.lab.baselines import (
    ConductorSolver,
    PassAtK,
    PromptedConductor,
    SingleWorker,
    Solver,
    with_best_worker,
    with_shuffled_access,
    with_solve_only_subtasks,
)
from batuta.lab.baselines.registry import BASELINES, Baseline, why_not_installed
from batuta.lab.baselines.routing.smoothie import MIN_WORKERS
from batuta.lab.evals.all_workers import (
    AllWorkers,
    UpperBound,
    Vote,
    oracle_score,
    skill_oracle_score,
)
from batuta.lab.evals.learned_methods import (
    ASKS_MODELS,
    LEARNED_METHODS,
    SKILLS,
    SolverFitter,
    UnfittedSolver,
    cascade_fitter,
)
from batuta.lab.evals.served_solver import ServedSolver
from batuta.lab.evals.subject import CONDUCTOR, MINI_CONDUCTOR, Subject, preset_conductor
from batuta.lab.learners.history import History
from batuta.lab.task_sources import REHEARSAL, TASK_SOURCES

_OWN_NAME = re.compile(r"(?P<file>.+\.py):(?P<member>\w+)")


def is_own_system(name: str) -> bool:
    """Return whether the name has the form `FILE.py:MEMBER`."""
    return _OWN_NAME.fullmatch(name) is not None


def open_own_system(name: str) -> tuple[Solver, str]:
    """Return the user's own system of that name, and a digest of its file for the keys of runs.

    The file is executed with all permissions of this process.

    Raises:
        ConfigError: there is no such file or member, the file's code fails, or the member is not a
            system.
    """
    found = _OWN_NAME.fullmatch(name)
    assert found is not None  # noqa: S101 - the caller checked `is_own_system`
    path = Path(found["file"])
    if not path.is_file():
        raise ConfigError(f"there is no file {path} for the system {name}")
    digest = blake2b(path.read_bytes(), digest_size=8).hexdigest()
    member = getattr(_run_file(path.resolve(), digest), found["member"], None)
    if member is None:
        raise ConfigError(f"{path} has no {found['member']}")
    return _as_solver(name, member), digest


@lru_cache(maxsize=8)
def _run_file(path: Path, digest: str) -> object:  # noqa: ARG001 - a changed file is executed again
    """Execute the file, once for all of its systems, and return it as a module."""
    spec = importlib.util.spec_from_file_location(f"own_system_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up the module of the class
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {reason}") from error
    finally:
        sys.modules.pop(spec.name, None)
    return module


def _as_solver(name: str, member: Any) -> Solver:
    if callable(member) and _is_learner(member):
        return UnfittedSolver(name, _make_fitter(name, member))
    return _check_system(name, _call_maker(name, member) if callable(member) else member)


def _is_learner(member: Callable[..., Any]) -> bool:
    """Return whether the first parameter of the function is named `history`."""
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
    except Exception as error:  # a user's code may raise anything
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name} cannot be created: {type(error).__name__}: {reason}") from error


def _check_system(name: str, made: Any) -> Solver:
    if not hasattr(made, "name"):
        raise ConfigError(f"{name} has no attribute `name`, under which its results are stored")
    if hasattr(made, "answer"):
        return cast("Solver", made)
    if hasattr(made, "plan"):
        return ConductorSolver(cast("Conductor", made))
    raise ConfigError(f"{name} is not a system: it has neither `plan` nor `answer`")


ULTRA = "ultra"
RECURSIVE = "ultra+recursion"
MINI = "mini"
BEST_SINGLE = "best-single"
ALL = "all"
"""The name that stands for the systems that `runnable_systems` returns."""
CALIBRATION = "calibration/"
"""The prefix of the names of systems that measure one worker on the calibration questions."""
ENOUGH_ANSWERS = 0.9
"""The share of a record's correct runs whose answers must be known for systems that compare answers
to be measured."""
MIN_ROUNDS = 2
"""The number of rounds that `ultra+recursion` may have; more if the settings allow more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A way of answering questions, under its name in the report."""

    name: str
    solver: Solver
    needs_calibration: bool = False
    """Whether each worker is measured alone first, to know which is the best, or to learn."""
    upper_bound: UpperBound | None = None
    """Computes the score of a reference line from all replies to a question; None for methods."""
    worker: WorkerId | None = None
    """The only worker of a single-worker system, which runs only on pools that contain it."""
    uses_all_answers: bool = False
    """Whether it reads a reply of every worker to the bare question. On a record, such systems are
    run together, so that they share these replies."""
    has_conductor: bool = False
    """Whether a conductor decides the number of steps."""
    drafter: str = CONDUCTOR
    """The name in `Subject.identities` of the conductor's model, if that is not a worker."""
    terms: str = ""
    """Further settings that runs depend on, besides pool, limits and method, as text for keys."""

    def has_workers_in(self, pool: Pool) -> bool:
        """Return whether a pool has a worker that the system can use.

        A single-worker system needs its worker, a served system any worker of its own pool; all
        other systems can use every pool.
        """
        if isinstance(self.solver, ServedSolver):
            return any(worker.id in pool for worker in self.solver.system.pool)
        return self.worker is None or self.worker in pool

    @property
    def is_reference(self) -> bool:
        """Whether it is a reference line, which bounds what methods can reach."""
        return self.upper_bound is not None

    @property
    def chooses_among_replies(self) -> bool:
        """Whether it chooses the answer outside the engine, where no policy can check the answer.

        A method that is not fitted yet counts only if it compares answers.
        """
        known = ServedSolver | ConductorSolver | SingleWorker | UnfittedSolver
        chooses = not isinstance(self.solver, known) or _compares_answers(self)
        return chooses and not self.is_reference

    @property
    def fitter(self) -> SolverFitter | None:
        """Fits the system to outcomes; None if it needs no fitting."""
        return self.solver.fit if isinstance(self.solver, UnfittedSolver) else None


_MakeSystem = Callable[[Subject], System]


def _numbered_system(baseline: Baseline, name: str, number: int) -> System:
    """Return the system of a baseline that is not fitted to outcomes."""
    assert baseline.build is not None  # noqa: S101 - else it learns
    solver = baseline.build(number)
    free = isinstance(solver, ConductorSolver) and solver.calls is None
    return System(name=name, solver=solver, needs_calibration=not free, has_conductor=free)


def _baseline_system(baseline: Baseline, _: Subject) -> System:
    return _numbered_system(baseline, baseline.name, baseline.number)


def _conductor_system(name: str, subject: Subject, conductor: Conductor | None = None) -> System:
    """Return the conductor, by default the subject's own, as `batuta serve` would serve it."""
    served = subject.ultra(conductor or _require_conductor(subject))
    return System(name=name, solver=ServedSolver(served), has_conductor=True)


def _recursive_system(subject: Subject) -> System:
    """Return `ultra` with a second round to correct the first, even if the settings allow one."""
    served = subject.ultra(_require_conductor(subject))
    limits = replace(served.limits, rounds=max(MIN_ROUNDS, served.limits.rounds))
    solver = ServedSolver(replace(served, limits=limits))
    return System(name=RECURSIVE, solver=solver, has_conductor=True)


def _mini_system(subject: Subject) -> System:
    """Return the system that the settings serve as batuta-mini."""
    served = subject.served_mini()
    return System(
        name=MINI,
        solver=ServedSolver(served),
        has_conductor=not served.direct,
        drafter=MINI_CONDUCTOR,
    )


def _preset_system(preset: Preset, subject: Subject) -> System:
    """Return the system that the settings serve as a preset."""
    served = subject.served_preset(preset)
    workers = tuple(worker.id for worker in served.pool)
    least = served.settings.min_confidence
    threshold = None if least is None else (least, repr(subject.confidence))
    return System(
        name=preset.name,
        solver=ServedSolver(served),
        has_conductor=not served.direct,
        drafter=preset_conductor(preset.name),
        terms=repr((served.limits, served.effort, workers, threshold)),
    )


def _prompted_system(name: str, subject: Subject) -> System:
    if subject.simulated:
        return _conductor_system(name, subject, TASK_SOURCES[REHEARSAL]().hand_written_conductor())
    return System(
        name=name,
        solver=ConductorSolver(PromptedConductor(subject.clients)),
        needs_calibration=True,
        has_conductor=True,
    )


def _require_conductor(subject: Subject) -> Conductor:
    if subject.conductor is None:
        raise ConfigError("a record has no conductor; name one with --conductor FOLDER")
    return subject.conductor


def _best_worker_system(subject: Subject) -> System:
    best_only = with_best_worker(_require_conductor(subject))
    return replace(
        _conductor_system("ultra-best-worker", subject, best_only), needs_calibration=True
    )


_CONDUCTOR_SYSTEMS: Mapping[str, _MakeSystem] = {
    ULTRA: partial(_conductor_system, ULTRA),
    RECURSIVE: _recursive_system,
    "ultra-solve-only": lambda s: _conductor_system(
        "ultra-solve-only", s, with_solve_only_subtasks(_require_conductor(s))
    ),
    "ultra-shuffled-access": lambda s: _conductor_system(
        "ultra-shuffled-access", s, with_shuffled_access(_require_conductor(s))
    ),
    "ultra-best-worker": _best_worker_system,
}
_FIXED_BASELINES = {each.name: each for each in BASELINES if each.name not in LEARNED_METHODS}
_REPLY_READERS = frozenset(each.name for each in BASELINES if each.reads_replies)
_EMBEDDING_CHOOSERS = frozenset(each.name for each in BASELINES if each.embeds_replies)
_ANSWER_CHOOSERS = frozenset(each.name for each in BASELINES if each.fit_chooser is not None)
_PROMPTED_SYSTEMS: Mapping[str, _MakeSystem] = {
    name: partial(_prompted_system, name) for name in ("prompted", "hand-written")
}
_BOUNDS: Mapping[str, _MakeSystem] = {
    "vote": lambda _: System(name="vote", solver=Vote(), uses_all_answers=True),
    "oracle": lambda _: System(
        name="oracle", solver=AllWorkers(), upper_bound=oracle_score, uses_all_answers=True
    ),
}
_NAMED_SYSTEMS: Mapping[str, _MakeSystem] = {
    **{
        name: partial(_baseline_system, each)
        for name, each in _FIXED_BASELINES.items()
        if not each.number
    },
    **_BOUNDS,
    **_PROMPTED_SYSTEMS,
    **_CONDUCTOR_SYSTEMS,
}


_SAMPLED_SYSTEMS: Mapping[str, Callable[[str, int], System]] = {
    **{
        name: cast("Callable[[str, int], System]", partial(_numbered_system, each))
        for name, each in _FIXED_BASELINES.items()
        if each.number
    },
    "pass@": lambda name, k: System(
        name=name, solver=PassAtK(k), needs_calibration=True, upper_bound=oracle_score
    ),
    "skill-oracle@": lambda name, k: System(
        name=name, solver=AllWorkers(k), upper_bound=skill_oracle_score
    ),
}
_CASCADE_PRICE_PATTERN = re.compile(r"cascade@(0?\.\d{1,6})")
_COUNT_PATTERN = re.compile(r"(.*?[@-])([1-9]\d{0,2})")
MOST_SAMPLES = 999
"""The greatest number that a system's name can end with."""


def _own_system(name: str) -> System:
    solver, digest = open_own_system(name)
    free = isinstance(solver, ConductorSolver)
    return System(
        name=name, solver=solver, needs_calibration=True, has_conductor=free, terms=digest
    )


def _served_system(name: str, subject: Subject) -> System | None:
    """Return the system that the settings serve under that name, or None."""
    if name == MINI and subject.mini is not None:
        return _mini_system(subject)
    preset = next((one for one in subject.presets if one.name == name), None)
    return preset and _preset_system(preset, subject)


def system_names(subject: Subject) -> tuple[str, ...]:
    """Return the names that `find_system` accepts, with one example of each name with a number.

    The names of a user's own systems are not known here.
    """
    workers = (str(worker.id) for worker in subject.pool)
    counted = (f"{name}5" for name in _SAMPLED_SYSTEMS)
    presets = (preset.name for preset in subject.presets)
    names = (*workers, *presets, *_method_names(subject), *LEARNED_METHODS)
    return (*names, "cascade@0.001", *counted)


def _method_names(subject: Subject) -> tuple[str, ...]:
    excluded = set[str]() if subject.simulated else {"hand-written"}
    if subject.replay_pool is not None:
        excluded |= {*_PROMPTED_SYSTEMS, *(_CONDUCTOR_SYSTEMS if subject.conductor is None else ())}
    return tuple(name for name in _NAMED_SYSTEMS if name not in excluded)


def runnable_systems(subject: Subject) -> tuple[str, ...]:
    """Return the systems that `all` stands for: those that can be run on the subject.

    Learned systems that choose among answers need at least three workers. Systems that the server
    refuses, because a policy cannot check them, are excluded.

    On a record, systems are excluded that need more samples or answers than the record has, that
    embed replies (a record has only final answers), or that ask models something other than the
    question; so are those whose workers read other replies, unless missing replies are simulated.
    """
    names = _runnable_names(subject)
    if subject.guardrails.grounded is None:
        return names
    return tuple(n for n in names if not _find_named(n, subject).chooses_among_replies)


def _runnable_names(subject: Subject) -> tuple[str, ...]:
    replays = subject.replay_pool
    excluded = set[str]() if len(subject.pool) >= MIN_WORKERS else set(_ANSWER_CHOOSERS)
    if replays is None:
        found = (*_method_names(subject), *LEARNED_METHODS, "self-consistency@5", "pass@5")
        return tuple(name for name in found if name not in excluded)
    excluded |= {
        *_EMBEDDING_CHOOSERS,
        *ASKS_MODELS,
        *(() if replays.simulate else _REPLY_READERS),
    }
    if replays.record.answers_qms is None:
        excluded |= {"vote", "cascade", *_ANSWER_CHOOSERS}
    depth = replays.record.scores_qms.shape[2]
    sampled = ("self-consistency@", "pass@", "skill-oracle@") if depth > 1 else ()
    found = (*_method_names(subject), *LEARNED_METHODS, *(f"{name}{depth}" for name in sampled))
    return tuple(name for name in found if name not in excluded)


def why_not_runnable(system: System, subject: Subject) -> str | None:
    """Return why the system cannot be measured here, or on the subject's record; None if it can."""
    if system.worker is not None:
        return None
    if (missing := why_not_installed(system.name)) is not None or subject.replay_pool is None:
        return missing
    record = subject.replay_pool.record
    counted, depth = _COUNT_PATTERN.fullmatch(system.name), record.scores_qms.shape[2]
    if counted and counted[1] in _SAMPLED_SYSTEMS and int(counted[2]) > depth:
        return f"it needs {counted[2]} runs of a worker, and the record has {depth}"
    if system.name == SKILLS:
        return "it asks a model which skills a question needs, and a record has none"
    if not _compares_answers(system):
        return None
    if record.answers_qms is None:
        return "the record has no answers to compare, only scores"
    share = record.answered_share()
    if share >= ENOUGH_ANSWERS:
        return None
    return f"the record has the answers of only {100 * share:.0f} % of the correct runs"


def _compares_answers(system: System) -> bool:
    return system.worker is None and (
        system.name in {"vote", *_ANSWER_CHOOSERS}
        or system.name.startswith(("cascade", "self-consistency@"))
    )


def calibration_system(worker: WorkerId) -> System:
    """Return the system that measures a single worker on the calibration questions."""
    return _worker_system(f"{CALIBRATION}{worker}", worker)


def _worker_system(name: str, worker: WorkerId) -> System:
    return System(name=name, solver=SingleWorker(worker), worker=worker)


def find_system(name: str, subject: Subject) -> System:
    """Find the system of that name: a worker's id, a preset, a method, or `FILE.py:MEMBER`.

    A record can name a method among its workers, as one from inspect_ai does. The name then stands
    for the recorded answers.

    Raises:
        ConfigError: there is no such system, it cannot be opened, or the server would refuse it.
    """
    found = _find_named(name, subject)
    policy = subject.guardrails.grounded
    if policy is not None and found.chooses_among_replies:
        raise ConfigError(
            f"{name} chooses among replies: {policy.name} cannot check them, so the server refuses "
            "it; measure it with settings without that policy"
        )
    return found


def is_method(name: str) -> bool:
    """Return whether the name is that of a method, and not of a worker or preset."""
    counted = _COUNT_PATTERN.fullmatch(name)
    return (
        name in {ALL, MINI, *_NAMED_SYSTEMS, *LEARNED_METHODS}
        or name.startswith("cascade@")
        or (counted is not None and counted[1] in _SAMPLED_SYSTEMS)
        or is_own_system(name)
    )


def _find_named(name: str, subject: Subject) -> System:
    counted = _COUNT_PATTERN.fullmatch(name)
    if subject.replay_pool is not None and name in subject.pool:
        return _worker_system(name, subject.pool[name].id)
    if served := _served_system(name, subject):
        return served
    if name in LEARNED_METHODS:
        unfitted = UnfittedSolver(name, LEARNED_METHODS[name])
        return System(
            name=name,
            solver=unfitted,
            needs_calibration=True,
            uses_all_answers=name in _ANSWER_CHOOSERS,
        )
    if priced := _CASCADE_PRICE_PATTERN.fullmatch(name):
        return System(
            name=name,
            solver=UnfittedSolver(name, cascade_fitter(float(priced[1]))),
            needs_calibration=True,
        )
    if name in _method_names(subject):
        return _NAMED_SYSTEMS[name](subject)
    if counted and counted[1] in _SAMPLED_SYSTEMS:
        return _SAMPLED_SYSTEMS[counted[1]](name, int(counted[2]))
    if name in subject.pool:
        return _worker_system(name, subject.pool[name].id)
    return _other_system(name, subject)


def _other_system(name: str, subject: Subject) -> System:
    """Open a user's own system; raise a ConfigError for any other name."""
    if is_own_system(name):
        return _own_system(name)
    if name.startswith("cascade@"):
        raise ConfigError(
            f"{name}: the price of a call must be below 1 and have at most six decimals, as in "
            "cascade@0.001"
        )
    raise ConfigError(f"there is no system {name!r}; {suggest_names(name, system_names(subject))}")
