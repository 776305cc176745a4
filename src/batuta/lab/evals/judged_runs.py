"""Served runs that were judged, as questions to learn from.

GRPO compares new workflows for the same question, so a question is useful only if the answer of
*any* workflow can be graded: the question needs a target, its correct answer. The first of these
rules that applies to a judged run gives the target:

1. The run's comment has a short line `Expected: ANSWER`: ANSWER is the target, whatever the score.
2. The question comes from a simulated world, such as the rehearsal: the target is computed.
3. The score is (nearly) 1 and the answer is short enough to be compared: the answer is the target.

A run that has only a score is left out and counted, because the score does not grade the answer of
another workflow. The run's own workflow would be an off-policy sample that cannot be weighted:
another policy wrote it for another pool, and no other sample of its question is known. Runs whose
question is more than a text (several turns, images, tools, a required format) are left out and
counted too, as are runs whose content is not stored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path

from batuta.core import Run, Task, TaskId
from batuta.errors import ConfigError
from batuta.lab.evals.grading import is_integer
from batuta.lab.task_sources import TASK_SOURCES
from batuta.language.judged_answers import (
    find_confirmed_answer,
    find_expected_answer,
    is_plain_text,
)
from batuta.store import RunSummary, Store

SERVED = "served"
"""The tag of tasks that come from served runs."""


class TargetSource(StrEnum):
    """The source of a judged run's target, or the reason why there is none."""

    EXPECTED = "expected"
    """The run's comment has the correct answer."""
    COMPUTED = "computed"
    """The correct answer can be computed."""
    SCORED = "scored"
    """The run's own answer is correct."""
    UNCHECKED = "unchecked"
    """There is only a score, and nothing to compare another answer with."""
    UNFIT = "unfit"
    """The question is more than a text."""
    UNKEPT = "unkept"
    """The content was not stored."""


_WITH_TARGET = (TargetSource.EXPECTED, TargetSource.COMPUTED, TargetSource.SCORED)
"""The sources that give a target, the most reliable first."""


@dataclass(frozen=True, slots=True)
class JudgedRuns:
    """The questions with targets from the judged runs of a store."""

    tasks: tuple[Task, ...]
    """A task for each question, from its most reliable run; the newest of equally reliable runs."""
    runs: Counter[TargetSource]
    """The number of judged runs by source."""

    def __str__(self) -> str:
        """Return the number of questions, and the runs left out by reason, as text."""
        reasons = (
            (TargetSource.UNCHECKED, "with a score but no answer to compare others with"),
            (TargetSource.UNFIT, "whose question is more than a text"),
            (TargetSource.UNKEPT, "whose content was not stored"),
        )
        left = [f"{self.runs[source]} {why}" for source, why in reasons if self.runs[source]]
        out = f"; left out: {', '.join(left)}" if left else ""
        judged = sum(self.runs.values())
        return f"{len(self.tasks)} questions of {judged} judged runs can be learned from{out}"


async def read_judged_runs(target: str) -> JudgedRuns:
    """Read the questions with targets from the judged runs of a store.

    `target` is the store's file or URL.

    Raises:
        ConfigError: there is no such store, or it has no such questions.
        StoreError: the store cannot be read.
    """
    if "://" not in target and not Path(target).exists():
        raise ConfigError(f"there are no runs at {target}; name the store that the server used")
    runs: Counter[TargetSource] = Counter()
    best: dict[TaskId, tuple[int, Task]] = {}
    async with Store.open(target) as store:
        async for summary in store.read_all():
            if summary.score is None and not find_expected_answer(summary.score_comment):
                continue
            source, task = _find_target(await store.get(summary.id), summary)
            runs[source] += 1
            if task is None:
                continue
            rank = _WITH_TARGET.index(source)
            if task.id not in best or rank < best[task.id][0]:
                best[task.id] = (rank, task)
    found = JudgedRuns(tuple(task for _, task in best.values()), runs)
    if not found.tasks:
        note = str(found) if runs else f"no run in {target} was judged"
        raise ConfigError(
            f"{note}; score short answers, or give the correct answer in the comment "
            "(Expected: …), with POST /v1/runs/ID/feedback"
        )
    return found


async def read_judged_tasks(target: str) -> list[Task]:
    """Read the tasks of `read_judged_runs`.

    Raises:
        ConfigError: there is no such store, or it has no such questions.
        StoreError: the store cannot be read.
    """
    return list((await read_judged_runs(target)).tasks)


def _find_target(run: Run | None, summary: RunSummary) -> tuple[TargetSource, Task | None]:
    """Return the source of a judged run's target, and the task if there is one."""
    if run is None:
        return TargetSource.UNKEPT, None
    question = run.header.question
    if not is_plain_text(question):
        return TargetSource.UNFIT, None
    if expected := find_expected_answer(summary.score_comment):
        return TargetSource.EXPECTED, _make_task(question.text, expected)
    if computed := _computed_task(question.text):
        return TargetSource.COMPUTED, computed
    if own := find_confirmed_answer(run.answer, summary.score):
        return TargetSource.SCORED, _make_task(question.text, own)
    return TargetSource.UNCHECKED, None


def _make_task(text: str, target: str) -> Task:
    """Return the question as a task with its correct answer."""
    grader = "integer" if is_integer(target) else "exact"
    return Task(id=_task_id(text), question=text, target=target, grader=grader, tags=(SERVED,))


def _computed_task(text: str) -> Task | None:
    """Return the question as a task with its computed answer; None if no world can solve it."""
    for load in TASK_SOURCES.values():
        if task := load().solve_question(text, _task_id(text)):
            return replace(task, tags=(*task.tags, SERVED))
    return None


def _task_id(text: str) -> TaskId:
    return TaskId(f"served-{blake2b(text.encode('utf-8', 'replace'), digest_size=8).hexdigest()}")
