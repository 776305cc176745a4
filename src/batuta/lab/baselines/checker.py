"""A checker: a worker that reads an answer and says whether it is right.

What it says is evidence, not a verdict: it moves the probability that the answer is right by how
often such a worker is believed to pass a right answer and to notice a wrong one (Bayes' rule).
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
    """Who checks, and how much is believed of it."""

    worker: WorkerId | None = None
    """None: the one whose description praises it most for checking."""
    pass_rate: float = 0.9
    """How likely it is to call a right answer right."""
    catch_rate: float = 0.7
    """How likely it is to call a wrong answer wrong."""

    def __post_init__(self) -> None:
        if not 0 < 1 - self.catch_rate < self.pass_rate < 1:
            raise ValueError(
                f"a checker that passes {self.pass_rate} of the right answers and notices "
                f"{self.catch_rate} of the wrong ones says nothing: both are in (0, 1), and "
                "together more than 1"
            )

    def pick_worker(self, pool: Pool) -> WorkerId | None:
        """Who of the pool checks; None: the one that was named is not there."""
        if self.worker is None:
            return best_worker_for_role(pool, CHECKING)
        return self.worker if self.worker in pool else None

    def check_step(self, worker: WorkerId) -> Step:
        """The check of what the last round answered."""
        return Step(subtask=FEEDBACK, worker=worker, previous=True)

    def evidence(self, reply: Reply) -> float:
        """What the reply adds to the log-odds that the answer is right."""
        return self.verdict_evidence(passed=says_solution_is_right(reply))

    def verdict_evidence(self, *, passed: bool) -> float:
        """What a verdict adds to the log-odds that the answer is right."""
        if passed:
            return math.log(self.pass_rate / (1 - self.catch_rate))
        return math.log((1 - self.pass_rate) / self.catch_rate)


EXECUTED_TESTS = Checker(pass_rate=0.98, catch_rate=0.6)
"""What is believed of the tests that a question shows, before any were run: what is right passes
them, and they notice more than half of what is wrong."""

_BELIEVED_CHECKS = 4.0
"""Checks of right answers, and of wrong ones, that the rates believed of a checker count as."""
_LEAST_INFORMATION = 0.15
"""How far the two rates together must be above 1 for a checker to be worth its call."""


def fit_checker(checker: Checker, verdicts: Sequence[tuple[bool, bool]]) -> Checker | None:
    """The same checker with the rates that its verdicts showed; None: they say nothing.

    Args:
        checker: who checks, with the rates that are believed of it beforehand.
        verdicts: of each check, whether the answer was right, and whether it was called right.
    """
    passed = [called for right, called in verdicts if right]
    caught = [not called for right, called in verdicts if not right]
    pass_rate = _shrunk_share(passed, checker.pass_rate)
    catch_rate = _shrunk_share(caught, checker.catch_rate)
    if pass_rate + catch_rate <= 1 + _LEAST_INFORMATION:
        return None
    return Checker(checker.worker, pass_rate, catch_rate)


def _shrunk_share(found: Sequence[bool], believed: float) -> float:
    return (sum(found) + _BELIEVED_CHECKS * believed) / (len(found) + _BELIEVED_CHECKS)


def is_check(step: Step) -> bool:
    """Whether the step is a checker's."""
    return step.previous and step.subtask == FEEDBACK
