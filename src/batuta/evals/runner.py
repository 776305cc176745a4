"""A system plays tasks: as many at a time as are allowed, each result on disk at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from random import Random

import anyio

from batuta.baselines import Players
from batuta.core import (
    Cost,
    Grade,
    Pool,
    Question,
    Reply,
    Run,
    Step,
    StepRun,
    Task,
    WorkerId,
)
from batuta.core.usage import FREE
from batuta.engine.conduct import VERSIONS
from batuta.evals.ledger import Ledger, Played, Result, Unscored
from batuta.evals.marking import Marking
from batuta.evals.outage import outage, unrecorded
from batuta.evals.subject import Subject
from batuta.evals.systems import System
from batuta.rehearsal.heard import understand
from batuta.tasks.graders import Judged, grade_answer
from batuta.tasks.recorded import SIMULATED

INVALID = "invalid"
"""The outcome of a plan that asks a record for what it cannot know."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which terms systems are measured."""

    seeds: tuple[int, ...] = (0,)
    """Each task is run once with each."""
    concurrency: int = 64
    """Runs at the same time at most."""
    sub_pool: int | None = None
    """Each task gets a pool of its own: so many workers, drawn and in a random order."""
    pool_seed: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One run to be played."""

    key: str
    """Digest of everything that the run depends on, but for the models themselves."""
    system: System
    task: Task
    family: str
    seed: int
    pool: Pool
    subject: Subject


def trials(
    system: System,
    tasks: Iterable[tuple[Task, str]],
    subject: Subject,
    terms: Terms,
    learned: str = "",
) -> tuple[Trial, ...]:
    """Every run of the system; none where a worker's own line lacks its worker.

    Args:
        system: what is measured.
        tasks: each with its family.
        subject: who plays.
        terms: seeds and sub-pools.
        learned: digest of what the system learned from.
    """
    method = repr((system.name, system.solver.name, VERSIONS, learned)) + subject.about
    everyone = _digest(method + repr(subject.pool))
    found: list[Trial] = []
    for task, family in tasks:
        pool = pool_of(task, subject.pool, terms)
        if system.worker is not None and system.worker not in pool:
            continue
        about = everyone.copy() if pool is subject.pool else _digest(method + repr(pool))
        about.update(_described(task))
        found += (
            Trial(_key(about, seed), system, task, family, seed, pool, subject)
            for seed in terms.seeds
        )
    return tuple(found)


def _digest(about: str) -> blake2b:
    return blake2b(about.encode("utf-8", "replace"), digest_size=16)


@lru_cache(maxsize=2**14)
def _described(task: Task) -> bytes:
    """The task as every system's keys have it."""
    return repr(task).encode("utf-8", "replace")


def _key(about: blake2b, seed: int) -> str:
    whole = about.copy()
    whole.update(f" {seed}".encode())
    return whole.hexdigest()


def pool_of(task: Task, pool: Pool, terms: Terms) -> Pool:
    """The pool that the task is played with; drawn by the task and the seed alone."""
    if terms.sub_pool is None:
        return pool
    rng = Random(f"{terms.pool_seed} {task.id}")
    drawn = rng.sample([worker.id for worker in pool], terms.sub_pool)
    return pool.subset(drawn).shuffled(rng)


async def play_all(
    planned: Sequence[Trial],
    grade: Marking,
    ledger: Ledger,
    concurrency: int,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Result, ...]:
    """The results of all trials; those that the ledger has are not played again.

    Args:
        planned: what to play.
        grade: the tasks' grader.
        ledger: where every result is written as soon as it is there.
        concurrency: runs at the same time at most.
        tell: called once for every result, with its system's name.

    Raises:
        ExceptionGroup: of the StoreError, where a result could not be written.
    """
    missing: list[Trial] = []
    for trial in planned:
        if ledger.done(trial.key):
            tell(trial.system.name)
        else:
            missing.append(trial)
    waiting = iter(missing)

    async def work() -> None:
        for trial in waiting:
            ledger.add(await _played(trial, grade))
            tell(trial.system.name)

    async with anyio.create_task_group() as group:
        for _ in range(min(concurrency, len(missing))):
            group.start_soon(work)
    return tuple(ledger[trial.key] for trial in planned)


async def _played(trial: Trial, grade: Marking) -> Result:
    """One run from its question to its grade."""
    question = Question.of(trial.task.question)
    subject = trial.subject
    players = Players(trial.pool, subject.deal(), subject.limits, chorus=subject.chorus)
    run = await trial.system.solver.answer(question, players, _seed(trial))
    lost = outage(run)
    if lost is not None:
        return _result(trial, run, Grade(None, None, lost), "outage")
    best, paid = await _graded(trial, run, grade)
    return _result(trial, run, best, "undecided" if best.score is None else None, paid)


def _seed(trial: Trial) -> int:
    """A seed of the run's own, so that two questions do not share their chances."""
    digest = blake2b(f"{trial.task.id} {trial.seed}".encode("utf-8", "replace"), digest_size=4)
    return int.from_bytes(digest.digest(), "big") >> 1


async def _graded(trial: Trial, run: Run, grade: Marking) -> tuple[Grade, Cost]:
    """The grade of the run's answer, or of all that was said on a line; what judging cost."""
    line = trial.system.line
    if line is not None:
        replies = _own_replies(run)
        graded = [(who, await grade_answer(grade, trial.task, text)) for who, text in replies]
        scored = [(who, g.score) for who, g in graded if g.score is not None]
        paid = sum((_cost(g) for _, g in graded), FREE)
        said = "no answer" if not graded else f"{len(scored)} replies"
        lost = bool(graded) and not scored
        return Grade(None if lost else line(scored), None, said), paid
    if (missing := unrecorded(run)) is not None:
        return Grade(0.0, None, missing), FREE
    if run.answer is None:
        return Grade(0.0, None, run.error or "no answer"), FREE
    found = await grade_answer(grade, trial.task, run.answer)
    return found, _cost(found)


def _cost(grade: Grade) -> Cost:
    return grade.cost if isinstance(grade, Judged) else FREE


def _own_replies(run: Run) -> Iterator[tuple[WorkerId, str]]:
    """What the workers said that were asked, not their substitutes."""
    for step in run.steps:
        if step.worker == step.planned and isinstance(step.result, Reply):
            yield step.worker, step.result.text


def _result(
    trial: Trial, run: Run, grade: Grade, unscored: Unscored | None, judging: Cost = FREE
) -> Result:
    task, usage, cost = trial.task, run.usage, run.cost + judging
    recorded = trial.subject.deck is not None
    rounds = [(played.workflow, played.steps) for played in run.rounds if played.workflow]
    return Result(
        key=trial.key,
        system=trial.system.name,
        task=task.id,
        family=trial.family,
        difficulty=task.difficulty,
        seed=trial.seed,
        score=grade.score,
        unscored=unscored,
        reason="" if task.private else grade.reason,
        outcome=INVALID if recorded and unrecorded(run) else run.outcome.value,
        answer=None if task.private else grade.extracted,
        tokens=None if recorded and usage.estimated else usage.total,
        conductor_tokens=run.conductor_usage.total,
        usd=_known(cost),
        calls=usage.calls,
        rounds=len(rounds),
        depth=sum(flow.depth for flow, _ in rounds),
        steps=tuple(_counted(flow.steps[step.index], step) for flow, ran in rounds for step in ran),
        failed=sum(_failed(step) for step in run.steps),
        seconds=None if recorded else run.seconds,
        simulated=sum(_simulated(step) for step in run.steps),
        judge_usd=_known(judging),
    )


def _known(cost: Cost) -> Decimal | None:
    return None if cost.unpriced_calls else cost.usd


def _counted(planned: Step, played: StepRun) -> Played:
    return Played(played.worker, understand(planned.subtask).value)


def _failed(step: StepRun) -> bool:
    return not isinstance(step.result, Reply) or step.worker != step.planned


def _simulated(step: StepRun) -> bool:
    return isinstance(step.result, Reply) and step.result.model.startswith(SIMULATED)
