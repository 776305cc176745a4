"""The features of steps that different workflows have in common, for regressions. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from batuta.lab.tune.library import PREPARING_ROLES, Candidate, CandidateStep, StepRole
from batuta.lab.tune.logistic_regression import Feature

Found = tuple[int, int]
"""The number of correct answers that a step reads, and the number of all answers that it reads. A
solver with preparations counts as reading the answer that its worker gives alone."""

STEP_VARIANCES = {"base": 2.0, "worker": 1.0, "group": 0.15, "worker_group": 0.8, "level": 1.0,
                   "worker_level": 0.3, "pair": 0.3, "self": 0.5, "again": 0.3, "wording": 0.1,
                   "own": 0.15}  # fmt: skip
"""The prior variances of the weights in a step's log-odds, by kind of feature."""
SOLVER_VARIANCES = {"all": 4.0, "w": 0.5, "g": 1.0, "wg": 1.0, "l": 2.0, "lg": 1.0, "wl": 0.5,
                     "wgl": 0.5}  # fmt: skip
"""The prior variances of the weights in a solver's log-odds, by kind of feature: w for the worker,
g for the group, l for the level of ease, and their combinations; all for the constant."""
SLOPES = frozenset({"level", "worker_level", "l", "lg", "wl", "wgl"})
"""Kinds of features that are multiplied by the level of ease."""


@lru_cache(maxsize=2**15)
def inputs_of(candidate: Candidate) -> tuple[Candidate, ...]:
    """Return the shorter workflows whose answers the last step starts from.

    Empty for a worker that solves without preparations. A solver with preparations starts from the
    answer that its worker would give alone.
    """
    *before, last = candidate.steps
    if last.role is StepRole.CHECK:
        return (Candidate(tuple(before)),)
    prepared = tuple(step for step in before if step.role in PREPARING_ROLES)
    if last.role is StepRole.DECIDE:
        return tuple(Candidate((*prepared, step)) for step in candidate.of_role(StepRole.SOLVE))
    return (Candidate((CandidateStep(StepRole.SOLVE, last.worker),)),) if prepared else ()


def usual_log_odds(role: StepRole, found: Found) -> float:
    """Return the prior log-odds that a step of that role gives a correct answer."""
    right, many = found
    if right == many:
        return 3.0
    if right == 0:
        return -3.0 if role is StepRole.DECIDE else -1.5
    return 1.5 if 2 * right > many else 0.0 if 2 * right == many else -1.0


def solver_features(worker: str, group: int, level: float) -> Iterator[tuple[Feature, float]]:
    """Yield the features of a worker that answers alone."""
    yield ("all",), 1.0
    yield ("w", worker), 1.0
    yield ("g", group), 1.0
    yield ("wg", worker, group), 1.0
    yield ("l",), level
    yield ("lg", group), level
    yield ("wl", worker), level
    yield ("wgl", worker, group), level


def step_features(
    candidate: Candidate, found: Found, group: int, level: float
) -> Iterator[tuple[Feature, float]]:
    """Yield the features of the candidate's last step."""
    step = candidate.steps[-1]
    if step.role is StepRole.SOLVE:
        yield from _helped_features(candidate, found, group, level)
    else:
        yield from _role_features(step, found, group, level)
        yield from _situation_features(candidate, found)
    if candidate.stops:
        yield ("again", "differed", step.role, found), 1.0
    yield ("own", candidate, found), 1.0


def _helped_features(
    candidate: Candidate, found: Found, group: int, level: float
) -> Iterator[tuple[Feature, float]]:
    """Yield the features of plans and look-ups that change a solver's answer."""
    step = candidate.steps[-1]
    helpers = candidate.steps[:-1]
    for helper in helpers:
        yield from _role_features(helper, found, group, level)
        yield ("pair", helper.role, helper.worker, step.worker, found), 1.0
    if step.wording:
        yield ("wording", step.role, step.wording, found), 1.0
    if len(helpers) > 1:
        yield ("again", "helper", found), 1.0


def _situation_features(candidate: Candidate, found: Found) -> Iterator[tuple[Feature, float]]:
    """Yield the features of a check or a decision that depend on the other steps."""
    step, solvers = candidate.steps[-1], candidate.of_role(StepRole.SOLVE)
    for solver in solvers:
        yield ("pair", step.role, step.worker, solver.worker, found), 1 / len(solvers)
        if solver.worker == step.worker:
            yield ("self", step.role, found), 1 / len(solvers)
    if len(candidate.of_role(StepRole.CHECK)) > 1:
        yield ("again", step.role, found), 1.0
        yield ("again", step.role, step.worker, found), 1.0
    if step.role is StepRole.CHECK and len(solvers) > 1:
        yield ("again", "decided", found), 1.0
    if candidate.steps[0].role in PREPARING_ROLES:
        yield ("again", "helped", step.role, found), 1.0


def later_steps(candidate: Candidate) -> list[Candidate]:
    """Return, for each step after the early stop except solvers, the workflow up to this step."""
    first = candidate.first_round
    later = [candidate.steps[: at + 1] for at in range(first, len(candidate))]
    return [Candidate(steps, stops=True) for steps in later if steps[-1].role is not StepRole.SOLVE]


def first_answers(candidate: Candidate) -> tuple[CandidateStep, CandidateStep]:
    """Return the two steps whose answers a candidate with an early stop compares."""
    one, other = candidate.steps[candidate.first_round - 2 : candidate.first_round]
    return one, other


def agreement_features(candidate: Candidate) -> Iterator[tuple[Feature, float]]:
    """Yield the features of the agreement of two wrong first answers."""
    one, other = first_answers(candidate)
    yield ("base", "agree", other.role), 1.0
    yield ("worker", "agree", other.role, other.worker), 1.0
    yield ("pair", "agree", other.role, one.worker, other.worker), 1.0


def _role_features(
    step: CandidateStep, found: Found, group: int, level: float
) -> Iterator[tuple[Feature, float]]:
    role, worker = step.role, step.worker
    kind = (role, found)
    yield ("base", *kind), 1.0
    yield ("worker", *kind, worker), 1.0
    yield ("group", *kind, group), 1.0
    yield ("worker_group", *kind, worker, group), 1.0
    yield ("level", *kind), level
    yield ("worker_level", *kind, worker), level
    if step.wording:
        yield ("wording", *kind, step.wording), 1.0
        yield ("wording", *kind, step.wording, worker), 1.0


def changing_role(candidate: Candidate) -> StepRole:
    """Return the last step's role, or the first preparation's role if the last step solves."""
    step = candidate.steps[-1]
    if step.role is not StepRole.SOLVE:
        return step.role
    return next(one.role for one in candidate.steps if one.role in PREPARING_ROLES)
