"""Describes fitted methods for reports: their ratings of two workers, and their rules.

A router that rates workers by a number can send more or fewer questions to the stronger of two
workers; RouteLLM's figures measure this (`cost_quality`). The ratings of each question are stored
beside the results, so that a resumed evaluation has them too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from batuta.conductors.selector import Selector
from batuta.core import Pool, TaskId, WorkerId
from batuta.core.formatting import format_usd
from batuta.errors import report_unwritable
from batuta.files import write_whole
from batuta.lab.baselines import Cascade, ConductorSolver, Solver
from batuta.lab.baselines.cascade_training import mean_usd_m
from batuta.lab.baselines.routing.router import Router
from batuta.lab.learners.history import History

FITTED_FILE = "fitted.jsonl"
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPair:
    """A weak and a strong worker, between which a router divides the questions."""

    weak: WorkerId
    strong: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMethod:
    """The reported figures of a method that was fitted on one `EvalPart`."""

    system: str
    pair: WorkerPair | None
    """The workers whose ratings are compared; None if `ahead` is empty."""
    ahead: Mapping[str, float]
    """The rating of the strong worker less that of the weak worker, by task; empty if the method
    does not rate workers, no two workers differ, or all questions are private."""
    about: str
    """The rules of a cascade in a sentence; empty for other methods, and if all workers' calls cost
    the same or a worker's cost is unknown."""


def choose_pair(history: History) -> WorkerPair | None:
    """Choose the best worker and a weaker worker, by the history's outcomes.

    The weaker worker is the cheapest, or the weakest if a worker's dollars are unknown. The result
    is None if no worker is weaker than the best.
    """
    mean_m = history.mean_m()
    known = [m for m in range(len(mean_m)) if not np.isnan(mean_m[m])]
    if len(known) < 2:  # noqa: PLR2004 - a pair
        return None
    strong = max(known, key=lambda m: float(mean_m[m]))
    priced = ~np.isnan(history.usd_qm)
    others = [m for m in known if mean_m[m] < mean_m[strong]]
    if not others:
        return None
    if all(priced[:, m].any() for m in known):
        usd_m = np.where(priced, history.usd_qm, 0).sum(axis=0) / np.maximum(priced.sum(axis=0), 1)
        weak = min(others, key=lambda m: (float(usd_m[m]), float(mean_m[m])))
    else:
        weak = min(others, key=lambda m: float(mean_m[m]))
    return WorkerPair(weak=history.workers[weak], strong=history.workers[strong])


def describe_fitted(
    name: str, solver: Solver, history: History, *, pool: Pool, questions: Mapping[TaskId, str]
) -> FittedMethod:
    """Describe a method that was fitted on that history, with its ratings of these questions.

    The two workers are chosen from the pool, which workers of the history may have left.
    """
    pair = choose_pair(history.select(workers=[who for who in history.workers if who in pool]))
    ratings = _rate_workers(solver, list(questions.values())) if pair and questions else None
    ahead: dict[str, float] = {}
    if pair is not None and ratings is not None:
        workers, rated_qm = ratings
        strong, weak = (workers.index(one) for one in (pair.strong, pair.weak))
        more_q = rated_qm[:, strong] - rated_qm[:, weak]
        ahead = {str(task): float(more) for task, more in zip(questions, more_q, strict=True)}
    return FittedMethod(
        system=name,
        pair=pair if ahead else None,
        ahead=ahead,
        about=_describe_cascade(solver, history) if isinstance(solver, Cascade) else "",
    )


def _rate_workers(
    solver: Solver, questions: Sequence[str]
) -> tuple[tuple[WorkerId, ...], Floats] | None:
    """Return the workers, and a rating for each question and worker, (q, m).

    None if the method does not rate workers.
    """
    conductor = solver.conductor if isinstance(solver, ConductorSolver) else None
    if isinstance(conductor, Selector):
        return conductor.workers, conductor.values(conductor.features(questions))[0]
    if isinstance(conductor, Router):
        return conductor.workers, np.stack([conductor.score(text) for text in questions])
    return None


def _describe_cascade(cascade: Cascade, history: History) -> str:
    """Describe which worker the cascade asks next, and when; empty as in `FittedMethod.about`.

    The order is that of questions close to a training question.
    """
    usd_m = mean_usd_m(history)
    if usd_m is None or len(set(cascade.calls_worth_m)) == 1:
        return ""
    usual = format_usd(float(f"{usd_m.mean():.3g}"))
    per_call = f"{cascade.price:g} of score for every {usual} of its call" if cascade.price else ""
    per_dollar = f"{cascade.dollar:g} of score per dollar" if cascade.dollar else ""
    gain = " and ".join(filter(None, (per_call, per_dollar))) or "something"
    asks = f"another answer must be expected to gain {gain}"
    price_weight = cascade.familiar.order.thrift
    if not price_weight:
        return f"{asks}; the worker with the greatest expected score is asked next"
    return (
        f"{asks}; the worker with the greatest expected score, less {price_weight:g} for every "
        f"{usual} of its call, is asked next"
    )


class FittedFile:
    """The file of fitted methods in the folder of the results."""

    def __init__(self, folder: Path) -> None:
        """Read the file if it exists; invalid lines are skipped."""
        self.path = folder / FITTED_FILE
        self._found: dict[str, FittedMethod] = {}
        lines = self.path.read_bytes().splitlines() if self.path.is_file() else []
        for line in lines:
            try:
                row = orjson.loads(line)
                pair = WorkerPair(**row["pair"]) if row["pair"] else None
                self._found[row["key"]] = FittedMethod(
                    system=row["system"], pair=pair, ahead=row["ahead"], about=row["about"]
                )
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue

    def get(self, key: str) -> FittedMethod | None:
        """Return the fitted method of that key, or None."""
        return self._found.get(key)

    def add(self, key: str, found: FittedMethod) -> None:
        """Append a fitted method to the file without buffering.

        Raises:
            StoreError: the disk is full, or the file cannot be written.
        """
        line = orjson.dumps({"key": key, **asdict(found)}, option=orjson.OPT_APPEND_NEWLINE)
        with report_unwritable(self.path):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                write_whole(descriptor, line)
            finally:
                os.close(descriptor)
        self._found[key] = found


def fitted_key(trial_keys: Sequence[str]) -> str:
    """Return a digest of the keys of all runs of a method on a part."""
    return blake2b("\n".join(trial_keys).encode(), digest_size=16).hexdigest()
