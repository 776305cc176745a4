"""Recorded sets, divided into known and measured questions for each seed; their pool may change.

If workers leave, methods are fitted to the outcomes of all workers but can only ask the remaining
workers. If a worker joins, only a few of its outcomes are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

import numpy as np

from batuta.core import Conductor, Grade, Pool, Task
from batuta.core.suggestions import suggest_names
from batuta.environment import benchmark_folder
from batuta.errors import ConfigError, SourceError
from batuta.lab.evals.evaluation import EvalPart
from batuta.lab.evals.subject import AnswerCache, Subject
from batuta.lab.evals.task_sets import TaskSet
from batuta.lab.learners.history import History, history_from_record
from batuta.lab.tasks import RECORDED_PREFIX
from batuta.lab.tasks.recorded import (
    PACKAGED_RECORDS,
    RECORDED_NAMES,
    RECORDED_SETS,
    QuestionSplit,
    RecordedOutcomes,
    ReplayPool,
    find_outcomes_file,
    load_recorded,
    random_split,
    unseen_family_split,
)

FEW_OUTCOMES = 40
"""The default number of questions on which a joining worker's outcomes are known."""
_COUNTED = re.compile(r"(.+):([1-9]\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChange:
    """The workers that leave and join a pool after its outcomes were gathered."""

    leaves: tuple[str, ...] = ()
    joins: tuple[tuple[str, int], ...] = ()
    """Workers that join, each with the number of questions on which its outcomes are known."""

    def __bool__(self) -> bool:
        return bool(self.leaves or self.joins)

    def __str__(self) -> str:
        """Return the change as a suffix of a record's name."""
        gone = "".join(f", {name} left" for name in self.leaves)
        return gone + "".join(f", {name} joined with {count}" for name, count in self.joins)

    @staticmethod
    def parse(leaves: str | None, joins: str | None) -> PoolChange:
        """Parse names separated by commas; `NAME:COUNT` joins with COUNT known outcomes.

        Raises:
            ConfigError: a worker both leaves and joins.
        """
        gone = _split_names(leaves)
        counted = [(_COUNTED.fullmatch(name), name) for name in _split_names(joins)]
        new = tuple(
            (found[1], int(found[2])) if found else (name, FEW_OUTCOMES) for found, name in counted
        )
        if both := sorted(set(gone) & {name for name, _ in new}):
            raise ConfigError(f"{both[0]} cannot both leave and join")
        return PoolChange(leaves=gone, joins=new)

    def apply(self, pool: Pool, history: History, seed: int) -> tuple[Pool, History]:
        """Return the pool after the change, and the known outcomes, whose means are its strengths.

        `history` has all workers' outcomes on the training questions. The seed chooses the
        questions on which the outcomes of joining workers are known.

        Raises:
            ConfigError: there is no such worker, or none of the old workers stays.
        """
        for name in (*self.leaves, *(name for name, _ in self.joins)):
            if name not in pool:
                known = suggest_names(name, (worker.id for worker in pool))
                raise ConfigError(f"there is no worker {name!r} to leave or join; {known}")
        stay = [worker.id for worker in pool if worker.id not in self.leaves]
        if len(stay) <= len(self.joins):
            raise ConfigError("all workers leave or join: keep at least one of the old workers")
        known = self._forget(history, seed)
        strength = dict(zip(known.workers, known.mean_m().tolist(), strict=True))
        workers = (replace(pool[name], strength=strength[name]) for name in stay)
        return Pool(tuple(workers)), known

    def _forget(self, history: History, seed: int) -> History:
        """Return the history without the outcomes of joining workers that are not known."""
        if not self.joins:
            return history
        rng = np.random.Generator(np.random.PCG64(seed))
        scores_qm, usd_qm = history.scores_qm.copy(), history.usd_qm.copy()
        runs_qm, samples = history.runs_qm.copy(), history.samples
        if samples is not None:
            samples = replace(
                samples,
                credit_qms=samples.credit_qms.copy(),
                answers_qms=samples.answers_qms.copy(),
            )
        for name, count in self.joins:
            m = [str(worker) for worker in history.workers].index(name)
            known = rng.permutation(np.flatnonzero(~np.isnan(scores_qm[:, m])))
            gone = np.setdiff1d(np.arange(len(scores_qm)), known[:count])
            scores_qm[gone, m] = usd_qm[gone, m] = np.nan
            runs_qm[gone, m] = 0
            if samples is not None:
                samples.credit_qms[gone, m] = np.nan
                samples.answers_qms[gone, m] = -1
        return replace(
            history,
            scores_qm=scores_qm,
            usd_qm=usd_qm,
            runs_qm=runs_qm,
            answers=None,
            samples=samples,
        )


def _split_names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


SplitKind = Literal["random", "unseen", "all"]
"""The measured questions: random ones, whole task families, or all, so that none are known."""

_SPLITS: Mapping[str, Callable[[RecordedOutcomes, int], QuestionSplit]] = {
    "random": random_split,
    "unseen": unseen_family_split,
}


def available_sets() -> tuple[str, ...]:
    """Return the packaged records, and the recorded sets whose files are in the data folder."""
    folder = benchmark_folder() / "recorded"
    present = (
        name
        for name in RECORDED_NAMES
        if (folder / RECORDED_SETS[name.partition("/")[0]].folder / "outcomes.parquet").is_file()
    )
    return (*PACKAGED_RECORDS, *present)


def open_recorded_parts(
    name: str,
    split: SplitKind,
    seeds: Sequence[int],
    *,
    models: Sequence[str] = (),
    limit: int | None = None,
    simulate: bool = False,
    conductor: Conductor | None = None,
    change: PoolChange | None = None,
) -> tuple[EvalPart, ...]:
    """Open a recorded set and divide it as `make_record_parts` does.

    The name is one of `RECORDED_NAMES`, a packaged record, or the path of an outcomes file.
    `models` are the models to use; empty for all. `limit` is the maximum number of measured
    questions of each part. With `simulate`, a call that is not recorded gets one of the model's
    recorded answers. `conductor` is that of the system `ultra`; None: there is none. `change` has
    the workers that leave and join after the outcomes were gathered.

    Raises:
        ConfigError: there is no such set, or `change` does not fit its workers.
        SourceError: the set's files are missing, or it has no such model or too few families or
            questions.
    """
    own = find_outcomes_file(name)
    if name not in RECORDED_NAMES and own is None:
        known = suggest_names(name, (*RECORDED_NAMES, *PACKAGED_RECORDS, "FILE.jsonl"))
        raise ConfigError(f"there is no recorded set {name!r}; {known}")
    record = load_recorded(name, with_texts=own is not None, models=models)
    return make_record_parts(
        record,
        split,
        seeds,
        limit=limit,
        simulate=simulate,
        conductor=conductor,
        change=change,
    )


def make_record_parts(
    record: RecordedOutcomes,
    split: SplitKind,
    seeds: Sequence[int],
    *,
    limit: int | None = None,
    simulate: bool = False,
    conductor: Conductor | None = None,
    change: PoolChange | None = None,
) -> tuple[EvalPart, ...]:
    """Return a part for each seed: test questions are measured; outcomes on all others are known.

    With the split `all`, every question is a test question. The arguments are those of
    `open_recorded_parts`. A reply without a loaded text consists of its extracted answer, if known.

    Raises:
        ConfigError: `change` does not fit the record's workers.
        SourceError: there are too few families to hold out whole ones, or too few questions.
    """
    replays = ReplayPool(record, simulate=simulate)
    groups = dict(zip((task.id for task in record.tasks), record.families, strict=True))

    async def grade(task: Task, answer: str) -> Grade:
        return record.grade(task, answer)

    def part(seed: int) -> EvalPart:
        pool, history, indices = _divide_record(record, split, seed)
        if change and history is not None:
            pool, history = change.apply(pool, history, seed)
        subject = Subject(
            pool=pool,
            clients={},
            conductor=conductor,
            replay_pool=replays,
            answer_cache=AnswerCache(),
        )
        if limit is not None and limit < len(indices):
            indices = sorted(Random(f"{seed} {record.name}").sample(indices, limit))
        asked = tuple(record.tasks[index] for index in indices)
        tasks = TaskSet(
            name=f"{RECORDED_PREFIX}{record.name}{change or ''}",
            tasks=asked,
            calibration=(),
            grade=grade,
            family=lambda t: groups[t.id],
            split=split,
        )
        return EvalPart(subject=subject, tasks=tasks, seeds=(seed,), history=history)

    parts = tuple(part(seed) for seed in seeds)
    if not any(one.tasks.tasks for one in parts):
        raise _too_few_questions(record, "held out to be measured")
    return parts


def _too_few_questions(record: RecordedOutcomes, where: str) -> SourceError:
    return SourceError(
        f"none of the {len(record.tasks)} questions of {record.name} is {where}: use a record with "
        "more questions, or --split all"
    )


def _divide_record(
    record: RecordedOutcomes, split: SplitKind, seed: int
) -> tuple[Pool, History | None, list[int]]:
    """Return the workers, their known outcomes, and the indices of the measured questions.

    Raises:
        SourceError: there are too few families or questions.
    """
    if split == "all":
        return record.pool(), None, list(range(len(record.tasks)))
    division = _SPLITS[split](record, seed)
    known = np.sort(np.concatenate([division.train, division.calibration]))
    if not known.size:
        raise _too_few_questions(record, "left to learn from")
    history = history_from_record(record, known)
    return record.pool(calibration=known), history, division.test.tolist()
