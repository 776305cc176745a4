"""A checker: a worker that reads an answer and says whether it is correct.

Its verdict updates the probability that the answer is correct, by Bayes' rule, with the rates at
which the checker accepts correct answers and rejects wrong answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from batuta.core import Pool, Reply, Step, WorkerId
from batuta.lab.baselines.roles import CHECKING, best_worker_for_role
from batuta.lab.baselines.self_reflection import FEEDBACK, says_solution_is_right


@dataclass(frozen=True, slots=True)
class Checker:
    """The worker that checks, and its rates."""

    worker: WorkerId | None = None
    """None for the worker whose description recommends it most for checking."""
    pass_rate: float = 0.9
    """The probability of judging a correct answer correct."""
    catch_rate: float = 0.7
    """The probability of judging a wrong answer wrong."""

    def __post_init__(self) -> None:
        if not 0 < 1 - self.catch_rate < self.pass_rate < 1:
            raise ValueError(
                f"a checker with pass_rate {self.pass_rate} and catch_rate {self.catch_rate} is "
                "uninformative: both must be in (0, 1), and their sum above 1"
            )

    def pick_worker(self, pool: Pool) -> WorkerId | None:
        """Return the worker of the pool that checks; None if the pool lacks the named worker."""
        if self.worker is None:
            return best_worker_for_role(pool, CHECKING)
        return self.worker if self.worker in pool else None

    def check_step(self, worker: WorkerId) -> Step:
        """Return the step that checks the last round's answer."""
        return Step(subtask=FEEDBACK, worker=worker, previous=True)

    def evidence(self, reply: Reply) -> float:
        """Return what the checker's reply adds to the log-odds that the answer is correct."""
        return self.verdict_evidence(passed=says_solution_is_right(reply))

    def verdict_evidence(self, *, passed: bool) -> float:
        """Return what a verdict adds to the log-odds that the answer is correct."""
        if passed:
            return math.log(self.pass_rate / (1 - self.catch_rate))
        return math.log((1 - self.pass_rate) / self.catch_rate)


EXECUTED_TESTS = Checker(pass_rate=0.98, catch_rate=0.6)
"""The assumed rates of the tests in a question's text, which are a checker without a worker."""

_BELIEVED_CHECKS = 4.0
"""The weight of each assumed rate of a checker, as a number of checks."""
_LEAST_INFORMATION = 0.15
"""The amount by which the sum of both rates must exceed 1 for a check to be worth its call."""


def fit_checker(checker: Checker, verdicts: Sequence[tuple[bool, bool]]) -> Checker | None:
    """Return the checker with rates updated by its verdicts; None if the rates say too little.

    `verdicts` has for each check whether the answer was correct, and whether it was judged correct.
    """
    passed = [accepted for right, accepted in verdicts if right]
    caught = [not accepted for right, accepted in verdicts if not right]
    pass_rate = _shrunk_share(passed, checker.pass_rate)
    catch_rate = _shrunk_share(caught, checker.catch_rate)
    if pass_rate + catch_rate <= 1 + _LEAST_INFORMATION:
        return None
    return Checker(checker.worker, pass_rate, catch_rate)


def _shrunk_share(found: Sequence[bool], believed: float) -> float:
    return (sum(found) + _BELIEVED_CHECKS * believed) / (len(found) + _BELIEVED_CHECKS)


def is_check(step: Step) -> bool:
    """Return whether `Checker.check_step` made the step."""
    return step.previous and step.subtask == FEEDBACK
