"""The learned selector: a question's text to one worker, who answers the question as it stands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from batuta.core import (
    Accepted,
    Brief,
    Decision,
    Listener,
    Plan,
    Pool,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import SILENT
from batuta.embedded.blas import one_thread
from batuta.errors import SourceError
from batuta.solvers.features import Features, Saved
from batuta.solvers.selector.guard import Guard
from batuta.solvers.selector.head import TEMPERATURE, Head
from batuta.solvers.selector.values import Values

Floats = NDArray[np.float32]

KIND = "selector"
VALUES = ("mean_m", "memory_nd", "credit_nm", "known_nm", "linear_dm", "mean_j", "mixture_mj")
"""The arrays of `Values`."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Selector:
    """A conductor whose workflow is one step: the chosen worker and no subtask.

    It decides with numpy alone. Workers of a pool that it has never heard of are not chosen; if
    it knows none of the pool's workers, the pool's best answers.
    """

    title: str
    """Its own name, without the version."""
    features: Features
    values: Values
    head: Head
    guard: Guard
    digest: str = field(init=False)
    """SHA-256 of all that it knows: the version."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_of(*self.state()))

    def __repr__(self) -> str:
        return f"Selector({self.name!r}, {len(self.workers)} workers)"

    @property
    def name(self) -> str:
        """`selector/<title>@<version>`."""
        return f"selector/{self.title}@{self.digest[:8]}"

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Those it can choose."""
        return self.values.workers

    async def plan(self, brief: Brief, listener: Listener = SILENT) -> Decision:
        """The workflow; in a later round, the answer stands."""
        if brief.previous:
            return Accepted()
        return Plan(Workflow((Step("", self.choose(brief.question.text, brief.pool)),)))

    def choose(self, question: str, pool: Pool) -> WorkerId:
        """Who of the pool is to answer."""
        known = [place for place, worker in enumerate(self.workers) if worker in pool]
        if not known:
            return pool.ranked()[0].id
        with one_thread():
            chosen = self.choices([question], known)[0]
        return self.workers[chosen]

    def choices(self, questions: Sequence[str], among: Sequence[int] | None = None) -> list[int]:
        """The place of the worker for each question.

        Args:
            questions: their texts.
            among: places of the workers that may be chosen; None: all.
        """
        places = np.arange(len(self.workers)) if among is None else np.asarray(among, int)
        logits, close_n = self.logits(questions)
        best = int(self.means[places].argmax())
        chosen = self.guard(logits[:, places] * np.float32(TEMPERATURE), close_n, best)
        return [int(places[place]) for place in chosen]

    def logits(self, questions: Sequence[str]) -> tuple[Floats, Floats]:
        """One logit a worker for each question (n, m), and how familiar each one is (n,)."""
        features_nd = self.features(questions)
        value_nm, close_n = self.values(features_nd)
        known = len(self.values.mean_m)
        inputs = inputs_of(features_nd, value_nm[:, :known], self.values.mean_m)
        logits = value_nm / np.float32(TEMPERATURE)
        logits[:, :known] += self.head(inputs)
        return logits, close_n

    def expected(self, questions: Sequence[str]) -> tuple[Floats, Floats]:
        """What each worker is expected to earn on each question (n, m), and how familiar it is.

        On a question that is not close to a trained one, what the worker earns on average.
        """
        value_nm, close_n = self.values(self.features(questions))
        familiar_n1 = (close_n >= self.guard.closeness)[:, None]
        return np.where(familiar_n1, value_nm, self.means), close_n

    @property
    def means(self) -> Floats:
        """What each worker earns on average (m,)."""
        return np.concatenate([self.values.mean_m, self.values.mean_j])

    def state(self) -> Saved:
        """All that it knows: a card (JSON values) and tensors by name."""
        shown, tensors = self.features.save()
        card = {
            "kind": KIND,
            "name": self.title,
            "workers": list(self.workers),
            "temperature": TEMPERATURE,
            "features": shown,
            "smoothing": asdict(self.values.smoothing),
            "guard": asdict(self.guard),
        }
        own = {f"values.{name}": getattr(self.values, name) for name in VALUES}
        head = {"head.weights_fm": self.head.weights_fm, "head.bias_m": self.head.bias_m}
        return card, {**tensors, **own, **head}

    def join(self, worker: str, questions: Sequence[str], scores: Sequence[float]) -> Selector:
        """The same with one more worker, known by its outcomes on a few questions.

        Raises:
            SourceError: it is there already, or its outcomes are none or not one a question.
        """
        if len(questions) != len(scores):
            raise SourceError(f"{worker} has {len(scores)} scores for {len(questions)} questions")
        with one_thread():
            values = self.values.join(
                worker, self.features(questions), np.asarray(scores, np.float32)
            )
        return replace(self, values=values)


def inputs_of(features_nd: Floats, value_nm: Floats, mean_m: Floats) -> Floats:
    """What the head reads: the features, and each known worker's value less its mean."""
    return np.concatenate([features_nd, value_nm - mean_m], axis=1)


def digest_of(card: Mapping[str, Any], tensors: Mapping[str, Floats]) -> str:
    """SHA-256 of a selector's state, the same on every machine."""
    digest = hashlib.sha256(orjson.dumps(card, option=orjson.OPT_SORT_KEYS))
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name], "<f4")
        digest.update(f"\0{name}{tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()
