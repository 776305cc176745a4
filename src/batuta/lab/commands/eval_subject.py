"""Opens what `batuta eval` measures: the pool and the questions, from the command's options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from batuta.config.conductors import open_trained
from batuta.embedded.policy import is_policy
from batuta.environment import read_variable
from batuta.errors import ConfigError
from batuta.lab.commands.eval_options import EvalCommandOptions, RecordSplit
from batuta.lab.commands.eval_output import print_message
from batuta.lab.executor.select import LOCAL
from batuta.lab.task_sources import REHEARSAL, WORLD2, check_simulated_questions
from batuta.lab.tasks import RECORDED_PREFIX

if TYPE_CHECKING:
    from batuta.core import Client, Conductor, Worker
    from batuta.lab.evals import EvalPart, Subject, TaskSet
    from batuta.lab.evals.runner import TrialRunner
    from batuta.lab.evals.setup import SubjectSetup
    from batuta.lab.evals.subject import CallLimit

INSPECT_PREFIX = "inspect:"
"""The prefix of the name of an inspect_ai task."""
DEFAULT_LIMIT = 100
"""Default number of questions, except for a record and a task of inspect_ai."""
PAID_FILE = "paid.db"
"""The file that records the calls paid from the budget."""
SIMULATED_CALIBRATION = 1000
"""Number of calibration questions for simulated workers, whose calls cost nothing."""


def run_inspect(wanted: EvalCommandOptions) -> EvalCommandOptions:
    """Run an inspect_ai task on every system; return options that evaluate the recorded results.

    Raises:
        ConfigError: an option does not apply, inspect_ai is missing, or the task or a system cannot
            be run.
        SourceError: nothing was scored.
        StoreError: a file cannot be written.
    """
    given = {**_budget_options(wanted), **_other_options(wanted)}
    _refuse_options(wanted, given, "inspect_ai asks and grades the questions")
    from batuta.lab.evals.inspect_tasks import InspectRun, run_inspect_task  # noqa: PLC0415 - numpy
    from batuta.lab.evals.setup import SubjectSetup  # noqa: PLC0415 - same

    setup = SubjectSetup(pool=wanted.pool.pool, conductor=wanted.pool.conductor)
    changed, notes = anyio.run(_note_inspected, setup, wanted.output.out)
    if notes:
        print_message(notes)
    run = InspectRun(
        task=wanted.questions.tasks.removeprefix(INSPECT_PREFIX),
        systems=wanted.system_names,
        pool=wanted.pool.pool,
        conductor=wanted.pool.conductor,
        limit=wanted.questions.limit,
        epochs=len(wanted.questions.all_seeds),
        concurrency=wanted.execution.concurrency,
        replaced=changed,
    )
    path = run_inspect_task(run, wanted.output.out)
    return replace(
        wanted,
        questions=replace(
            wanted.questions,
            tasks=f"{RECORDED_PREFIX}{path}",
            split=RecordSplit.ALL,
            limit=None,
            seeds=1,
        ),
        systems=replace(wanted.systems, systems=",".join(wanted.system_names)),
        pool=replace(wanted.pool, pool=None, conductor=None),
    )


async def _note_inspected(setup: SubjectSetup, folder: Path) -> tuple[str, str]:
    """Return the replaced workers as text, for the keys of logs, and a note; empty if none."""
    async with AsyncExitStack() as stack:
        subject, notes = setup.note_pool(await setup.open_subject(stack), folder)
    return repr(sorted(subject.replaced.items())) if subject.replaced else "", notes


async def open_eval_subject(
    wanted: EvalCommandOptions, stack: AsyncExitStack
) -> tuple[tuple[EvalPart, ...], TrialRunner | None]:
    """Return the parts to measure, and the runner of their trials (None: this process).

    Raises:
        ConfigError: an option does not apply, or something that it names does not exist.
        SourceError: there are no such questions, or they cannot be read.
        BatutaError: the journal, the sandbox or the executor cannot be opened.
    """
    from batuta.clients.cache import warn_if_emptied  # noqa: PLC0415 - few need it
    from batuta.lab.evals import EvalPart, open_tasks  # noqa: PLC0415 - loads numpy
    from batuta.lab.evals.setup import SubjectSetup  # noqa: PLC0415 - same

    if wanted.questions.tasks.startswith(RECORDED_PREFIX):
        _refuse_options(wanted, _budget_options(wanted), "nothing is paid for a record")
        return _open_record(wanted), None
    pool, split = wanted.pool, wanted.questions.split
    if pool.leaves or pool.joins or pool.simulate or split is not RecordSplit.RANDOM:
        raise ConfigError(
            "--split, --leaves, --joins and --simulate are for a record: --tasks recorded:SET"
        )
    setup = SubjectSetup(
        pool=wanted.pool.pool or (WORLD2 if wanted.questions.tasks.startswith(WORLD2) else None),
        rehearses=wanted.questions.tasks.startswith(REHEARSAL),
        conductor=wanted.pool.conductor,
        judge=wanted.grading.judge,
        sandbox=wanted.grading.sandbox,
        calibrates=wanted.output.calibrate is not None,
    )
    subject = await _open_subject(wanted, setup, stack)
    limit = wanted.questions.limit or DEFAULT_LIMIT
    others = SIMULATED_CALIBRATION if subject.simulated else limit
    named = wanted.questions
    tasks = open_tasks(named.tasks, limit, others, named.seed, files=named.from_file or ())
    if wanted.limits.check:
        return (EvalPart(subject=subject, tasks=tasks, seeds=wanted.questions.all_seeds),), None
    if not subject.simulated and not any(t.private for t in (*tasks.tasks, *tasks.calibration)):
        shared = wanted.execution.journal or read_variable(os.environ, "BATUTA_JOURNAL")
        journal = shared or str((wanted.output.out / "calls.db").absolute())
        warn_if_emptied(journal)
        setup = replace(setup, journal=journal, scope=wanted.output.out.absolute().name)
        subject = await setup.open_journal(subject, stack)
    trial_runner = await _open_trial_runner(wanted, setup, tasks, stack)
    if tasks.uses_task_graders:
        asked = (*tasks.tasks, *tasks.calibration)
        tasks = replace(tasks, grade=await setup.open_grader(asked, subject, stack))
        if trial_runner is None:
            subject = await setup.open_tests(asked, subject, stack)
    return (EvalPart(subject=subject, tasks=tasks, seeds=wanted.questions.all_seeds),), trial_runner


async def _open_subject(
    wanted: EvalCommandOptions, setup: SubjectSetup, stack: AsyncExitStack
) -> Subject:
    """Open the pool within its budget, and print notes on it."""
    from batuta.lab.evals.eval_session import check_systems  # noqa: PLC0415 - loads numpy
    from batuta.lab.evals.systems import is_method  # noqa: PLC0415 - same

    try:
        subject = await setup.open_subject(stack)
    except ConfigError as error:
        unknown = next((name for name in wanted.system_names if not is_method(name)), None)
        if unknown is None:
            raise
        raise ConfigError(
            f"{unknown!r} is not a method, and whether it is a worker is unknown: {error}"
        ) from None
    check_systems(wanted.system_names, subject)
    _check_pool_size(wanted, subject)
    check_simulated_questions(
        [wanted.questions.tasks],
        subject.source,
        simulated=subject.simulated,
        allowed=wanted.questions.simulated_questions,
    )
    subject, changed = setup.note_pool(subject, wanted.output.out, write=not wanted.limits.check)
    for note in filter(None, (*subject.notes, changed)):
        print_message(note)
    if wanted.limits.budget is None or wanted.limits.check:
        return subject
    return subject.with_call_limit(_open_budget(wanted, subject, stack))


def _refuse_options(wanted: EvalCommandOptions, options: Mapping[str, bool], reason: str) -> None:
    """Raise `ConfigError` if one of the options was given; the message ends with the reason."""
    for name, is_given in options.items():
        if is_given:
            raise ConfigError(
                f"{name} cannot be used with --tasks {wanted.questions.tasks}: {reason}"
            )


def _budget_options(wanted: EvalCommandOptions) -> dict[str, bool]:
    """Return the options on what real calls cost, and whether each was given."""
    return {"--budget": wanted.limits.budget is not None, "--check": wanted.limits.check}


def _other_options(wanted: EvalCommandOptions) -> dict[str, bool]:
    """Return the options that a task of inspect_ai cannot follow, and whether each was given."""
    pool, questions = wanted.pool, wanted.questions
    return {
        "--calibrate": wanted.output.calibrate is not None,
        "--equal-calls": wanted.systems.equal_calls,
        "--equal-cost": wanted.systems.equal_cost,
        "--executor": wanted.execution.executor != LOCAL,
        "--from-file": bool(questions.from_file),
        "--joins": pool.joins is not None,
        "--judge": wanted.grading.judge is not None,
        "--leaves": pool.leaves is not None,
        "--pools": pool.pools is not None,
        "--simulate": pool.simulate,
        "--split": questions.split is not RecordSplit.RANDOM,
    }


def _open_budget(wanted: EvalCommandOptions, subject: Subject, stack: AsyncExitStack) -> CallLimit:
    """Open the budget, less the dollars that earlier commands with this --out have spent."""
    from batuta.clients.cache import warn_if_emptied  # noqa: PLC0415 - few need it
    from batuta.lab.tune.spending import Allowance, BudgetedClient, PaidCalls, TuneBudget  # noqa: PLC0415 - only when wanted

    if wanted.execution.executor != LOCAL:
        raise ConfigError(
            "--budget works within one process only: leave out --executor, or --budget"
        )
    warn_if_emptied(wanted.output.out / PAID_FILE)
    paid = stack.enter_context(PaidCalls(wanted.output.out / PAID_FILE))
    usd = Decimal(str(wanted.limits.budget))
    budget = TuneBudget(Allowance(usd=usd, unknown=subject.limits.unknown), paid, replays=False)

    @dataclass(frozen=True, slots=True)
    class _Limit:
        """The budget as an evaluation's `CallLimit`."""

        @property
        def is_spent(self) -> bool:
            """True if a call was refused."""
            return budget.refused is not None

        def limit_client(self, client: Client, worker: Worker) -> Client:
            """Return a client that reserves the maximum cost of each attempt before it is made."""
            return BudgetedClient(client, worker, budget)

    return _Limit()


async def _open_trial_runner(
    wanted: EvalCommandOptions, setup: SubjectSetup, tasks: TaskSet, stack: AsyncExitStack
) -> TrialRunner | None:
    """Return the runner of trials on other processes or machines; None: this process."""
    from batuta.clients.cache_shared import is_shared  # noqa: PLC0415 - few need it
    from batuta.lab.evals.setup import RemoteTrials  # noqa: PLC0415 - loads numpy
    from batuta.lab.executor import LocalExecutor, open_executor  # noqa: PLC0415 - only when needed

    where = wanted.execution
    executor = await stack.enter_async_context(open_executor(where.executor, where.workers))
    if isinstance(executor, LocalExecutor):
        return None
    if executor.machines > 1 and setup.journal is not None and not is_shared(setup.journal):
        raise ConfigError(
            "with several machines, finished calls must be kept in a database that all can reach: "
            "--journal postgresql://user@host/database"
        )
    return RemoteTrials(executor, setup, None if tasks.uses_task_graders else tasks.grade)


def _open_record(options: EvalCommandOptions) -> tuple[EvalPart, ...]:
    from batuta.lab.evals import open_recorded_parts  # noqa: PLC0415 - loads numpy
    from batuta.lab.evals.recorded_sets import PoolChange  # noqa: PLC0415 - same

    if options.questions.split is RecordSplit.ALL and (options.pool.leaves or options.pool.joins):
        raise ConfigError(
            "--leaves and --joins have no effect with --split all, which learns nothing"
        )
    if options.execution.executor != LOCAL:
        raise ConfigError(
            "recorded answers are replayed on this machine: leave out --executor, or use --jobs"
        )
    if options.questions.from_file:
        raise ConfigError("--from-file is for benchmarks; recorded answers have their own files")
    models = [name.strip() for name in (options.pool.pool or "").split(",") if name.strip()]
    parts = open_recorded_parts(
        options.questions.tasks.removeprefix(RECORDED_PREFIX),
        options.questions.split.value,
        options.questions.all_seeds,
        models=models,
        limit=options.questions.limit,
        simulate=options.pool.simulate,
        conductor=_record_conductor(options.pool.conductor),
        change=PoolChange.parse(options.pool.leaves, options.pool.joins),
    )
    _check_pool_size(options, parts[0].subject)
    return parts


def _record_conductor(folder: str | None) -> Conductor | None:
    """Return the trained conductor of a folder or GGUF file; None if none is named."""
    if folder is None:
        return None
    if not is_policy(Path(folder)):
        raise ConfigError(
            "for a record, --conductor must be the folder or GGUF file of a trained conductor, "
            f"not {folder!r}"
        )
    return open_trained(Path(folder))


def _check_pool_size(options: EvalCommandOptions, subject: Subject) -> None:
    wanted = options.pool.pools
    if wanted is not None and wanted > len(subject.pool):
        raise ConfigError(f"--pools {wanted} is more than the pool's {len(subject.pool)} workers")
