"""The posterior of every workflow's accuracy in every cell, whether the workflow was tried or not.

Every answering step is a transition between correct and wrong answers: a check reads one answer and
gives another; a decision reads several answers, some of them correct; a plan or a look-up changes a
solver's answer. Unless a model judges, intermediate answers are graded too, so that each run is
evidence about all its steps, and a checker's effect in one workflow informs all other estimates.

The model consists of three logistic regressions with Gaussian priors, in Laplace's approximation:

- Solvers: the worker, the group, the level of ease, and an effect of each question that all solvers
  share, which makes their errors correlate.
- Transitions: the role and the number of correct answers that are read, the worker, the group, the
  level, the author of the answer, and the workflow itself. The more specific effects have smaller
  prior variances, so that few data are shrunk towards the more general effects.
- Agreement: how often two wrong answers agree.

A workflow's accuracy follows from the probabilities of its steps.

Axes: s posterior draws, c candidates, l levels of ease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from batuta.lab.tune.library import Candidate, StepRole
from batuta.lab.tune.logistic_regression import LogisticRegression, apply_sigmoid
from batuta.lab.tune.sparse_design import Matrix, Places, add_up
from batuta.lab.tune.step_features import (
    SLOPES,
    SOLVER_VARIANCES,
    STEP_VARIANCES,
    agreement_features,
    changing_role,
    first_answers,
    inputs_of,
    later_steps,
    solver_features,
    step_features,
    usual_log_odds,
)
from batuta.lab.tune.workflow_shares import NODE_WEIGHTS, NODES, WorkflowShares

Cell = tuple[int, int]
"""The number of a group and a level of ease in the group; level 0 is the hardest."""
Trail = tuple[tuple[float | None, ...], bool]
"""The score of each step, None if unknown; and whether the first two answers agreed."""

_RIGHT = 0.5
"""The minimum score of an answer that counts as correct in a transition."""
_EFFECTS = (0.05, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Standard deviations of the questions' effects that are tried."""


@dataclass(slots=True)
class Observations:
    """The outcomes so far, by the question's id and the workflow."""

    scores: dict[str, dict[Candidate, float]] = field(
        default_factory=dict[str, dict[Candidate, float]]
    )
    """The score of each workflow on the question."""
    trails: dict[str, dict[Candidate, Trail]] = field(
        default_factory=dict[str, dict[Candidate, "Trail"]]
    )
    """The trails of workflows that compare their first two answers."""
    changed: dict[str, None] = field(default_factory=dict[str, None])
    """The questions with new outcomes, in order of arrival, until the model has read them."""

    def follow(
        self, question: str, candidate: Candidate, scores: Sequence[float | None], *,
        agreed: bool | None,
    ) -> None:  # fmt: skip
        """Record the steps' scores of a workflow, if it compares its first two answers.

        `agreed` is whether they agreed; None if the workflow compares none.
        """
        if agreed is not None and scores:
            self.trails.setdefault(question, {})[candidate] = (tuple(scores), agreed)
            self.changed[question] = None

    def add(
        self, question: str, candidate: Candidate, score: float, *, on_the_way: bool = False
    ) -> None:
        """Record a workflow's score on a question.

        With `on_the_way` the score is from an intermediate answer of a longer workflow, and never
        replaces a known score.
        """
        known = self.scores.setdefault(question, {})
        if not on_the_way or candidate not in known:
            known[candidate] = score
            self.changed[question] = None


@dataclass(slots=True)
class _Outcomes:
    """The outcomes of one question for each regression, as pairs of a row and a score."""

    solved: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    changed: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    agreed: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])

    def clear(self) -> None:
        for each in (self.solved, self.changed, self.agreed):
            each.clear()


@final
class TransitionModel:
    """The posterior of all workflows' accuracies, given the outcomes and the questions' cells."""

    def __init__(self, seen: Observations, cells: Mapping[str, Cell], levels: int) -> None:
        """Store the outcomes; each `fit` also reads outcomes that were added later.

        `cells` gives the cell of each question by its id; outcomes of other questions are ignored.
        """
        self.levels = levels
        self.effect = 1.0
        """The standard deviation of the questions' effects."""
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
        """Fit the posterior to all outcomes so far, and draw from it.

        With `tunes`, the standard deviation of the questions' effects is chosen again.
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
        """Return the solvers' log-likelihood with that standard deviation of questions' effects."""
        self._fit_solvers(deviation, solved, seed)
        row, question, score = solved
        at_nodes = self.solvers.log_odds()[row][:, None] + deviation * NODES[None, :]
        log = -np.logaddexp(0, np.where(score[:, None] >= _RIGHT, -at_nodes, at_nodes))
        each = np.zeros((int(question.max(initial=-1)) + 1, len(NODES)))
        np.add.at(each, question, log)
        peak = each.max(axis=1)
        return float((np.log(np.exp(each - peak[:, None]) @ NODE_WEIGHTS) + peak).sum())

    def draw_shares(self, candidates: Sequence[Candidate], group: int) -> Matrix:
        """Return the accuracy of each candidate at each level, for each draw: (s, c, l)."""
        return self._fitted.draw_shares(candidates, group)

    def agreement(self, candidate: Candidate, group: int) -> Matrix:
        """Return the probability, (l,), that the first two answers agree; the candidate `stops`."""
        return self._fitted.agreement(candidate, group)

    @property
    def _fitted(self) -> WorkflowShares:
        assert self._shares is not None  # noqa: S101 - fitted before
        return self._shares


def _as_arrays(outcomes: Sequence[tuple[int, float]]) -> tuple[Places, Matrix]:
    row, score = zip(*outcomes, strict=True) if outcomes else ((), ())
    return np.array(row, np.intp), np.array(score, np.float64)
