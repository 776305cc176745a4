"""The workflow selector, which picks the workflow that did best on similar questions.

The inputs are a few counts, and the words and word pairs of the question, with digits masked, as
hashed TF-IDF reduced to `DIMENSIONS` dimensions. A group's score is linear in these inputs; within
a group, so is a question's ease.

Axes: n questions, d dimensions, f inputs (more for a question's ease than for a group's score),
c counts, k counts and constant, t targets of a regression, g groups, l levels, w workflows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.feature_kinds import load_features
from batuta.conductors.features import Features, Floats, SavedFeatures
from batuta.conductors.fixed_workflows import ROUNDS, ContinuedWorkflow, continue_round
from batuta.conductors.hashed_ngrams import HashedNgrams, unit_rows
from batuta.conductors.selector.model import state_digest
from batuta.conductors.tensor_folder import Card, Tensors, is_of_kind, open_folder, write_folder
from batuta.core import (
    MAX_ROUNDS,
    CallListener,
    Decision,
    Plan,
    PlanningContext,
    Pool,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.workflow import steps_json
from batuta.embedded.blas import single_blas_thread

_OWN = frozenset(
    {"kind", "name", "groups", "workflows", "continuations", "ranking", "safest", "reader",
     "rounds"}
)  # fmt: skip
"""The entries of the folder's `batuta.json` that the selector uses; `about` keeps the others."""


def is_workflow_selector(folder: Path) -> bool:
    """Return True if the folder contains a workflow selector.

    Raises:
        ConfigError: the folder's `batuta.json` cannot be read.
    """
    return is_of_kind(folder, KIND)


def save_workflow_selector(selector: WorkflowSelector, folder: Path) -> None:
    """Write the workflow selector into the folder.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_folder(folder, *selector.save())


def open_workflow_selector(folder: Path) -> WorkflowSelector:
    """Open the workflow selector in that folder.

    Raises:
        ConfigError: the folder has no usable workflow selector.
    """
    return open_folder(folder, KIND, "workflow selector", _selector_of)


def _selector_of(card: Card, tensors: Tensors) -> WorkflowSelector:
    later = card.get("continuations", [])
    return WorkflowSelector(
        title=str(card["name"]),
        reader=QuestionReader.load(card["reader"], tensors),
        groups=tuple(str(name) for name in card["groups"]),
        workflows=tuple(_workflow_of(steps) for steps in card["workflows"]),
        continuations=tuple(None if steps is None else _workflow_of(steps) for steps in later),
        rank_glw=np.asarray(card["ranking"], np.intp),
        safest_w=np.asarray(card["safest"], np.intp),
        ease_gl=tensors["ease_gl"],
        stated_rounds=int(card.get("rounds", 1)),
        about={name: value for name, value in card.items() if name not in _OWN},
    )


def _workflow_of(steps: Sequence[Mapping[str, Any]]) -> Workflow:
    return Workflow(
        tuple(
            Step(
                subtask=str(step["subtask"]),
                worker=WorkerId(str(step["worker"])),
                access=tuple(step["access"]),
                previous=bool(step.get("previous")),
            )
            for step in steps
        )
    )


Labels = NDArray[np.intp]
"""A number for each question: its group, or the fold that holds it out."""

DIMENSIONS = 48
"""Number of dimensions of a text vector; fewer if the features are fitted to fewer texts."""
BUCKETS = 2**12
"""Number of hash buckets of the n-grams."""
_UNFAMILIAR_SHARE = 0.01
"""The share of training questions below the threshold of familiarity, approximately."""
_DIGITS = re.compile(r"\d+")
_COUNTED = (re.compile(r"\S+"), re.compile(r"\S"), _DIGITS, re.compile(r"[,;:.!?]"),
            re.compile(r"[;.]\s"), re.compile(r"\n"), re.compile(r"\b[A-Z]"))  # fmt: skip
"""The patterns that are counted: words, non-space characters, numbers, punctuation, ends of
clauses, line breaks and capitalised words.
"""
_PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The ridge penalties that are compared."""
_FOLDS = 5
"""Number of folds of the cross-validation."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class QuestionReader:
    """The functions that predict a question's group, ease and familiarity."""

    features: Features
    centres_gd: Floats
    """The mean text vector of each group, scaled to length 1."""
    group_fg: Floats
    """The weights of each group's score; a question belongs to the group with the highest score."""
    ease_f: Floats
    """The weights of the predicted ease, for `ease_inputs`."""
    scale_2c: Floats
    """The mean and the standard deviation of each logarithmic count that `count_marks` returns."""
    closeness: float
    """The cosine with the nearest centre below which a question is unfamiliar."""

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self.centres_gd)

    def __call__(self, texts: Sequence[str]) -> tuple[Labels, Floats, NDArray[np.bool_]]:
        """Return each text's group, its ease (higher is easier), and whether it is familiar."""
        text_nd, inputs_nf = self.inputs(texts)
        group_n = (inputs_nf @ self.group_fg).argmax(axis=1)
        ease_n = ease_inputs(inputs_nf, group_n, self.groups) @ self.ease_f
        close_n = (text_nd @ self.centres_gd.T).max(axis=1)
        return group_n, ease_n.astype(np.float32), close_n >= self.closeness

    def inputs(self, texts: Sequence[str]) -> tuple[Floats, Floats]:
        """Return the text vectors (n, d), and the inputs of the group scores (n, f)."""
        text_nd = self.features([mask_digits(text) for text in texts])
        count_nc = (count_marks(texts) - self.scale_2c[0]) / self.scale_2c[1]
        return text_nd, stack_inputs(text_nd, count_nc)

    def save(self) -> SavedFeatures:
        """Return the JSON values and the tensors from which `load` makes this reader."""
        card, tensors = self.features.save()
        own = {"centres_gd": self.centres_gd, "group_fg": self.group_fg, "ease_f": self.ease_f,
               "scale_2c": self.scale_2c}  # fmt: skip
        return {"features": card, "closeness": self.closeness}, {**tensors, **own}

    @classmethod
    def load(cls, card: Mapping[str, Any], tensors: Mapping[str, Floats]) -> Self:
        """Load what `save` returned.

        Raises:
            ConfigError: the features are of an unknown kind or damaged.
            KeyError: an entry of the card or a tensor is missing.
            ValueError, IndexError: the tensors' shapes do not match; not all such faults are found.
        """
        reader = cls(
            features=load_features(card["features"], tensors),
            centres_gd=tensors["centres_gd"],
            group_fg=tensors["group_fg"],
            ease_f=tensors["ease_f"],
            scale_2c=tensors["scale_2c"],
            closeness=float(card["closeness"]),
        )
        reader(["a question"])  # most wrong shapes raise an error here
        return reader


def mask_digits(text: str) -> str:
    """Return the text with each run of digits as `#`, since numbers say little about its kind."""
    return _DIGITS.sub("#", text)


def count_marks(texts: Sequence[str]) -> Floats:
    """Return log(1 + count) of each counted pattern in each text: (n, c)."""
    counts = [[sum(1 for _ in mark.finditer(text)) for mark in _COUNTED] for text in texts]
    return np.log1p(np.asarray(counts, np.float32).reshape(len(texts), len(_COUNTED)))


def stack_inputs(text_nd: Floats, count_nc: Floats) -> Floats:
    """Return the inputs of the group scores: the text vector, the counts, a constant; (n, f)."""
    return np.concatenate([text_nd, count_nc, np.ones((len(text_nd), 1), np.float32)], axis=1)


def ease_inputs(inputs_nf: Floats, group_n: Labels, groups: int) -> Floats:
    """Return the inputs of the predicted ease.

    They are the inputs of the group scores, then the counts and the constant once for each group,
    which are 0 except for the question's own group.
    """
    member_ng = np.eye(groups, dtype=np.float32)[group_n]
    own_nk = inputs_nf[:, -len(_COUNTED) - 1 :]
    by_group = (member_ng[:, :, None] * own_nk[:, None, :]).reshape(len(group_n), -1)
    return np.concatenate([inputs_nf, by_group], axis=1)


def fit_reader(texts: Sequence[str], group_n: Labels) -> QuestionReader:
    """Fit a reader to the groups; the predicted ease is 0 until the weights of `fit_ease` are set.

    Args:
        texts: the questions, at least one.
        group_n: the group of each question, numbered from 0.

    Raises:
        ConfigError: there are no texts.
    """
    fitted = fit_text(texts, DIMENSIONS)
    text_nd = fitted([mask_digits(text) for text in texts])
    count_nc = count_marks(texts)
    scale_2c = np.stack([count_nc.mean(axis=0), np.maximum(count_nc.std(axis=0), 1e-3)])
    inputs_nf = stack_inputs(text_nd, (count_nc - scale_2c[0]) / scale_2c[1])
    groups = int(group_n.max()) + 1
    member_ng = np.eye(groups, dtype=np.float32)[group_n]
    centres_gd = unit_rows(member_ng.T @ text_nd)
    close_n = (text_nd @ centres_gd.T).max(axis=1)
    width: int = ease_inputs(inputs_nf[:1], group_n[:1], groups).shape[1]
    unlearned_f: Floats = np.zeros(width, np.float32)
    return QuestionReader(
        features=fitted,
        centres_gd=centres_gd,
        group_fg=solve_ridge(inputs_nf, member_ng, 1.0),
        ease_f=unlearned_f,
        scale_2c=scale_2c.astype(np.float32),
        closeness=float(np.quantile(close_n, _UNFAMILIAR_SHARE)) - 1e-4,
    )


def fit_text(texts: Sequence[str], dimensions: int = DIMENSIONS) -> Features:
    """Return features fitted to the texts with masked digits; they take texts with masked digits.

    Raises:
        ConfigError: there are no texts.
    """
    plain = HashedNgrams(buckets=BUCKETS, words=(1, 2), characters=(), dimensions=dimensions)
    return plain.fit([mask_digits(text) for text in texts])


def fit_ease(reader: QuestionReader, texts: Sequence[str], right_n: Floats) -> Floats:
    """Return the weights with which the reader predicts how easy a question is.

    A ridge regression of `right_n`, the workers' mean score on each question, gives the weights;
    its penalty is cross-validated.
    """
    group_n, _, _ = reader(texts)
    inputs_nf = ease_inputs(reader.inputs(texts)[1], group_n, reader.groups)
    fold_n = np.arange(len(texts)) % _FOLDS
    errors = [_error_of(inputs_nf, right_n, fold_n, penalty) for penalty in _PENALTIES]
    best = _PENALTIES[int(np.argmin(errors))]
    return solve_ridge(inputs_nf, right_n[:, None].astype(np.float32), best)[:, 0]


def _error_of(inputs_nf: Floats, right_n: Floats, fold_n: Labels, penalty: float) -> float:
    """Return the sum of squared errors on the questions that were left out of each fit."""
    error = 0.0
    for fold in range(_FOLDS):
        kept, out = fold_n != fold, fold_n == fold
        if kept.any() and out.any():
            weights = solve_ridge(inputs_nf[kept], right_n[kept, None], penalty)[:, 0]
            error += float(((inputs_nf[out] @ weights - right_n[out]) ** 2).sum())
    return error


def solve_ridge(inputs_nf: Floats, targets_nt: Floats, penalty: float) -> Floats:
    """Return the weights of a ridge regression of the targets: (f, t), a column for each target."""
    inputs = inputs_nf.astype(np.float64)
    gram = inputs.T @ inputs + penalty * np.eye(inputs.shape[1])
    return np.linalg.solve(gram, inputs.T @ targets_nt).astype(np.float32)


KIND = "workflow-selector"
_POSSIBLE_ROUNDS = f"1 to {MAX_ROUNDS} are possible"
Ranks = NDArray[np.intp]
"""Indices of workflows, best first."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class WorkflowSelector:
    """A conductor that picks its workflows from a library that `batuta tune` found.

    A question belongs to a cell: a group and a level of ease. Each cell ranks the library's
    workflows, and the first one that the pool and the limit on steps allow is run; if they allow
    none, the pool's best worker answers alone. For an unfamiliar question the workflows are ranked
    by how well they did over all groups.
    """

    title: str
    """The name without kind and version."""
    reader: QuestionReader
    groups: tuple[str, ...]
    """The names of the groups."""
    workflows: tuple[Workflow, ...]
    continuations: tuple[Workflow | None, ...] = ()
    """For each workflow, the continuation to run unless the last two answers agree; None: the
    workflow's answer is accepted. Empty: no workflow has a continuation."""
    rank_glw: Ranks
    """The library's indices for each group and level, best first."""
    safest_w: Ranks
    """The library's indices for unfamiliar questions, best first."""
    ease_gl: Floats
    """The thresholds between a group's levels of ease, ascending."""
    stated_rounds: int = 1
    """The number of rounds in `batuta.json`; continuations may need more."""
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further entries of `batuta.json`, on how the library was found."""
    digest: str = field(init=False)
    """The SHA-256 digest, in hexadecimal, of the selector's state without the number of rounds."""

    def __post_init__(self) -> None:
        groups, levels, library = self.rank_glw.shape
        if groups != self.reader.groups or len(self.groups) != groups:
            raise ValueError("the selector's groups do not match its reader's")
        if self.ease_gl.shape != (groups, levels - 1) or library != len(self.workflows):
            raise ValueError("the selector's levels or workflows do not match its ranking")
        if self.rank_glw.size and not 0 <= self.rank_glw.min() <= self.rank_glw.max() < library:
            raise ValueError("the selector ranks a workflow that it does not have")
        if self.continuations and len(self.continuations) != library:
            raise ValueError("the selector does not have one continuation per workflow")
        if not set(self.safest_w.tolist()) <= set(range(library)):
            raise ValueError("the selector's safest workflow is not in its library")
        if not 1 <= self.stated_rounds <= MAX_ROUNDS:
            raise ValueError(
                f"the selector asks for {self.stated_rounds} rounds: {_POSSIBLE_ROUNDS}"
            )
        object.__setattr__(self, "digest", state_digest(*self._state()))

    def __repr__(self) -> str:
        return f"WorkflowSelector({self.name!r}, {len(self.workflows)} workflows)"

    @property
    def name(self) -> str:
        """`workflow-selector/<title>@<version>`; the version is the beginning of the digest."""
        return f"{KIND}/{self.title}@{self.digest[:8]}"

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan the workflow; after it plan its continuation, or accept the answer.

        The continuation is planned once, unless the last two answers of the workflow agree.
        """
        if not context.previous:
            return Plan(self.choose(context.question.text, context.pool, context.max_steps))
        index = self._choose_index(context.question.text, context.pool, context.max_steps)
        later = self.continuations[index] if self.continuations and index is not None else None
        return continue_round(context.previous, later)

    @property
    def needed_rounds(self) -> int:
        """Maximum number of rounds that any of the workflows needs, at least `stated_rounds`."""
        continues = any(flow is not None for flow in self.continuations)
        return max(self.stated_rounds, ROUNDS if continues else 1)

    def choose(self, question: str, pool: Pool, max_steps: int) -> Workflow:
        """Choose the question's best workflow that can be run, its continuation included.

        Each of the two must have at most `max_steps` steps, all by workers of the pool. If none can
        be run, the pool's best worker answers alone.
        """
        index = self._choose_index(question, pool, max_steps)
        if index is not None:
            return self.workflows[index]
        return Workflow((Step(subtask="", worker=pool.ranked()[0].id),))

    def list_candidates(
        self, question: str, pool: Pool, max_steps: int
    ) -> tuple[str, list[ContinuedWorkflow]]:
        """Return the name of the question's cell, and the workflows that can be run, best first.

        The name is `unfamiliar` if the question is.
        """
        with single_blas_thread():
            (cell,) = self.find_cells([question])
        order = self.safest_w if cell is None else self.rank_glw[cell]
        indices: list[int] = order.tolist()
        name = "unfamiliar" if cell is None else f"{self.groups[cell[0]]} level {cell[1]}"
        return name, [
            ContinuedWorkflow(
                name=f"{index}: {' > '.join(step.worker for step in self.workflows[index].steps)}",
                first=self.workflows[index],
                continuation=self.continuations[index] if self.continuations else None,
            )
            for index in indices
            if self._can_run(index, pool, max_steps)
        ]

    def _choose_index(self, question: str, pool: Pool, max_steps: int) -> int | None:
        """Return the library index of the best workflow that can be run; None if none can."""
        with single_blas_thread():
            (order,) = self.orders([question])
        indices: list[int] = order.tolist()
        return next((i for i in indices if self._can_run(i, pool, max_steps)), None)

    def _can_run(self, index: int, pool: Pool, max_steps: int) -> bool:
        """Return True if the pool and the limit allow the workflow and its continuation."""
        flows = [self.workflows[index], *self.continuations[index : index + 1]]
        steps = [step for flow in flows if flow is not None for step in flow.steps]
        longest = max(len(flow) for flow in flows if flow is not None)
        return longest <= max_steps and all(step.worker in pool for step in steps)

    def orders(self, questions: Sequence[str]) -> list[Ranks]:
        """Return the ranking of the library for each question, best first."""
        return [
            self.safest_w if cell is None else self.rank_glw[cell]
            for cell in self.find_cells(questions)
        ]

    def find_cells(self, questions: Sequence[str]) -> list[tuple[int, int] | None]:
        """Return each question's group and level (0 is the hardest); None if it is unfamiliar."""
        group_n, ease_n, known_n = self.reader(questions)
        level_n = (ease_n[:, None] >= self.ease_gl[group_n]).sum(axis=1)
        return [
            (int(group), int(level)) if known else None
            for group, level, known in zip(group_n, level_n, known_n, strict=True)
        ]

    def save(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Return the JSON values of `batuta.json`, and the tensors by name."""
        card, tensors = self._state()
        return {**card, "rounds": self.needed_rounds}, tensors

    def _state(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Return what `save` returns, without the number of rounds, for the digest."""
        card, tensors = self.reader.save()
        shown = {
            "kind": KIND,
            "name": self.title,
            "groups": list(self.groups),
            "workflows": [steps_json(flow) for flow in self.workflows],
            "continuations": [
                None if flow is None else steps_json(flow) for flow in self.continuations
            ],
            "ranking": self.rank_glw.tolist(),
            "safest": self.safest_w.tolist(),
            "reader": card,
            **self.about,
        }
        return shown, {**tensors, "ease_gl": self.ease_gl}
