"""The common part of text routers: a score for each worker, and one step for the highest score.

Every `fit_…` function of this package takes a history of outcomes, a seed, and unfitted features of
questions (None: `HashedNgrams`).

Axes: q questions, m workers, d dimensions of the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from batuta.conductors.features import Features
from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Decision,
    Draft,
    MalformedPlan,
    Plan,
    PlanningContext,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.lab.baselines.routing.arrays import Floats
from batuta.lab.learners.history import History


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """A conductor that gives the bare question to the worker with the highest score.

    Workers that are not in the pool are passed over.
    """

    name: str
    workers: tuple[WorkerId, ...]
    """The workers that the router was fitted to."""
    score: Callable[[str], Floats]
    """Maps the question's text to a score for each worker: (m,)."""

    def choose_indices(self, questions: Sequence[str]) -> list[int]:
        """Return the index in `workers` of the highest score for each question."""
        return [int(np.argmax(self.score(text))) for text in questions]

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan one step; accept the answer in a later round.

        The plan is malformed if the pool has none of the router's workers.
        """
        if context.previous:
            return AcceptedAnswer()
        present = [m for m, worker in enumerate(self.workers) if worker in context.pool]
        if not present:
            return MalformedPlan(
                draft=Draft(), reason=f"{self.name} was fitted on none of the pool's workers"
            )
        scores_m = self.score(context.question.text)
        best = max(present, key=lambda m: float(scores_m[m]))
        return Plan(Workflow((Step(subtask="", worker=self.workers[best]),)))


def fit_embedding(history: History, features: Features | None = None) -> tuple[Features, Floats]:
    """Return features fitted to the history's questions, and the questions' vectors, (q, d).

    The default, `HashedNgrams`, is fitted once for all routers of a history.

    Raises:
        ConfigError: there are no questions.
    """
    if features is None:
        return _fit_hashed_embedding(history.questions)
    fitted = features.fit(history.questions)
    return fitted, fitted(history.questions)


@lru_cache(maxsize=2)
def _fit_hashed_embedding(questions: tuple[str, ...]) -> tuple[Features, Floats]:
    fitted = HashedNgrams().fit(questions)
    return fitted, fitted(questions)


def linear_router(
    name: str,
    history: History,
    embed: Features,
    weights_dm: Floats,
    *,
    bias_m: Floats | float = 0.0,
) -> Router:
    """Return the router that scores the history's workers by a linear map of the embedding."""
    return Router(name, history.workers, lambda text: embed([text])[0] @ weights_dm + bias_m)
