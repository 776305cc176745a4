"""The learned selector, which maps a question's text to one worker.

Axes: n questions, m workers (those it was fitted to, then those that joined since). The arrays of
`ValueModel` have that class's own axes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from batuta.conductors.feature_kinds import load_features
from batuta.conductors.features import Features, SavedFeatures
from batuta.conductors.selector.value_model import Smoothing, ValueModel
from batuta.conductors.tensor_folder import (
    TENSOR_FILE,
    Card,
    Tensors,
    is_of_kind,
    open_folder,
    read_tensors,
    write_folder,
)
from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Decision,
    Plan,
    PlanningContext,
    Pool,
    Question,
    Role,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.embedded.blas import single_blas_thread
from batuta.embedded.model_files import read_json
from batuta.embedded.policy import CARD_FILE
from batuta.errors import SourceError

_LOG = logging.getLogger(__name__)


def is_selector(folder: Path) -> bool:
    """Return True if the folder contains a selector.

    Raises:
        ConfigError: the folder's card cannot be read.
    """
    return is_of_kind(folder, SELECTOR_KIND)


def save_selector(selector: Selector, folder: Path) -> None:
    """Write the selector into the folder.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_folder(folder, *selector.state())


def open_selector(folder: Path) -> Selector:
    """Open the selector in that folder.

    Raises:
        ConfigError: the folder has no usable selector.
    """
    return open_folder(folder, SELECTOR_KIND, "selector", _build_selector)


def folder_digest(folder: Path) -> str:
    """Return the digest of the selector in that folder, computed from its files.

    Raises:
        ConfigError: a file is missing or cannot be read.
    """
    return state_digest(read_json(folder / CARD_FILE), read_tensors(folder / TENSOR_FILE))


def _build_selector(card: Card, tensors: Tensors) -> Selector:
    if card.get("rival") or np.any(tensors.get("head.weights_fm", 0)):
        _LOG.warning(
            "the selector %s has parts that this version no longer supports and is used without "
            "them; fit it again with batuta train selector",
            card["name"],
        )
    workers = tuple(WorkerId(str(name)) for name in card["workers"])
    arrays = {name: tensors[f"values.{name}"] for name in VALUE_ARRAYS}
    features = load_features(card["features"], tensors)
    features(["a question"])  # says now if a library is missing, not with the first question
    return Selector(
        title=str(card["name"]),
        features=features,
        values=ValueModel(workers=workers, smoothing=Smoothing(**card["smoothing"]), **arrays),
        guard=SelectorGuard(**card["guard"]),
    )


WorkerIndices = NDArray[np.signedinteger[Any]]
"""Indices of workers: the columns of their expected credits."""


@dataclass(frozen=True, slots=True)
class SelectorGuard:
    """A rule by which the best single worker answers unless another worker is clearly better.

    Other workers answer only questions that are close to a training question.

    `batuta.lab.learners.selector_training` fits the thresholds.
    """

    advantage: float = 0.0
    """The amount by which another worker's expected credit must exceed the best single worker's."""
    closeness: float = 2.0
    """The minimum cosine to the nearest training question; if above 1, the best single worker
    always answers."""

    def __call__(
        self, value_nm: Floats, close_n: Floats, best: int | WorkerIndices
    ) -> NDArray[np.intp]:
        """Return the index of the worker for each question, (n,).

        Args:
            value_nm: the expected credit of each worker.
            close_n: the cosine to the closest training question.
            best: the index of the best single worker: one for all questions, or one for each.
        """
        rows, first_n = np.arange(len(value_nm)), value_nm.argmax(axis=1)
        more_n = value_nm[rows, first_n] - value_nm[rows, best]
        leaves = (more_n > self.advantage) & (close_n >= self.closeness)
        return np.where(leaves, first_n, best)

    def hold_back(self, value_nm: Floats, best: int) -> Floats:
        """Return the expected credit without advantages for which the guard keeps the best worker.

        A credit that exceeds the best worker's by at most `advantage` is set just below the best
        worker's.
        """
        best_n1 = value_nm[:, [best]]
        short_nm = (value_nm > best_n1) & (value_nm - best_n1 <= self.advantage)
        return np.where(short_nm, np.nextafter(best_n1, np.float32(-1)), value_nm)


Floats = NDArray[np.float32]

SELECTOR_KIND = "selector"
SWITCH = 0.05
"""The advantage in expected credit needed to change a conversation's worker, since a change loses
prompt caches and a consistent voice."""
LOOK_BACK = 32
"""Maximum number of the newest user messages that are considered besides the first."""
VALUE_ARRAYS = ("mean_m", "memory_nd", "credit_nm", "known_nm", "linear_dm", "mean_j", "mixture_mj")
"""The arrays of `ValueModel`."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Selector:
    """A conductor that plans one step: the chosen worker and no subtask.

    A selector needs numpy, and what its features need (see `feature_kinds`); if that is missing,
    choosing raises a `ConfigError`. It chooses only workers to which it was fitted or that were
    added; if the pool has none of them, the pool's best worker answers.
    """

    title: str
    """The name without kind and version."""
    features: Features
    values: ValueModel
    guard: SelectorGuard
    digest: str = field(init=False)
    """The SHA-256 digest of the selector's state in hexadecimal."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", state_digest(*self.state()))

    def __repr__(self) -> str:
        return f"Selector({self.name!r}, {len(self.workers)} workers)"

    @property
    def name(self) -> str:
        """`selector/<title>@<version>`; the version is the beginning of the digest."""
        return f"selector/{self.title}@{self.digest[:8]}"

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The workers that the selector can choose."""
        return self.values.workers

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan one step for the chosen worker; accept the answer in a later round."""
        if context.previous:
            return AcceptedAnswer()
        turns = user_turns(context.question)
        return Plan(
            Workflow((Step(subtask="", worker=self.choose_in_conversation(turns, context.pool)),))
        )

    def choose_in_conversation(self, turns: Sequence[str], pool: Pool) -> WorkerId:
        """Choose the pool's worker for the last user message.

        The choices for earlier messages are computed again, so that no state is needed. A
        conversation keeps its worker, and its prompt cache, unless a later message is close to a
        training question and the worker chosen for that message alone has an expected credit higher
        by more than `SWITCH`. Only the first message and the last `LOOK_BACK` are considered.

        Args:
            turns: the user's messages, in order; at least one.
            pool: the workers that may answer.
        """
        chosen = self.choose_worker(turns[0], pool)
        later = turns[1:][-LOOK_BACK:]
        if not later or chosen not in self.workers:
            return chosen
        indices = {worker: index for index, worker in enumerate(self.workers)}
        with single_blas_thread():
            earned_nm, close_n = self.expected_credit(later)
        for turn, earned_m, close in zip(later, earned_nm, close_n, strict=True):
            if close < self.guard.closeness:
                continue  # a message such as "and now?" says nothing about the best worker
            other = self.choose_worker(turn, pool)
            if earned_m[indices[other]] - earned_m[indices[chosen]] > SWITCH:
                chosen = other
        return chosen

    def choose_worker(self, question: str, pool: Pool) -> WorkerId:
        """Choose the pool's worker for the question; without a known worker, the pool's best."""
        known = [index for index, worker in enumerate(self.workers) if worker in pool]
        if not known:
            return pool.ranked()[0].id
        with single_blas_thread():
            chosen = self.choose_indices([question], known)[0]
        return self.workers[chosen]

    def choose_indices(
        self, questions: Sequence[str], among: Sequence[int] | None = None
    ) -> list[int]:
        """Return the index of the worker for each question.

        Args:
            questions: the questions' texts.
            among: the indices of workers that may be chosen; None for all.
        """
        allowed = np.arange(len(self.workers)) if among is None else np.asarray(among, int)
        value_nm, close_n = self.values(self.features(questions))
        best = int(self.mean_credit_m[allowed].argmax())
        return [int(allowed[index]) for index in self.guard(value_nm[:, allowed], close_n, best)]

    def expected_credit(self, questions: Sequence[str]) -> tuple[Floats, Floats]:
        """Return each worker's expected credit (n, m) and each question's closeness (n,).

        The closeness is the cosine to the nearest training question. For a question that is not
        close to any training question, the expected credit is the worker's mean credit. Values that
        exceed the best worker's by no more than the guard's advantage are set just below it.
        """
        value_nm, close_n = self.values(self.features(questions))
        familiar_n1 = (close_n >= self.guard.closeness)[:, None]
        guarded_nm = self.guard.hold_back(value_nm, int(self.mean_credit_m.argmax()))
        return np.where(familiar_n1, guarded_nm, self.mean_credit_m), close_n

    @property
    def mean_credit_m(self) -> Floats:
        """Each worker's mean credit (m,)."""
        return np.concatenate([self.values.mean_m, self.values.mean_j])

    def state(self) -> SavedFeatures:
        """Return a card of JSON values, and tensors by name."""
        shown, tensors = self.features.save()
        card = {
            "kind": SELECTOR_KIND,
            "name": self.title,
            "workers": list(self.workers),
            "features": shown,
            "smoothing": asdict(self.values.smoothing),
            "guard": asdict(self.guard),
        }
        own = {f"values.{name}": getattr(self.values, name) for name in VALUE_ARRAYS}
        return card, {**tensors, **own}

    def add_worker(
        self, worker: str, questions: Sequence[str], scores: Sequence[float]
    ) -> Selector:
        """Return a selector with one more worker, known by its scores, 0 to 1, on a few questions.

        Raises:
            SourceError: the worker exists already, has no score, or does not have one score per
                question.
        """
        if len(questions) != len(scores):
            raise SourceError(f"{worker} has {len(scores)} scores for {len(questions)} questions")
        with single_blas_thread():
            values = self.values.add_worker(
                worker, self.features(questions), np.asarray(scores, np.float32)
            )
        return replace(self, values=values)


def user_turns(question: Question) -> list[str]:
    """Return the texts of the user's messages; if they have none, the question's text."""
    texts = [message.text for message in question.messages if message.role is Role.USER]
    return [text for text in texts if text] or [question.text]


def state_digest(card: Mapping[str, Any], tensors: Mapping[str, Floats]) -> str:
    """Return the SHA-256 digest of a selector's state, the same on every machine."""
    digest = hashlib.sha256(orjson.dumps(card, option=orjson.OPT_SORT_KEYS))
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name], "<f4")
        digest.update(f"\0{name}{tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()
