"""Runs a system on tasks concurrently, and writes each result to disk as soon as it is known."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache, partial
from hashlib import blake2b
from random import Random
from traceback import extract_tb
from typing import cast

from batuta.clients.cache import count_replays
from batuta.core import (
    Cost,
    Failure,
    Grade,
    Outcome,
    Pool,
    Question,
    Reply,
    Run,
    Step,
    StepRun,
    Task,
    WorkerId,
)
from batuta.engine.run_loop import VERSIONS
from batuta.errors import BatutaError, ConfigError
from batuta.lab.baselines import SolverContext
from batuta.lab.evals.grading import AnswerGrader
from batuta.lab.evals.outage import (
    find_outage,
    find_step_outage,
    is_judge_outage,
    unrecorded_reason,
)
from batuta.lab.evals.result_log import ResultLog, StepSummary, TrialResult, UnscoredReason
from batuta.lab.evals.run_archive import MAX_EXPECTED, MeasuredRun, RunArchive, run_id_of
from batuta.lab.evals.served_solver import ServedSolver
from batuta.lab.evals.subject import Subject
from batuta.lab.evals.systems import CALIBRATION, System, is_own_system
from batuta.lab.executor import LocalExecutor
from batuta.lab.tasks.graders import JudgeGrade, grade_answer
from batuta.lab.tasks.graders.registry import describe_error
from batuta.lab.tasks.recorded import SIMULATED_PREFIX
from batuta.language.instructions import classify_instruction
from batuta.usage import ZERO_COST

INVALID_PLAN = "invalid"
"""The outcome of a plan that needs a reply that the record does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """The options of an evaluation's runs."""

    seeds: tuple[int, ...] = (0,)
    """Each task is run once with each seed."""
    concurrency: int = 64
    """Maximum number of concurrent runs."""
    sub_pool: int | None = None
    """The size of the random sub-pool, in random order, of each task; None for the whole pool."""
    pool_seed: int = 0
    """The seed of the random sub-pools."""
    trial_runner: TrialRunner | None = None
    """Runs the trials; None runs them in this process."""
    archive: RunArchive | None = None
    """Stores whole runs; None stores only results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTrial:
    """One run to be executed: a system on a task with a seed."""

    key: str
    """The digest of all that the run depends on, except models' weights, which are not known."""
    system: System
    task: Task
    family: str
    seed: int
    pool: Pool
    """The subject's pool, or the task's sub-pool."""
    subject: Subject


def plan_trials(
    system: System,
    tasks: Iterable[tuple[Task, str]],
    subject: Subject,
    options: EvalOptions,
    *,
    history_digest: str = "",
) -> tuple[EvalTrial, ...]:
    """Plan the runs of the system on these tasks, each with its family, with every seed.

    A task is left out if its sub-pool has no worker that the system can use. `history_digest` is
    the digest of the outcomes that the system is fitted to, if any.
    """
    method = (
        repr((system.name, system.solver.name, VERSIONS, history_digest))
        + subject.key_text
        + system.terms
    )
    if system.has_conductor:
        method += subject.drafting_key(system.drafter)
    whole_pool = _start_digest(method + repr(subject.pool))
    found: list[EvalTrial] = []
    for task, family in tasks:
        pool = trial_pool(task, subject.pool, options)
        if not system.has_workers_in(pool):
            continue
        about = whole_pool.copy() if pool is subject.pool else _start_digest(method + repr(pool))
        about.update(_task_bytes(task))
        found += (
            EvalTrial(
                key=_trial_key(about, seed),
                system=system,
                task=task,
                family=family,
                seed=seed,
                pool=pool,
                subject=subject,
            )
            for seed in options.seeds
        )
    return tuple(found)


def _start_digest(about: str) -> blake2b:
    return blake2b(about.encode("utf-8", "replace"), digest_size=16)


@lru_cache(maxsize=2**14)
def _task_bytes(task: Task) -> bytes:
    """Return the task as bytes for the keys of runs."""
    return repr(task).encode("utf-8", "replace")


def _trial_key(about: blake2b, seed: int) -> str:
    whole = about.copy()
    whole.update(f" {seed}".encode())
    return whole.hexdigest()


def trial_pool(task: Task, pool: Pool, options: EvalOptions) -> Pool:
    """Return the pool for the task; a random sub-pool depends on the task and the pool's seed."""
    if options.sub_pool is None:
        return pool
    rng = Random(f"{options.pool_seed} {task.id}")
    drawn = rng.sample([worker.id for worker in pool], options.sub_pool)
    return pool.subset(drawn).shuffled(rng)


async def run_trials(
    planned: Sequence[EvalTrial],
    grade: AnswerGrader,
    result_log: ResultLog,
    options: EvalOptions,
    *,
    on_result: Callable[[str], None] = lambda _: None,
) -> tuple[TrialResult, ...]:
    """Run the trials that are not done yet, and return the results of all trials.

    A trial that the budget does not allow has no result. Each new result is written to the result
    log immediately; `on_result` is called for every result with the name of its system.

    Raises:
        ExceptionGroup: a trial failed or a result could not be written; it has the first error.
        StoreError: a run could not be archived.
    """
    missing: list[EvalTrial] = []
    for trial in planned:
        if result_log.is_done(trial.key):
            on_result(trial.system.name)
        else:
            missing.append(trial)

    def deliver(measured: MeasuredRun | None) -> None:
        if measured is None:  # the budget is spent
            return
        result = measured.result
        if options.archive is not None and measured.run is not None:
            result = replace(result, run=str(measured.run.header.id))
            options.archive.put(measured)
        result_log.add(result)
        on_result(result.system)

    await (options.trial_runner or run_here)(missing, grade, deliver, options.concurrency)
    if options.archive is not None:
        await options.archive.flush()
    return tuple(result_log[trial.key] for trial in planned if trial.key in result_log)


TrialListener = Callable[[MeasuredRun | None], None]
"""Called in this process with each result as soon as it is known, and with None for each run that
the budget does not allow."""
TrialRunner = Callable[[Sequence[EvalTrial], AnswerGrader, TrialListener, int], Awaitable[None]]
"""Runs trials, in this process or elsewhere. The last argument is the maximum number of concurrent
runs. If a trial fails, an ExceptionGroup with its error is raised."""


@dataclass(frozen=True, slots=True)
class _TrialJob:
    """The local executor's job: runs each trial on its subject."""

    grade: AnswerGrader

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Callable[[EvalTrial], Awaitable[MeasuredRun | None]]]:
        """Yield a function that runs a trial."""
        yield lambda trial: run_trial(trial, self.grade)


async def run_here(
    trials: Sequence[EvalTrial], grade: AnswerGrader, deliver: TrialListener, concurrency: int
) -> None:
    """Run trials in this process, as a `TrialRunner`."""
    await LocalExecutor().run_all(
        _TrialJob(grade), trials, lambda _, result: deliver(result), concurrency=concurrency
    )


async def run_trial(trial: EvalTrial, grade: AnswerGrader) -> MeasuredRun | None:
    """Run and grade one trial; return None if the budget does not allow all of its calls."""
    limit = trial.subject.call_limit
    if limit is not None and limit.is_spent:
        return None
    run, result = await _measure_run(trial, grade)
    is_incomplete = run.outcome is Outcome.LIMITED or any(
        isinstance(step.result, Failure) for step in run.steps
    )
    if limit is not None and limit.is_spent and (is_incomplete or result.score is None):
        return None
    if trial.task.private or trial.subject.replay_pool or trial.system.name.startswith(CALIBRATION):
        return MeasuredRun(result)
    # A run that ended in an outage keeps its own id, because its trial is run again.
    own = run.header.id if result.unscored == "outage" else run_id_of(trial.key)
    header = replace(run.header, id=own, model=trial.system.name, pool=trial.pool)
    return MeasuredRun(result, replace(run, header=header), _short_target(trial.task))


def _short_target(task: Task) -> str:
    """Return the correct answer if it is short and in one line, else ""."""
    target = str(task.target)
    return target if len(target) <= MAX_EXPECTED and "\n" not in target else ""


async def _measure_run(trial: EvalTrial, grade: AnswerGrader) -> tuple[Run, TrialResult]:
    question = Question.of(trial.task.question)
    solver_context = replace(trial.subject.solver_context(), pool=trial.pool)
    with count_replays() as replays:
        run = await _answer_question(trial, question, solver_context)
    make_result = partial(_make_result, trial, run, is_timed=not replays.replies)
    lost = find_outage(run, is_served=isinstance(trial.system.solver, ServedSolver))
    if lost is not None:
        return run, make_result(Grade(None, None, lost), "outage")
    best, paid = await _grade_run(trial, run, grade)
    unscored = None
    if best.score is None:
        unscored = "outage" if is_judge_outage(best) else "undecided"
    return run, make_result(best, unscored, judging=paid)


async def _answer_question(trial: EvalTrial, question: Question, context: SolverContext) -> Run:
    """Return the run of the trial's system.

    Raises:
        ConfigError: a system of the user's own raises an error, or returns something else.
    """
    system = trial.system
    try:
        run = await system.solver.answer(question, context, _trial_seed(trial))
    except (Exception, SystemExit) as error:
        if isinstance(error, BatutaError) or not is_own_system(system.name):
            raise
        at = extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{system.name} failed on the question {trial.task.id}: {describe_error(error)} "
            f"({at.filename}, line {at.lineno})"
        ) from error
    if not isinstance(cast("object", run), Run):
        raise ConfigError(f"{system.name} returns {type(run).__name__} as its answer, not a Run")
    return run


def _trial_seed(trial: EvalTrial) -> int:
    """Return a seed from the task and the trial's seed, so that questions vary independently."""
    digest = blake2b(f"{trial.task.id} {trial.seed}".encode("utf-8", "replace"), digest_size=4)
    return int.from_bytes(digest.digest(), "big") >> 1


async def _grade_run(trial: EvalTrial, run: Run, grade: AnswerGrader) -> tuple[Grade, Cost]:
    """Return the grade of the answer, or of all replies for a reference line, and its cost."""
    line = trial.system.upper_bound
    if line is not None:
        replies = _own_replies(run)
        graded = [(who, await grade_answer(grade, trial.task, text)) for who, text in replies]
        scored = [(who, g.score) for who, g in graded if g.score is not None]
        paid = sum((_judge_cost(g) for _, g in graded), ZERO_COST)
        if failed := [g for _, g in graded if is_judge_outage(g)]:
            return failed[0], paid
        summary = "no answer" if not graded else f"{len(scored)} replies"
        undecided = len(scored) < len(graded)
        return Grade(None if undecided else line(scored), None, summary), paid
    if (missing := unrecorded_reason(run)) is not None:
        return Grade(0.0, None, missing), ZERO_COST
    if run.answer is None:
        return Grade(0.0, None, run.error or "no answer"), ZERO_COST
    found = await grade_answer(grade, trial.task, run.answer)
    return found, _judge_cost(found)


def _judge_cost(grade: Grade) -> Cost:
    return grade.cost if isinstance(grade, JudgeGrade) else ZERO_COST


def _own_replies(run: Run) -> Iterator[tuple[WorkerId, str]]:
    """Yield the replies of the planned workers, without their substitutes."""
    for step in run.steps:
        if step.worker == step.planned and isinstance(step.result, Reply):
            yield step.worker, step.result.text


def _make_result(
    trial: EvalTrial,
    run: Run,
    grade: Grade,
    unscored: UnscoredReason | None,
    *,
    is_timed: bool,
    judging: Cost = ZERO_COST,
) -> TrialResult:
    task, usage, cost = trial.task, run.usage, run.cost + judging
    recorded = trial.subject.replay_pool is not None
    rounds = [(round_.workflow, round_.steps) for round_ in run.rounds if round_.workflow]
    return TrialResult(
        key=trial.key,
        system=trial.system.name,
        task=task.id,
        family=trial.family,
        difficulty=task.difficulty,
        seed=trial.seed,
        score=grade.score,
        unscored=unscored,
        reason="" if task.private else grade.reason,
        outcome=INVALID_PLAN if recorded and unrecorded_reason(run) else run.outcome.value,
        answer=None if task.private else grade.extracted,
        tokens=None if recorded and usage.estimated else usage.total,
        conductor_tokens=run.conductor_usage.total,
        usd=_known_usd(cost),
        calls=usage.calls,
        rounds=len(rounds),
        depth=sum(flow.depth for flow, _ in rounds),
        steps=tuple(
            _summarize_step(flow.steps[step.index], step) for flow, ran in rounds for step in ran
        ),
        failed=sum(_is_failed(step) for step in run.steps),
        seconds=run.seconds if is_timed and not recorded else None,
        simulated=sum(_is_simulated(step) for step in run.steps),
        judge_usd=_known_usd(judging),
        outages=sum(find_step_outage(step) is not None for step in run.steps),
    )


def _known_usd(cost: Cost) -> Decimal | None:
    return None if cost.unpriced_calls else cost.usd


def _summarize_step(planned: Step, executed: StepRun) -> StepSummary:
    return StepSummary(executed.worker, classify_instruction(planned.subtask).value)


def _is_failed(step: StepRun) -> bool:
    return not isinstance(step.result, Reply) or step.worker != step.planned


def _is_simulated(step: StepRun) -> bool:
    return isinstance(step.result, Reply) and step.result.model.startswith(SIMULATED_PREFIX)
