"""The posterior of every workflow's success in every cell, whether it was tried or not.

Every answering step is a transition: a check turns a right or wrong answer into a right or wrong
one; a decision finds a number of right answers among several; a plan or a look-up changes a
solver's answer. Intermediate answers are graded too, so each run tells something about all its
steps, and a checker's effect in one workflow informs all others.

The model consists of logistic regressions with Gaussian priors, in Laplace's approximation. That of
solvers has the worker, the group, the level of ease, and an effect of each question that all
solvers share, which makes their errors correlate. That of transitions has the role and the number
of right answers read, the worker, the group, the level, the author of the answer, and the workflow
itself, with ever smaller prior variances, so few data are shrunk towards the more general effect. A
third one says how often two wrong answers agree. A workflow's share right follows from those of its
steps; it is computed for each posterior draw, each level of ease, and each of a few effects that a
question may have on all its solvers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

import numpy as np

from batuta.lab.tune.library import Candidate, StepRole, is_tie_break
from batuta.lab.tune.logistic_regression import LogisticRegression, apply_sigmoid
from batuta.lab.tune.sparse_design import Matrix, Places, add_up
from batuta.lab.tune.step_features import (
    SLOPES,
    SOLVER_VARIANCES,
    STEP_VARIANCES,
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
"""Nodes of the questions' effects on all solvers, in standard deviations, and their weights."""
NODE_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
Situation = tuple[Candidate, Found]
"""A workflow, and how many right answers its last step reads: the condition of one probability."""


@final
class WorkflowShares:
    """The expected shares of workflows under the current fit of the regressions."""

    def __init__(
        self, *, steps: LogisticRegression, solvers: LogisticRegression,
        agrees: LogisticRegression, level_l: Matrix, effect: float,
    ) -> None:  # fmt: skip
        """Store the regressions, fitted and drawn.

        Args:
            steps: the regression of steps' outcomes.
            solvers: the regression of single workers' outcomes.
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
        """Return the share right of each candidate at each level, for each draw: (s, c, l)."""
        new = [one for one in candidates if (one, group) not in self._shares]
        if new:
            self._predict_steps(new, group)
            share_nsl = np.stack([self._at_nodes(one, group) for one in new]) @ NODE_WEIGHTS
            for one, share in zip(new, share_nsl, strict=True):
                self._shares[one, group] = share
        return np.stack([self._shares[one, group] for one in candidates], axis=1)

    def agreement(self, candidate: Candidate, group: int) -> Matrix:
        """Return how often its first two answers are expected to agree, at each level."""
        self._predict_steps([candidate], group)
        self._at_nodes(candidate, group)
        return (self._agreement[candidate, group] @ NODE_WEIGHTS).mean(axis=0)

    def _predict_steps(self, candidates: Sequence[Candidate], group: int) -> None:
        """Predict the probabilities of all their steps together."""
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
        """Return the probability of a right answer for each draw, level and question effect."""
        key = candidate, group
        known = self._nodes.get(key)
        if known is None:
            known = self._nodes[key] = self._compute_at_nodes(candidate, group)
        return known

    def _compute_stopping(self, candidate: Candidate, group: int) -> Matrix:
        """Return the probability of a right answer of a workflow that may stop after two answers.

        Two right answers agree, a right and a wrong one differ, and the agreement of two wrong ones
        is estimated by a regression.
        """
        none, right, wrong, both = self._begin_answers(candidate, group)
        plain, _ = self._agrees.predict([agreement_features(candidate)])
        alike = apply_sigmoid(plain[0])[:, None, None]
        self._agreement[candidate, group] = both + none * alike
        none = none * (1 - alike)
        third = candidate.steps[candidate.first_round].role is StepRole.SOLVE
        solvers = candidate.of_role(StepRole.SOLVE)
        if len(solvers) == 1:
            right_share, wrong_share = right, none + wrong
        elif is_tie_break(candidate.steps):
            chance = self._at_nodes(Candidate(candidate.steps[-1:]), group)
            right_share = (none + right + wrong) * chance
            wrong_share = (none + right + wrong) - right_share
        else:
            counts = [none, right + wrong]
            if third:
                counts = self._count_third(candidate, (none, right, wrong), group)
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
        """Return the chances that neither, only the second, only the first, both are right."""
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
        """Return the probabilities of 0, 1 and 2 right answers of three, after two that differ.

        A worker that is asked again is right if it was right before.
        """
        none, right, wrong = first_two
        one, other, third = candidate.of_role(StepRole.SOLVE)
        if third.worker == other.worker:
            return [none, wrong, right]
        if third.worker == one.worker:
            return [none, right, wrong]
        chance = self._at_nodes(Candidate((third,)), group)
        differ = right + wrong
        return [none * (1 - chance), none * chance + differ * (1 - chance), differ * chance]

    def _decide_counts(
        self, candidate: Candidate, counts: Sequence[Matrix], group: int, many: int
    ) -> tuple[Matrix, Matrix]:
        """Return the probabilities of a right and of a wrong decision."""
        step = next(s for s in later_steps(candidate) if s.steps[-1].role is StepRole.DECIDE)
        right_share = sum(
            share * self._step_chance(step, (right, many), group)
            for right, share in enumerate(counts)
        )
        return np.asarray(right_share), sum(counts) - np.asarray(right_share)

    def _step_chance(self, candidate: Candidate, found: Found, group: int) -> Matrix:
        """Return the probability that the last step is right for each draw and level: (s, l, 1)."""
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
    """Return all conditional probabilities of steps that the candidate's share needs."""
    if candidate.stops:
        return tuple(dict.fromkeys(_find_after_look(candidate)))
    inputs, many = inputs_of(candidate), len(inputs_of(candidate))
    own = [(candidate, (right, many)) for right in range(many + 1)] if inputs else []
    before = (one for each in inputs for one in find_situations(each))
    return tuple(dict.fromkeys((*before, *own)))


def _find_after_look(candidate: Candidate) -> Iterator[Situation]:
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
    """Return the probability that two solvers are both right, more if they read one plan."""
    return 0.5 * (a * b + np.minimum(a, b)) if shares_plan else a * b


def _count_right(chances: Sequence[tuple[Matrix, int]], *, shares_plan: bool) -> list[Matrix]:
    """Return the probabilities of 0, 1, … right answers; each chance counts for so many answers."""
    apart = _count_apart(chances)
    if not shares_plan or len(chances) == 1:
        return apart
    together = [np.zeros_like(apart[0]) for _ in apart]
    ordered = np.stack([chance for chance, _ in chances])
    order = np.argsort(-ordered, axis=0)
    sizes = np.array([by for _, by in chances])
    above, right = np.ones_like(apart[0]), np.zeros(apart[0].shape, np.intp)
    for place in order:  # a less reliable worker is right only where a more reliable one is
        chance = np.take_along_axis(ordered, place[None], axis=0)[0]
        for many in range(len(together)):
            together[many] += np.where(right == many, above - chance, 0.0)
        above, right = chance, right + sizes[place]
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


Cell = tuple[int, int]
"""A group and a level of ease in it; 0 is the hardest."""
Trail = tuple[tuple[float | None, ...], bool]
"""The score of each step, None where it did not run; and whether the first two answers agreed."""

_RIGHT = 0.5
_EFFECTS = (0.05, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Standard deviations of the questions' effects that are tried."""


@dataclass(slots=True)
class Observations:
    """Every outcome so far: the score of a workflow on a question."""

    scores: dict[str, dict[Candidate, float]] = field(
        default_factory=dict[str, dict[Candidate, float]]
    )

    trails: dict[str, dict[Candidate, Trail]] = field(
        default_factory=dict[str, dict[Candidate, "Trail"]]
    )
    """For workflows that compare their first answers: each step's score, and whether they
    agreed."""
    changed: dict[str, None] = field(default_factory=dict[str, None])
    """Questions with new outcomes, in order of arrival; `TransitionModel` removes them when it
    reads them."""

    def follow(
        self, question: str, candidate: Candidate, scores: Sequence[float | None], *,
        agreed: bool | None,
    ) -> None:  # fmt: skip
        """Record the steps' scores of a workflow that compares its first answers."""
        if agreed is not None and scores:
            self.trails.setdefault(question, {})[candidate] = (tuple(scores), agreed)
            self.changed[question] = None

    def add(
        self, question: str, candidate: Candidate, score: float, *, on_the_way: bool = False
    ) -> None:
        """Record an outcome; an intermediate one never replaces that of the workflow's own run."""
        known = self.scores.setdefault(question, {})
        if not on_the_way or candidate not in known:
            known[candidate] = score
            self.changed[question] = None


@dataclass(slots=True)
class _Outcomes:
    """The outcomes of one question, as pairs of a regression's row and a score."""

    solved: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    changed: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    agreed: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])

    def clear(self) -> None:
        """Remove all outcomes."""
        for each in (self.solved, self.changed, self.agreed):
            each.clear()


@final
class TransitionModel:
    """The posterior, given the outcomes and the cell of each question."""

    def __init__(
        self, seen: Observations, cells: Mapping[str, Cell], levels: int, *, effect: float = 1.0
    ) -> None:
        """Start from the outcomes; `fit` reads those that come later.

        Args:
            seen: the outcomes; those of questions without a cell are ignored.
            cells: the cell of each question.
            levels: the number of levels of ease.
            effect: the initial standard deviation of the questions' effects.
        """
        self.levels = levels
        self.effect = effect
        """Standard deviation of the questions' effects."""
        self.level_l = np.linspace(-0.5, 0.5, levels) if levels > 1 else np.zeros(1)
        self.steps = LogisticRegression(STEP_VARIANCES, SLOPES, "own")
        self.solvers = LogisticRegression(SOLVER_VARIANCES, SLOPES)
        self.agrees = LogisticRegression(STEP_VARIANCES, SLOPES, "own")
        self._seen = seen
        self._cells = cells
        self._outcomes: dict[str, _Outcomes] = {}
        seen.changed |= dict.fromkeys(seen.scores)
        self._shares: WorkflowShares | None = None

    def fit(self, *, seed: int = 0, tunes: bool = False) -> None:
        """Fit the posterior to all outcomes so far.

        Args:
            seed: the seed of its draws.
            tunes: whether to choose the standard deviation of the questions' effects again.
        """
        self._take_changes()
        found = self._outcomes.values()
        changed = _as_arrays([one for each in found for one in each.changed])
        agreed = _as_arrays([one for each in found for one in each.agreed])
        row, score = _as_arrays([one for each in found for one in each.solved])
        many = [len(each.solved) for each in found]
        solved = row, np.repeat(np.arange(len(many)), many), score
        if tunes:
            self.effect = max(_EFFECTS, key=lambda one: self._likelihood(one, solved, seed))
        self._fit_solvers(self.effect, solved, seed)
        self.solvers.draw()
        self.steps.fit(*changed, seed + 1)
        self.steps.draw()
        self.agrees.fit(*agreed, seed + 2)
        self.agrees.draw()
        self._shares = WorkflowShares(
            steps=self.steps,
            solvers=self.solvers,
            agrees=self.agrees,
            level_l=self.level_l,
            effect=self.effect,
        )

    def _take_changes(self) -> None:
        for question in self._seen.changed:
            if question in self._cells:
                known = self._outcomes.setdefault(question, _Outcomes())
                known.clear()
                self._add_question(
                    known, self._seen.scores.get(question, {}), self._cells[question]
                )
                for candidate, trail in self._seen.trails.get(question, {}).items():
                    self._add_trail(known, candidate, trail, cell=self._cells[question])
        self._seen.changed.clear()

    def _add_trail(
        self, known: _Outcomes, candidate: Candidate, trail: Trail, *, cell: Cell
    ) -> None:
        """Add the later steps' outcomes of a workflow that compares its first answers."""
        scores, agreed = trail
        first, level = candidate.first_round, float(self.level_l[cell[1]])
        first_scores = scores[first - 2 : first]
        if None in first_scores:
            return
        if all(one is not None and one < _RIGHT for one in first_scores):
            row = self.agrees.row(
                first_answers(candidate), lambda: agreement_features(candidate), 0.0
            )
            known.agreed.append((row, float(agreed)))
        if agreed:
            return
        solvers = [score for step, score in zip(candidate.steps, scores, strict=True)
                   if step.role is StepRole.SOLVE]  # fmt: skip
        for step in later_steps(candidate):
            role, score, found = step.steps[-1].role, scores[len(step) - 1], None
            if role is StepRole.DECIDE and None not in solvers:
                found = sum(one is not None and one >= _RIGHT for one in solvers), len(solvers)
            elif role is StepRole.CHECK and (last := scores[len(step) - 2]) is not None:
                found = int(last >= _RIGHT), 1
            if found is not None and score is not None:
                row = self.steps.row(
                    (step, found, cell),
                    lambda s=step, f=found: step_features(s, f, cell[0], level),
                    usual_log_odds(role, found),
                )
                known.changed.append((row, score))

    def _add_question(
        self, known: _Outcomes, scores: Mapping[Candidate, float], cell: Cell
    ) -> None:
        group, level = cell[0], float(self.level_l[cell[1]])
        for candidate, score in scores.items():
            if candidate.stops:
                continue
            inputs = inputs_of(candidate)
            if not inputs:
                worker = candidate.steps[0].worker
                row = self.solvers.row(
                    (worker, cell), lambda w=worker: solver_features(w, group, level), 0.0
                )
                known.solved.append((row, score))
            elif all(one in scores for one in inputs):
                found = (sum(scores[one] >= _RIGHT for one in inputs), len(inputs))
                row = self.steps.row(
                    (candidate, found, cell),
                    lambda c=candidate, f=found: step_features(c, f, group, level),
                    usual_log_odds(changing_role(candidate), found),
                )
                known.changed.append((row, score))

    def _fit_solvers(
        self, deviation: float, solved: tuple[Places, Places, Matrix], seed: int
    ) -> None:
        row, question, score = solved
        effect = np.zeros(int(question.max(initial=-1)) + 1)
        for _ in range(3):
            self.solvers.fit(row, score, seed, effect[question])
            right = apply_sigmoid(self.solvers.log_odds()[row] + effect[question])
            weight = np.maximum(right * (1 - right), 0.01)
            gradient = add_up(question, score - right, len(effect)) - effect / deviation**2
            own = add_up(question, weight, len(effect)) + 1 / deviation**2
            effect = effect + gradient / own

    def _likelihood(
        self, deviation: float, solved: tuple[Places, Places, Matrix], seed: int
    ) -> float:
        """Return the solvers' log-likelihood for that deviation of the questions' effects."""
        self._fit_solvers(deviation, solved, seed)
        row, question, score = solved
        at_nodes = self.solvers.log_odds()[row][:, None] + deviation * NODES[None, :]
        log = -np.logaddexp(0, np.where(score[:, None] >= _RIGHT, -at_nodes, at_nodes))
        each = np.zeros((int(question.max(initial=-1)) + 1, len(NODES)))
        np.add.at(each, question, log)
        peak = each.max(axis=1)
        return float((np.log(np.exp(each - peak[:, None]) @ NODE_WEIGHTS) + peak).sum())

    def draw_shares(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """Draw the share right of each candidate at each level: (s, c, l)."""
        return self._fitted.draw_shares(candidates, group)

    def agreement(self, candidate: Candidate, group: int) -> Matrix:
        """Return how often its first two answers are expected to agree, at each level."""
        return self._fitted.agreement(candidate, group)

    @property
    def _fitted(self) -> WorkflowShares:
        assert self._shares is not None  # noqa: S101 - fitted before
        return self._shares


def _as_arrays(outcomes: Sequence[tuple[int, float]]) -> tuple[Places, Matrix]:
    """Return the rows and the scores as arrays."""
    row, score = zip(*outcomes, strict=True) if outcomes else ((), ())
    return np.array(row, np.intp), np.array(score, np.float64)
