"""Opens a tuning run from a pool, questions and a folder, and forecasts its calls and cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from batuta.clients.cache import CallCacheClient, warn_if_emptied
from batuta.clients.cache_shared import open_call_journal
from batuta.conductors.workflow_selector.model import fit_reader
from batuta.core import Client, Pool, Price, Task, TaskId, WorkerId
from batuta.core.formatting import join_words
from batuta.distribution import install_hint
from batuta.errors import ConfigError, SourceError, report_unwritable
from batuta.lab.evals.grading import AnswerGrader, open_answer_grader
from batuta.lab.evals.judged_runs import SERVED, JudgedRuns
from batuta.lab.evals.task_sets import open_tasks, task_family
from batuta.lab.executor import LocalExecutor, open_executor
from batuta.lab.executor.select import LOCAL
from batuta.lab.task_sources import TASK_SOURCES
from batuta.lab.tasks import datasets
from batuta.lab.tasks.datasets import reasoning_gym
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner, open_judge
from batuta.lab.tune.context import TuneSettings
from batuta.lab.tune.parts import QuestionParts
from batuta.lab.tune.remote_runs import RemoteRuns, TuneRunJob
from batuta.lab.tune.spending import BudgetedClient, PaidCalls, TuneBudget, bound_pool_costs
from batuta.lab.tune.stages import plannable_usd, stage_ends

CALLS, PAID, PLAN, LOCK = "calls.db", "paid.db", "plan.json", "tune.lock"
"""Names of the files in a tuning run's folder."""
GENERAL = (
    "chain_sum", "basic_arithmetic", "gcd", "number_sequence", "simple_equations",
    "calendar_arithmetic", "word_sorting", "letter_counting", "syllogism",
    "family_relationships", "propositional_logic", "base_conversion",
)  # fmt: skip
"""The families of Reasoning Gym that are used if the user names no questions."""
_EACH = 50
"""Maximum number of questions of each family."""
_TYPICAL_OUTPUT = 400
"""The assumed number of tokens of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneQuestions:
    """The questions of a tuning run, with their name, grader and families."""

    name: str
    tasks: tuple[Task, ...]
    grade: AnswerGrader | None
    """The grader of all questions; None if each task names its own grader."""
    family: Callable[[Task], str] = task_family


def open_questions(name: str | None, limit: int, seed: int) -> TuneQuestions:
    """Return at most `limit` questions of that name.

    The name is a file, a benchmark or a simulated world; None is a general mix that Reasoning Gym
    generates.

    Raises:
        SourceError: there are no such questions, they cannot be used, or Reasoning Gym is missing.
        ConfigError: the world has no such family.
    """
    if name is None:
        if not reasoning_gym.is_installed():
            raise SourceError(
                "name your questions with --tasks FILE.jsonl, or install Reasoning Gym, which "
                f"generates general questions: {install_hint('reasoning-gym')}"
            )
        known = [one for one in GENERAL if one in reasoning_gym.generator_names()]
        each = max(min(_EACH, limit // len(GENERAL)), 1)
        tasks = [task for one in known for task in reasoning_gym.generate_tasks(one, each, seed)]
        kept = tuple(tasks[:limit])
        return TuneQuestions(
            name="a general mix", tasks=kept, grade=None, family=lambda task: task.tags[1]
        )
    if name.partition(":")[0] in TASK_SOURCES:
        found = open_tasks(name, 1, limit, seed)
        return TuneQuestions(name=name, tasks=found.calibration, grade=found.grade)
    if ".jsonl" in Path(name).suffixes:
        tasks = datasets.load_tasks(name, seed=seed)[:limit]
        return TuneQuestions(name=Path(name).name, tasks=tasks, grade=None)
    found = open_tasks(name, limit, 0, seed)
    return TuneQuestions(name=name, tasks=found.tasks, grade=None, family=found.family)


def add_served_questions(questions: TuneQuestions | None, found: JudgedRuns) -> TuneQuestions:
    """Add the questions of judged runs, unless `questions` has them already.

    If the questions come from a simulated world, only questions with computed answers are added.
    Without `questions`, the result has only the judged runs' questions and may be empty.
    """
    if questions is None:
        return TuneQuestions(name="judged runs", tasks=found.tasks, grade=None)
    present = {task.question.strip() for task in questions.tasks}
    added = tuple(
        task
        for task in found.tasks
        if task.question.strip() not in present
        and (questions.grade is None or task.tags[0] != SERVED)
    )
    kinds = _guess_families(questions, added)

    def find_family(task: Task) -> str:
        return kinds.get(task.id) or questions.family(task)

    return replace(
        questions,
        name=f"{questions.name} and {len(added)} served",
        tasks=(*added, *questions.tasks),
        family=find_family,
    )


def _guess_families(questions: TuneQuestions, added: Sequence[Task]) -> dict[TaskId, str]:
    """Predict the family of each added question from its words; return it by the question's id."""
    families = sorted({questions.family(task) for task in questions.tasks})
    code = {family: number for number, family in enumerate(families)}
    label_n = np.array([code[questions.family(task)] for task in questions.tasks], np.intp)
    if not added:
        return {}
    reader = fit_reader([task.question for task in questions.tasks], label_n)
    group_n, _, _ = reader([task.question for task in added])
    return {task.id: families[int(at)] for task, at in zip(added, group_n, strict=True)}


def is_labelled(questions: TuneQuestions) -> bool:
    """Return whether the families can be the groups.

    There must be several families, and the smallest must have at least a quarter of the mean size.
    """
    count = Counter(questions.family(task) for task in questions.tasks)
    return len(count) > 1 and min(count.values()) * len(count) * 4 >= len(questions.tasks)


@asynccontextmanager
async def open_runner(
    pool: Pool,
    clients: Mapping[WorkerId, Client],
    questions: TuneQuestions,
    settings: TuneSettings,
    folder: Path,
    *,
    judge: WorkerId | None = None,
    sandbox: str = "auto",
    concurrency: int = 32,
    executor: str = LOCAL,
    processes: int | None = None,
    journal: str | None = None,
) -> AsyncGenerator[tuple[CandidateRunner, TuneBudget]]:
    """Open a runner and its budget; calls already paid for in the folder are reused.

    This process makes and pays all calls, even if runs are executed elsewhere. `judge` grades
    answers that no rule decides; None leaves them undecided. `journal` is another file, or the URL
    of a PostgreSQL database, for the calls. Calls that other tuning runs wrote there are free, in a
    database only if the runs' folders have the same name. `executor`, `processes` and `sandbox` are
    as in `open_executor` and `Sandbox.open`. `concurrency` is the maximum number of runs at once.

    Raises:
        ConfigError: a grader or the journal lacks what it needs, the folder holds a different
            tuning run, or the executor cannot be opened.
        SandboxError: programs cannot be isolated here.
        StoreError: the folder or the journal cannot be read or written, or another process tunes
            in the folder.
        SourceError: a question is private, so it must not be written to the folder, or it does not
            fit its grader.
    """
    if any(task.private for task in questions.tasks):
        raise SourceError(
            "private questions cannot be used for tuning, which writes every call to its folder: "
            "leave them out"
        )
    keep_plan(folder, describe_plan(pool, questions, settings))
    unknown = settings.allowance.unknown
    path = journal or str(folder / CALLS)
    warn_if_emptied(path, folder / PAID)
    async with open_call_journal(path, folder.absolute().name) as calls:
        with _lock_folder(folder), PaidCalls(folder / PAID) as paid:
            budget = TuneBudget(settings.allowance, paid)
            wrapped: dict[WorkerId, Client] = {
                worker.id: CallCacheClient(
                    BudgetedClient(clients[worker.id], worker, budget), calls, worker.id
                )
                for worker in pool
            }
            meter = CallMeter(unknown)
            judging = open_judge(judge, pool, wrapped, meter, seed=settings.seed)
            async with (
                open_answer_grader(questions.tasks, judging, sandbox)
                if questions.grade is None
                else nullcontext(questions.grade) as grade
            ):
                runner = CandidateRunner(
                    pool,
                    wrapped,
                    grade,
                    meter,
                    unknown=unknown,
                    concurrency=concurrency,
                    seed=settings.seed,
                    grades_steps=judge is None,
                )
                async with open_executor(executor, processes) as opened:
                    if not isinstance(opened, LocalExecutor):
                        job = _describe_job(runner, questions, settings, judge, sandbox=sandbox)
                        runner.elsewhere = RemoteRuns(opened, job, wrapped, meter)
                    yield runner, budget


@contextmanager
def _lock_folder(folder: Path) -> Generator[None]:
    """Lock the folder for one tuning run: two at once would each spend the whole budget."""
    from batuta.store.process_lock import ProcessLock  # noqa: PLC0415 - loads SQLAlchemy

    lock = ProcessLock(
        folder / LOCK,
        f"another tuning writes to {folder}: wait for it, or name another folder with --out",
    )
    try:
        yield
    finally:
        lock.release()


def _describe_job(
    runner: CandidateRunner,
    questions: TuneQuestions,
    settings: TuneSettings,
    judge: WorkerId | None,
    *,
    sandbox: str,
) -> TuneRunJob:
    kinds = {} if questions.grade else {task.grader: task for task in questions.tasks}
    return TuneRunJob(
        pool=runner.pool,
        ranked=runner.ranked,
        unknown=settings.allowance.unknown,
        seed=settings.seed,
        grades_steps=judge is None,
        kinds=tuple(kinds.values()),
        grade=questions.grade,
        judge=judge,
        sandbox=sandbox,
    )


def describe_plan(pool: Pool, questions: TuneQuestions, settings: TuneSettings) -> dict[str, Any]:
    """Return the identity of a folder's tuning run, without the budget, which may be raised."""
    asked = blake2b(digest_size=16)
    for task in questions.tasks:
        asked.update(repr((task, questions.family(task))).encode("utf-8", "replace"))
    return {
        "questions": asked.hexdigest(),
        "workers": [[worker.id, worker.model] for worker in pool],
        "seed": settings.seed,
    }


def keep_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the plan to the folder, or check that the folder has the same plan.

    Raises:
        ConfigError: the folder holds a different tuning run.
        StoreError: the folder cannot be written.
    """
    path = folder / PLAN
    text = orjson.dumps(plan, option=orjson.OPT_INDENT_2)
    with report_unwritable(folder):
        if path.exists():
            if (noted := path.read_bytes()) != text:
                raise ConfigError(_describe_difference(folder, noted, plan))
            return
        folder.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".new")
        written.write_bytes(text)
        written.replace(path)


def _describe_difference(folder: Path, noted: bytes, plan: Mapping[str, Any]) -> str:
    try:
        earlier = orjson.loads(noted)
        changed = [name for name in plan if earlier[name] != plan[name]]
    except (ValueError, KeyError, TypeError):
        return (
            f"{folder / PLAN} is damaged: remove it if the questions, the workers and the seed are "
            "unchanged (paid calls are still reused), or choose another folder with --out"
        )
    others = [f"another {name}" if name == "seed" else f"other {name}" for name in changed]
    what = join_words(others) or "another version"
    return f"{folder} holds a tuning run with {what}: choose another folder with --out"


def forecast_tuning(
    pool: Pool, questions: TuneQuestions, parts: QuestionParts, settings: TuneSettings
) -> dict[str, Any]:
    """Return the expected stages, calls and cost of a tuning run as JSON, without making a call."""
    unknown = settings.allowance.unknown
    bounds = bound_pool_costs(pool, questions.tasks, unknown)
    worst = {str(worker): float(usd) for worker, usd in bounds.items()}
    prices = [worker.price or unknown for worker in pool]
    typical = sum(_typical_usd(price, parts.search) for price in prices) / len(prices)
    calls = settings.allowance.calls
    if settings.allowance.usd is not None and typical:
        usd = plannable_usd(settings.allowance, bounds.values()) or 0
        affordable = int(float(usd) / typical)
        calls = affordable if calls is None else min(calls, affordable)
    families = {questions.family(task) for task in parts.search}
    groups = min(len(families), settings.groups) if settings.labelled else settings.groups
    stages: dict[str, Any] = {}
    before = 0.0
    ends = stage_ends(
        calls or 0,
        judgement=len(parts.judgement),
        rewrites=settings.rewrites,
        last=settings.last,
        samples=settings.sample_calls(parts),
    )
    for stage, until in ends.items():
        share = until - before
        stages[str(stage)] = {
            "calls": None if calls is None else round(share * calls),
            "usd": None if calls is None else round(share * calls * typical, 4),
        }
        before = until
    if again := settings.sample_calls(parts):
        again = again if calls is None else min(again, round((1 - before) * calls))
        stages["samples"] = {"calls": again, "usd": round(again * typical, 4)}
    return {
        "budget": {**asdict(settings.allowance), "unknown": None},
        "questions": parts.counts,
        "groups": groups,
        "labelled": settings.labelled,
        "call_weight": settings.call_weight,
        "mean_calls": settings.mean_calls,
        "stages_at_most": stages,
        "least_calls": groups * len(pool),
        "call_at_most_usd": worst,
        "unpriced": [str(worker.id) for worker in pool if worker.price is None],
    }


def _typical_usd(price: Price, tasks: Sequence[Task]) -> float:
    """Estimate the dollars of a call, with four characters per token and a typical answer."""
    tokens = sum(len(task.question) for task in tasks) / max(len(tasks), 1) / 4
    return float(price.input) * tokens / 1e6 + float(price.output) * _TYPICAL_OUTPUT / 1e6


def start_clock() -> Callable[[], float]:
    """Return a function that returns the minutes since this call."""
    began = time.monotonic()
    return lambda: (time.monotonic() - began) / 60
