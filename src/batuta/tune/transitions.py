"""What the outcomes so far say of every workflow in every cell, tried or not, and how surely.

Every answering step is a transition: whoever checks finds an answer that is right or wrong and
leaves one that is right or wrong; whoever decides finds so many right ones of so many; a plan or a
look-up turns a solver's right or wrong answer into another. Answers on the way are graded, so each
run of a workflow tells of all its steps, and what a checker mends in one workflow is known in all.

Two logistic regressions with Gaussian priors, in Laplace's approximation. Solvers: a worker, the
group, the level of ease, and an effect of each question, which solvers share, so that their
mistakes coincide as they do. Transitions: role and what was found, worker, group, level, whose
answer it is, and the workflow itself, each less free than the one before: few data are shrunk from
the pair to the worker, from the group to the whole. A workflow's share right follows by going
through its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from batuta.tune.library import Candidate, StepRole, is_tie_break
from batuta.tune.logistic_regression import LogisticRegression, Matrix, Places, apply_sigmoid
from batuta.tune.step_features import (
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

Cell = tuple[int, int]
"""A group and a level of ease in it, 0 the hardest."""
Trail = tuple[tuple[float | None, ...], bool]
"""The score of each step, None where it was not run; whether the first two answers agreed."""

_RIGHT = 0.5
_EFFECTS = (0.05, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Standard deviations of the questions' effects that are tried."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_NODE_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(slots=True)
class Observations:
    """Every outcome so far: the score of a workflow on a question."""

    scores: dict[str, dict[Candidate, float]] = field(
        default_factory=dict[str, dict[Candidate, float]]
    )

    trails: dict[str, dict[Candidate, Trail]] = field(
        default_factory=dict[str, dict[Candidate, "Trail"]]
    )
    """Of workflows that look at their first answers: each step's score, and whether they agreed."""

    def follow(
        self, question: str, candidate: Candidate, scores: Sequence[float | None], *,
        agreed: bool | None,
    ) -> None:  # fmt: skip
        """How a workflow that looks at its answers came to its own."""
        if agreed is not None and scores:
            self.trails.setdefault(question, {})[candidate] = (tuple(scores), agreed)

    def add(
        self, question: str, candidate: Candidate, score: float, *, on_the_way: bool = False
    ) -> None:
        """One outcome; one that a longer workflow had on its way gives way to it."""
        known = self.scores.setdefault(question, {})
        if not on_the_way or candidate not in known:
            known[candidate] = score


@final
class TransitionModel:
    """The posterior, given outcomes and which question is in which cell."""

    def __init__(
        self,
        seen: Observations,
        cells: Mapping[str, Cell],
        levels: int,
        before: TransitionModel | None = None,
        *,
        seed: int = 0,
    ) -> None:
        """Takes the outcomes; `fit` does the rest.

        Args:
            seen: outcomes; those of questions without a cell are left out.
            cells: each question's.
            levels: of ease.
            before: the posterior before the latest outcomes, to begin with.
            seed: of the draws.
        """
        self.levels = levels
        self._before = before
        self._seed = seed
        self.effect = before.effect if before else 1.0
        """Standard deviation of the questions' effects."""
        self._level = np.linspace(-0.5, 0.5, levels) if levels > 1 else np.zeros(1)
        self.steps = LogisticRegression(STEP_VARIANCES, SLOPES, before and before.steps)
        self.solvers = LogisticRegression(SOLVER_VARIANCES, SLOPES, before and before.solvers)
        self.agrees = LogisticRegression(STEP_VARIANCES, SLOPES, before and before.agrees)
        self._agreed: list[tuple[int, float]] = []
        self._solved: list[tuple[int, int, float]] = []
        self._changed: list[tuple[int, float]] = []
        self._shares: dict[tuple[Candidate, int], Matrix] = {}
        self._nodes: dict[tuple[Candidate, int], Matrix] = {}
        self._chances: dict[tuple[Candidate, Found, int], Matrix] = {}
        self._agreement: dict[tuple[Candidate, int], Matrix] = {}
        known = (one for one in seen.scores if one in cells)
        for number, question in enumerate(sorted(known)):
            self._add_question(number, seen.scores[question], cells[question])
            for candidate, trail in seen.trails.get(question, {}).items():
                self._add_trail(candidate, trail, cells[question])

    def _add_trail(self, candidate: Candidate, trail: Trail, cell: Cell) -> None:
        """What a workflow that looks at its answers tells of its later steps."""
        scores, agreed = trail
        first, level = candidate.first_round, float(self._level[cell[1]])
        begun = scores[first - 2 : first]
        if None in begun:
            return
        if all(one is not None and one < _RIGHT for one in begun):
            row = self.agrees.row(
                first_answers(candidate), lambda: agreement_features(candidate), 0.0
            )
            self._agreed.append((row, float(agreed)))
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
                self._changed.append((row, score))

    def _add_question(self, number: int, scores: Mapping[Candidate, float], cell: Cell) -> None:
        group, level = cell[0], float(self._level[cell[1]])
        for candidate, score in scores.items():
            if candidate.stops:
                continue
            inputs = inputs_of(candidate)
            if not inputs:
                worker = candidate.steps[0].worker
                row = self.solvers.row(
                    (worker, cell), lambda w=worker: solver_features(w, group, level), 0.0
                )
                self._solved.append((row, number, score))
            elif all(one in scores for one in inputs):
                found = (sum(scores[one] >= _RIGHT for one in inputs), len(inputs))
                row = self.steps.row(
                    (candidate, found, cell),
                    lambda c=candidate, f=found: step_features(c, f, group, level),
                    usual_log_odds(changing_role(candidate), found),
                )
                self._changed.append((row, score))

    def fit(self, *, tunes: bool = False) -> None:
        """The posterior; `tunes` first asks how much the solvers' mistakes coincide."""
        if tunes:
            self.effect = max(_EFFECTS, key=self._likelihood)
        self._fit_solvers(self.effect)
        self.solvers.draw()
        row = np.array([row for row, _ in self._changed], np.intp)
        self.steps.fit(row, np.array([score for _, score in self._changed]), self._seed + 1)
        self.steps.draw()
        row = np.array([row for row, _ in self._agreed], np.intp)
        self.agrees.fit(row, np.array([one for _, one in self._agreed]), self._seed + 2)
        self.agrees.draw()

    def _fit_solvers(self, deviation: float) -> None:
        row, question, score = self._solver_outcomes()
        effect = np.zeros(int(question.max(initial=-1)) + 1)
        for _ in range(3):
            self.solvers.fit(row, score, self._seed, effect[question])
            right = apply_sigmoid(self.solvers.log_odds()[row] + effect[question])
            weight = np.maximum(right * (1 - right), 0.01)
            pull = np.bincount(question, score - right, len(effect)) - effect / deviation**2
            own = np.bincount(question, weight, len(effect)) + 1 / deviation**2
            effect = effect + pull / own

    def _solver_outcomes(self) -> tuple[Places, Places, Matrix]:
        row, question, score = zip(*self._solved, strict=True) if self._solved else ((), (), ())
        return np.array(row, np.intp), np.array(question, np.intp), np.array(score, np.float64)

    def _likelihood(self, deviation: float) -> float:
        """Of the solvers' outcomes, for that deviation of the questions' effects."""
        self._fit_solvers(deviation)
        row, question, score = self._solver_outcomes()
        at_nodes = self.solvers.log_odds()[row][:, None] + deviation * _NODES[None, :]
        log = -np.logaddexp(0, np.where(score[:, None] >= _RIGHT, -at_nodes, at_nodes))
        each = np.zeros((int(question.max(initial=-1)) + 1, len(_NODES)))
        np.add.at(each, question, log)
        peak = each.max(axis=1)
        return float((np.log(np.exp(each - peak[:, None]) @ _NODE_WEIGHTS) + peak).sum())

    def draw_shares(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """The share right of each candidate at each level, for each draw: (s, c, l)."""
        return np.stack([self._candidate_share(one, group) for one in candidates], axis=1)

    def _candidate_share(self, candidate: Candidate, group: int) -> Matrix:
        key = candidate, group
        known = self._shares.get(key)
        if known is None:
            known = self._shares[key] = self._at_nodes(candidate, group) @ _NODE_WEIGHTS
        return known

    def _at_nodes(self, candidate: Candidate, group: int) -> Matrix:
        """The chance of a right answer for each draw, level and effect of the question."""
        key = candidate, group
        known = self._nodes.get(key)
        if known is None:
            known = self._nodes[key] = self._compute_at_nodes(candidate, group)
        return known

    def agreement(self, candidate: Candidate, group: int) -> Matrix:
        """How often its first two answers are expected to agree, at each level."""
        self._at_nodes(candidate, group)
        return (self._agreement[candidate, group] @ _NODE_WEIGHTS).mean(axis=0)

    def _compute_stopping(self, candidate: Candidate, group: int) -> Matrix:
        """The chance of a right answer of a workflow that looks at its first two answers.

        Two right answers agree; a right and a wrong one differ; of two wrong ones it is learned.
        """
        none, right, wrong, both = self._begin_answers(candidate, group)
        plain, _ = self.agrees.predict(agreement_features(candidate))
        alike = apply_sigmoid(plain)[:, None, None]
        self._agreement[candidate, group] = both + none * alike
        none = none * (1 - alike)
        third = candidate.steps[candidate.first_round].role is StepRole.SOLVE
        solvers = candidate.of_role(StepRole.SOLVE)
        if len(solvers) == 1:
            good, bad = right, none + wrong
        elif is_tie_break(candidate.steps):
            chance = self._at_nodes(Candidate(candidate.steps[-1:]), group)
            good = (none + right + wrong) * chance
            bad = (none + right + wrong) - good
        else:
            counts = [none, right + wrong]
            if third:
                counts = self._count_third(candidate, (none, right, wrong), group)
            good, bad = self._decide_counts(candidate, counts, group, len(solvers))
        for step in later_steps(candidate):
            if step.steps[-1].role is StepRole.CHECK:
                kept = self._step_chance(step, (1, 1), group)
                mended = self._step_chance(step, (0, 1), group)
                good, bad = good * kept + bad * mended, good * (1 - kept) + bad * (1 - mended)
        return both + good

    def _begin_answers(
        self, candidate: Candidate, group: int
    ) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """How likely of the first two answers none, the second, the first, both are right."""
        prepared = candidate.steps[: candidate.first_round - 2]
        one, other = first_answers(candidate)
        a = self._at_nodes(Candidate((*prepared, one)), group)
        if other.role is StepRole.CHECK:
            both_steps = Candidate((*prepared, one, other))
            kept = self._step_chance(both_steps, (1, 1), group)
            mended = self._step_chance(both_steps, (0, 1), group)
            return (1 - a) * (1 - mended), (1 - a) * mended, a * (1 - kept), a * kept
        if other == one:
            nothing = np.zeros_like(a)
            return 1 - a, nothing, nothing, a
        b = self._at_nodes(Candidate((*prepared, other)), group)
        both = _both_right(a, b, shares_plan=bool(prepared))
        return 1 - a - b + both, b - both, a - both, both

    def _count_third(
        self, candidate: Candidate, begun: tuple[Matrix, Matrix, Matrix], group: int
    ) -> list[Matrix]:
        """The chances of 0, 1 and 2 right answers of three, after two that differ.

        A worker that is asked again is right where it was right before.
        """
        none, right, wrong = begun
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
        """The chances of a right and of a wrong answer of whoever decides."""
        step = next(s for s in later_steps(candidate) if s.steps[-1].role is StepRole.DECIDE)
        good = sum(
            share * self._step_chance(step, (right, many), group)
            for right, share in enumerate(counts)
        )
        return np.asarray(good), sum(counts) - np.asarray(good)

    def _step_chance(self, candidate: Candidate, found: Found, group: int) -> Matrix:
        """The chance that the last step's answer is right, for each draw and level: (s, l, 1)."""
        key = candidate, found, group
        known = self._chances.get(key)
        if known is None:
            plain, slope = self.steps.predict(step_features(candidate, found, group, 1.0))
            logit = usual_log_odds(changing_role(candidate), found) + plain[:, None]
            known = apply_sigmoid(logit + slope[:, None] * self._level)[:, :, None]
            self._chances[key] = known
        return known

    def _compute_at_nodes(self, candidate: Candidate, group: int) -> Matrix:
        if candidate.stops:
            return self._compute_stopping(candidate, group)
        inputs = inputs_of(candidate)
        if not inputs:
            plain, slope = self.solvers.predict(
                solver_features(candidate.steps[0].worker, group, 1.0)
            )
            logit = plain[:, None] + slope[:, None] * self._level
            return apply_sigmoid(logit[:, :, None] + self.effect * _NODES)
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


def _both_right(a: Matrix, b: Matrix, *, shares_plan: bool) -> Matrix:
    """How likely two solvers are both right; those who read one plan err together half the time."""
    return 0.5 * (a * b + np.minimum(a, b)) if shares_plan else a * b


def _count_right(chances: Sequence[tuple[Matrix, int]], *, shares_plan: bool) -> list[Matrix]:
    """The chance that so many answers are right, from 0 on; each chance counts for some answers."""
    apart = _count_apart(chances)
    if not shares_plan or len(chances) == 1:
        return apart
    together = [np.zeros_like(apart[0]) for _ in apart]
    ordered = np.stack([chance for chance, _ in chances])
    order = np.argsort(-ordered, axis=0)
    sizes = np.array([by for _, by in chances])
    above, right = np.ones_like(apart[0]), np.zeros(apart[0].shape, np.intp)
    for place in order:  # whoever is right oftener is right wherever the next is
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
