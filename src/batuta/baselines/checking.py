"""A checker: a worker that reads an answer and says whether it is right.

What it says is evidence, not a verdict: it moves the probability that the answer is right by how
often such a worker is believed to pass a right answer and to notice a wrong one (Bayes' rule).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from batuta.baselines.roles import CHECKING, suited
from batuta.baselines.self_reflection import FEEDBACK, finds_right
from batuta.core import Pool, Reply, Step, WorkerId


@dataclass(frozen=True, slots=True)
class Checker:
    """Who checks, and how much is believed of it."""

    worker: WorkerId | None = None
    """None: the one whose description praises it most for checking."""
    passes: float = 0.9
    """How likely it is to call a right answer right."""
    notices: float = 0.7
    """How likely it is to call a wrong answer wrong."""

    def __post_init__(self) -> None:
        if not 0 < 1 - self.notices < self.passes < 1:
            raise ValueError(
                f"a checker that passes {self.passes} of the right answers and notices "
                f"{self.notices} of the wrong ones says nothing: both are in (0, 1), and "
                "together more than 1"
            )

    def of(self, pool: Pool) -> WorkerId | None:
        """Who of the pool checks; None: the one that was named is not there."""
        if self.worker is None:
            return suited(pool, CHECKING)
        return self.worker if self.worker in pool else None

    def step(self, worker: WorkerId) -> Step:
        """The check of what the last round answered."""
        return Step(FEEDBACK, worker, previous=True)

    def evidence(self, said: Reply) -> float:
        """What the reply adds to the log-odds that the answer is right."""
        if finds_right(said):
            return math.log(self.passes / (1 - self.notices))
        return math.log((1 - self.passes) / self.notices)


def is_check(step: Step) -> bool:
    """Whether the step is a checker's."""
    return step.previous and step.subtask == FEEDBACK
