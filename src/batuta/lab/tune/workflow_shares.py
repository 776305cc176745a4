"""Computes the expected accuracy of a workflow from the probabilities of its steps.

The accuracy is computed for each posterior draw, each level of ease, and each node: one of a few
effects that a question may have on all its solvers.

Axes: s draws, c candidates, l levels of ease, n steps or candidates that are computed together.
Within the computation of one workflow, matrices are (s, l, 7), with the nodes last, or (s, l, 1) if
all nodes are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import final

import numpy as np

from batuta.lab.tune.library import Candidate, StepRole, is_tie_break
from batuta.lab.tune.logistic_regression import LogisticRegression, apply_sigmoid
from batuta.lab.tune.sparse_design import Matrix
from batuta.lab.tune.step_features import (
    Found,
    agreement_features,
    changing_role,
    first_answers,
    inputs_of,
    later_steps,
    solver_features,
    step_features,
    usual_log_odds,
)

NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
"""The nodes of the questions' effects on all solvers, in standard deviations, and their weights."""
NODE_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
Situation = tuple[Candidate, Found]
"""The condition of a probability: a workflow, and the answers that its last step reads."""


@final
class WorkflowShares:
    """The expected accuracies of workflows under the current fit of the regressions."""

    def __init__(
        self, *, steps: LogisticRegression, solvers: LogisticRegression,
        agrees: LogisticRegression, level_l: Matrix, effect: float,
    ) -> None:  # fmt: skip
        """Store the regressions, which must be fitted and drawn.

        Args:
            steps: the regression of the outcomes of steps.
            solvers: the regression of the outcomes of single workers.
            agrees: the regression of the agreement of two wrong answers.
            level_l: the value of each level of ease.
            effect: the standard deviation of the questions' effects.
        """
        self._steps = steps
        self._solvers = solvers
        self._agrees = agrees
        self._level_l = level_l
        self._effect = effect
        self._shares: dict[tuple[Candidate, int], Matrix] = {}
        self._nodes: dict[tuple[Candidate, int], Matrix] = {}
        self._chances: dict[tuple[Candidate, Found, int], Matrix] = {}
        self._agreement: dict[tuple[Candidate, int], Matrix] = {}

    def draw_shares(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """Return the accuracy of each candidate at each level, for each draw: (s, c, l)."""
        new = [one for one in candidates if (one, group) not in self._shares]
        if new:
            self._predict_steps(new, group)
            share_nsl = np.stack([self._at_nodes(one, group) for one in new]) @ NODE_WEIGHTS
            for one, share in zip(new, share_nsl, strict=True):
                self._shares[one, group] = share
        return np.stack([self._shares[one, group] for one in candidates], axis=1)

    def agreement(self, candidate: Candidate, group: int) -> Matrix:
        """Return the probability, (l,), that the first two answers agree; the candidate `stops`."""
        self._predict_steps([candidate], group)
        self._at_nodes(candidate, group)
        return (self._agreement[candidate, group] @ NODE_WEIGHTS).mean(axis=0)

    def _predict_steps(self, candidates: Sequence[Candidate], group: int) -> None:
        """Predict the probabilities of all steps of the candidates together, and keep them."""
        wanted = {
            (step, found, group): None for one in candidates for step, found in find_situations(one)
        }
        new = [key for key in wanted if key not in self._chances]
        if not new:
            return
        plain_ns, slope_ns = self._steps.predict(
            [step_features(step, found, group, 1.0) for step, found, _ in new]
        )
        usual = [usual_log_odds(changing_role(step), found) for step, found, _ in new]
        logit = (np.array(usual)[:, None] + plain_ns)[:, :, None]
        chance_nsl = apply_sigmoid(logit + slope_ns[:, :, None] * self._level_l)
        for key, chance in zip(new, chance_nsl, strict=True):
            self._chances[key] = chance[:, :, None]

    def _at_nodes(self, candidate: Candidate, group: int) -> Matrix:
        """Return the probability of a correct answer for each draw, level and node."""
        key = candidate, group
        known = self._nodes.get(key)
        if known is None:
            known = self._nodes[key] = self._compute_at_nodes(candidate, group)
        return known

    def _compute_stopping(self, candidate: Candidate, group: int) -> Matrix:
        """Return the probability of a correct answer of a workflow that may stop after two answers.

        Two correct answers agree, a correct and a wrong answer differ, and a regression estimates
        how often two wrong answers agree.
        """
        none, only_second, only_first, both = self._begin_answers(candidate, group)
        plain, _ = self._agrees.predict([agreement_features(candidate)])
        alike = apply_sigmoid(plain[0])[:, None, None]
        self._agreement[candidate, group] = both + none * alike
        none = none * (1 - alike)
        solvers = candidate.of_role(StepRole.SOLVE)
        if len(solvers) == 1:
            right_share, wrong_share = only_second, none + only_first
        elif is_tie_break(candidate.steps):
            differ = none + only_second + only_first
            right_share = differ * self._at_nodes(Candidate(candidate.steps[-1:]), group)
            wrong_share = differ - right_share
        else:
            counts = [none, only_second + only_first]
            if candidate.steps[candidate.first_round].role is StepRole.SOLVE:
                counts = self._count_third(candidate, (none, only_second, only_first), group)
            right_share, wrong_share = self._decide_counts(candidate, counts, group, len(solvers))
        for step in later_steps(candidate):
            if step.steps[-1].role is StepRole.CHECK:
                kept = self._step_chance(step, (1, 1), group)
                corrected = self._step_chance(step, (0, 1), group)
                right_share, wrong_share = (
                    right_share * kept + wrong_share * corrected,
                    right_share * (1 - kept) + wrong_share * (1 - corrected),
                )
        return both + right_share

    def _begin_answers(
        self, candidate: Candidate, group: int
    ) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """Return the probabilities that none, only the second, only the first, both are right."""
        prepared = candidate.steps[: candidate.first_round - 2]
        one, other = first_answers(candidate)
        a = self._at_nodes(Candidate((*prepared, one)), group)
        if other.role is StepRole.CHECK:
            both_steps = Candidate((*prepared, one, other))
            kept = self._step_chance(both_steps, (1, 1), group)
            corrected = self._step_chance(both_steps, (0, 1), group)
            return (1 - a) * (1 - corrected), (1 - a) * corrected, a * (1 - kept), a * kept
        if other == one:
            nothing = np.zeros_like(a)
            return 1 - a, nothing, nothing, a
        b = self._at_nodes(Candidate((*prepared, other)), group)
        both = _both_right(a, b, shares_plan=bool(prepared))
        return 1 - a - b + both, b - both, a - both, both

    def _count_third(
        self, candidate: Candidate, first_two: tuple[Matrix, Matrix, Matrix], group: int
    ) -> list[Matrix]:
        """Return the probabilities of 0, 1 and 2 correct answers of three, if the first two differ.

        A worker that is asked again is correct if it was correct before.
        """
        none, only_second, only_first = first_two
        one, other, third = candidate.of_role(StepRole.SOLVE)
        if third.worker == other.worker:
            return [none, only_first, only_second]
        if third.worker == one.worker:
            return [none, only_second, only_first]
        chance = self._at_nodes(Candidate((third,)), group)
        one_right = only_second + only_first
        return [none * (1 - chance), none * chance + one_right * (1 - chance), one_right * chance]

    def _decide_counts(
        self, candidate: Candidate, counts: Sequence[Matrix], group: int, many: int
    ) -> tuple[Matrix, Matrix]:
        """Return the probabilities of a correct and of a wrong decision."""
        step = next(s for s in later_steps(candidate) if s.steps[-1].role is StepRole.DECIDE)
        right_share = sum(
            share * self._step_chance(step, (right, many), group)
            for right, share in enumerate(counts)
        )
        return np.asarray(right_share), sum(counts) - np.asarray(right_share)

    def _step_chance(self, candidate: Candidate, found: Found, group: int) -> Matrix:
        """Return the probability that the last step is correct by draw and level: (s, l, 1)."""
        return self._chances[candidate, found, group]

    def _compute_at_nodes(self, candidate: Candidate, group: int) -> Matrix:
        if candidate.stops:
            return self._compute_stopping(candidate, group)
        inputs = inputs_of(candidate)
        if not inputs:
            plain, slope = self._solvers.predict(
                [solver_features(candidate.steps[0].worker, group, 1.0)]
            )
            logit = plain[0][:, None] + slope[0][:, None] * self._level_l
            return apply_sigmoid(logit[:, :, None] + self._effect * NODES)
        chance: dict[Candidate, int] = {}
        for one in inputs:  # two answers of one worker are right or wrong together
            chance[one] = chance.get(one, 0) + 1
        counts = _count_right(
            [(self._at_nodes(one, group), by) for one, by in chance.items()],
            shares_plan=len(inputs[0]) > 1,
        )
        return np.asarray(
            sum(
                share * self._step_chance(candidate, (right, len(inputs)), group)
                for right, share in enumerate(counts)
            )
        )


@lru_cache(maxsize=2**15)
def find_situations(candidate: Candidate) -> tuple[Situation, ...]:
    """Return the conditions of all steps' probabilities on which the accuracy depends."""
    if candidate.stops:
        return tuple(dict.fromkeys(_find_when_stopping(candidate)))
    inputs, many = inputs_of(candidate), len(inputs_of(candidate))
    own = [(candidate, (right, many)) for right in range(many + 1)] if inputs else []
    before = (one for each in inputs for one in find_situations(each))
    return tuple(dict.fromkeys((*before, *own)))


def _find_when_stopping(candidate: Candidate) -> Iterator[Situation]:
    prepared = candidate.steps[: candidate.first_round - 2]
    one, other = first_answers(candidate)
    first_two = [Candidate((*prepared, one))]
    if other.role is StepRole.CHECK:
        both = Candidate((*prepared, one, other))
        yield from ((both, (1, 1)), (both, (0, 1)))
    else:
        first_two.append(Candidate((*prepared, other)))
    for first in first_two:
        yield from find_situations(first)
    many = len(candidate.of_role(StepRole.SOLVE))
    for step in later_steps(candidate):
        if step.steps[-1].role is StepRole.DECIDE:
            yield from ((step, (right, many)) for right in range(many))
        else:
            yield from ((step, (1, 1)), (step, (0, 1)))


def _both_right(a: Matrix, b: Matrix, *, shares_plan: bool) -> Matrix:
    """Return the probability that two solvers are both correct; greater if they read one plan."""
    return 0.5 * (a * b + np.minimum(a, b)) if shares_plan else a * b


def _count_right(chances: Sequence[tuple[Matrix, int]], *, shares_plan: bool) -> list[Matrix]:
    """Return the probabilities of 0, 1, … correct answers.

    `chances` has each worker's probability of a correct answer, and the number of its equal
    answers.
    """
    apart = _count_apart(chances)
    if not shares_plan or len(chances) == 1:
        return apart
    together = [np.zeros_like(apart[0]) for _ in apart]
    ordered = np.stack([chance for chance, _ in chances])
    order = np.argsort(-ordered, axis=0)
    sizes = np.array([by for _, by in chances])
    above, right = np.ones_like(apart[0]), np.zeros(apart[0].shape, np.intp)
    for index in order:  # a less reliable worker is correct only if a more reliable worker is
        chance = np.take_along_axis(ordered, index[None], axis=0)[0]
        for many in range(len(together)):
            together[many] += np.where(right == many, above - chance, 0.0)
        above, right = chance, right + sizes[index]
    together[-1] = together[-1] + above
    return [0.5 * (one + other) for one, other in zip(apart, together, strict=True)]


def _count_apart(chances: Sequence[tuple[Matrix, int]]) -> list[Matrix]:
    counts = [np.ones_like(chances[0][0])]
    for chance, by in chances:
        grown = [np.zeros_like(chance) for _ in range(len(counts) + by)]
        for right, share in enumerate(counts):
            grown[right] = grown[right] + share * (1 - chance)
            grown[right + by] = grown[right + by] + share * chance
        counts = grown
    return counts
