"""Runs that were served and judged, as questions to learn from.

GRPO compares fresh workflows for the same question, so a question teaches something only if the
answer of *any* workflow to it can be judged: it needs a target. A judged run gives one, by the
first of these that applies:

1. its comment has a line `Expected: ANSWER`, a short one: it is the target, whatever the score;
2. its question is of a simulated world, such as the rehearsal: the answer is computed;
3. its score is full and its answer is short enough to be compared: the answer is the target.

A run with nothing but a score teaches nothing here. The score says how good its own answer was, not
how good another workflow's would be, and its own workflow would be an off-policy sample that cannot
be weighed: written by another policy over the pool of its day, alone in its group, with no baseline
to hold the score against. Such runs are left out, and counted. So are those that cannot be asked
again by their text alone (several turns, pictures, tools, a required form).

What was not to be kept is never read: a request with `store: false` leaves no run, and a run that
was redacted or stored without its content has no text.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path

from batuta.core import Question, Run, Sampling, Task, TaskId
from batuta.errors import ConfigError
from batuta.lab.baselines import find_final_answer
from batuta.lab.evals.grading import is_integer
from batuta.lab.task_sources import TASK_SOURCES
from batuta.store import RunSummary, Store

SERVED = "served"
"""The tag of what came from runs."""
RIGHT_SCORE = 0.99
"""A feedback score from which on an answer counts as right."""
MAX_ANSWER_CHARACTERS = 64
"""Characters of an answer that can be compared with another, at most."""
PAGE_SIZE = 500
_EXPECTED_PATTERN = re.compile(
    r"^[^\S\n]*+expected\s*+[:=]\s*+(\S[^\n]*)", re.IGNORECASE | re.MULTILINE
)


class TargetSource(StrEnum):
    """What a judged run is worth."""

    EXPECTED = "expected"
    """The feedback says the right answer."""
    COMPUTED = "computed"
    """The right answer can be computed."""
    SCORED = "scored"
    """Its own answer is the right one."""
    UNCHECKED = "unchecked"
    """Only a score: nothing that another answer could be compared with."""
    UNFIT = "unfit"
    """Its question is more than a text."""
    UNKEPT = "unkept"
    """What it said was not to be kept."""


_WITH_TARGET = (TargetSource.EXPECTED, TargetSource.COMPUTED, TargetSource.SCORED)
"""Those that give a target, the surest first."""


@dataclass(frozen=True, slots=True)
class JudgedRuns:
    """What the judged runs of a store can teach."""

    tasks: tuple[Task, ...]
    """One for each question, by the surest of its runs; of equal ones by the newest."""
    runs: Counter[TargetSource]
    """Every judged run, by what it is worth."""

    def __str__(self) -> str:
        """How many questions, and how many runs are left out and why."""
        reasons = (
            (TargetSource.UNCHECKED, "with a score and no answer that could be checked"),
            (TargetSource.UNFIT, "that are more than a question's text"),
            (TargetSource.UNKEPT, "whose content is not kept"),
        )
        left = [f"{self.runs[source]} {why}" for source, why in reasons if self.runs[source]]
        out = f"; left out: {', '.join(left)}" if left else ""
        judged = sum(self.runs.values())
        return f"{len(self.tasks)} questions of {judged} judged runs can be learned from{out}"


async def read_judged_runs(target: str) -> JudgedRuns:
    """What can be learned from the runs of a store that were judged.

    Args:
        target: the store, as `batuta runs` takes it.

    Raises:
        ConfigError: nothing can be learned from it.
        StoreError: the store cannot be read.
    """
    if "://" not in target and not Path(target).exists():
        raise ConfigError(f"there are no runs at {target}; name the store that the server used")
    runs: Counter[TargetSource] = Counter()
    best: dict[TaskId, tuple[int, Task]] = {}
    async with Store.open(target) as store:
        for summary in await _list_judged(store):
            source, task = _find_target(await store.get(summary.id), summary)
            runs[source] += 1
            if task is None:
                continue
            rank = _WITH_TARGET.index(source)
            if task.id not in best or rank < best[task.id][0]:
                best[task.id] = (rank, task)
    found = JudgedRuns(tuple(task for _, task in best.values()), runs)
    if not found.tasks:
        said = str(found) if runs else f"no run in {target} was judged"
        raise ConfigError(
            f"{said}; score short answers, or say the right one in the comment "
            "(Expected: …), with POST /v1/runs/ID/feedback"
        )
    return found


async def read_judged_tasks(target: str) -> list[Task]:
    """The questions alone; see `served`.

    Raises:
        ConfigError: nothing can be learned from the store.
        StoreError: the store cannot be read.
    """
    return list((await read_judged_runs(target)).tasks)


async def _list_judged(store: Store) -> list[RunSummary]:
    """Runs with a score or an expected answer, newest first."""
    found: list[RunSummary] = []
    before: str | None = None
    while page := await store.list(PAGE_SIZE, before):
        before = page[-1].cursor
        found += [row for row in page if row.score is not None or _expected_answer(row)]
    return found


def _expected_answer(summary: RunSummary) -> str | None:
    """The answer that the feedback's comment says is right, if it is short enough to compare."""
    said = _EXPECTED_PATTERN.search(summary.score_comment or "")
    answer = said[1].rstrip() if said else ""
    return answer if 0 < len(answer) <= MAX_ANSWER_CHARACTERS else None


def _find_target(run: Run | None, summary: RunSummary) -> tuple[TargetSource, Task | None]:
    """What a judged run teaches: its question with the right answer, if that is known."""
    if run is None:
        return TargetSource.UNKEPT, None
    question = run.header.question
    if not _is_plain_text(question):
        return TargetSource.UNFIT, None
    if expected := _expected_answer(summary):
        return TargetSource.EXPECTED, _make_task(question.text, expected)
    if computed := _computed_task(question.text):
        return TargetSource.COMPUTED, computed
    own = find_final_answer(run.answer or "")
    if own and len(own) <= MAX_ANSWER_CHARACTERS and (summary.score or 0.0) >= RIGHT_SCORE:
        return TargetSource.SCORED, _make_task(question.text, own)
    return TargetSource.UNCHECKED, None


def _is_plain_text(question: Question) -> bool:
    """Whether its text says all of it, so that it can be asked again."""
    return replace(question, sampling=Sampling()) == Question.of(question.text)


def _make_task(text: str, target: str) -> Task:
    """The question with the answer that somebody called right."""
    grader = "integer" if is_integer(target) else "exact"
    return Task(id=_task_id(text), question=text, target=target, grader=grader, tags=(SERVED,))


def _computed_task(text: str) -> Task | None:
    """The question with its computed answer; None: it is of no world whose answers are known."""
    for load in TASK_SOURCES.values():
        if task := load().solve_question(text, _task_id(text)):
            return replace(task, tags=(*task.tags, SERVED))
    return None


def _task_id(text: str) -> TaskId:
    return TaskId(f"served-{blake2b(text.encode('utf-8', 'replace'), digest_size=8).hexdigest()}")
