"""What `batuta eval` was asked for, and who is measured on what."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from batuta.cli.eval_output import RECORDED_PREFIX
from batuta.config.load import REHEARSAL_POOL, WORLD2_POOL, load_trained_conductor
from batuta.embedded.policy import is_policy
from batuta.environment import read_variable
from batuta.errors import ConfigError

if TYPE_CHECKING:
    from batuta.core import Conductor
    from batuta.evals import EvalPart, Subject, TaskSet
    from batuta.evals.matched_budget import EqualResource
    from batuta.evals.runner import TrialRunner
    from batuta.evals.setup import SubjectSetup

INSPECT_PREFIX = "inspect:"
"""Before the name of a task of inspect_ai."""
DEFAULT_LIMIT = 100
"""Questions where none are named; of a record, all."""
SIMULATED_CALIBRATION = 1000
"""Questions on which simulated workers, which cost nothing, are compared with each other."""


class RecordSplit(StrEnum):
    """How a record is divided into what is learned from and what is measured."""

    RANDOM = "random"
    UNSEEN = "unseen"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalCommandOptions:
    """What the options of `batuta eval` say."""

    tasks: str
    systems: tuple[str, ...]
    limit: int | None
    seeds: tuple[int, ...]
    pool: str | None
    conductor: str | None
    pools: int | None
    concurrency: int
    equal: tuple[EqualResource, ...]
    files: tuple[Path, ...]
    split: RecordSplit
    simulate: bool
    judge: str | None
    sandbox: str
    plots: bool
    report: Path | None
    out: Path
    executor: str
    workers: int | None
    journal: str | None
    leaves: str | None = None
    joins: str | None = None


def run_inspect(wanted: EvalCommandOptions) -> EvalCommandOptions:
    """Runs a task of inspect_ai on every system; what is then compared is the record of it.

    Raises:
        ConfigError: inspect_ai is missing, or the task or a system cannot be run.
        SourceError: nothing was scored.
    """
    from batuta.evals.inspect_tasks import InspectRun, run_inspect_task  # noqa: PLC0415 - numpy

    run = InspectRun(
        task=wanted.tasks.removeprefix(INSPECT_PREFIX),
        systems=wanted.systems,
        pool=wanted.pool,
        conductor=wanted.conductor,
        limit=wanted.limit,
        epochs=len(wanted.seeds),
        concurrency=wanted.concurrency,
    )
    path = run_inspect_task(run, wanted.out)
    return replace(
        wanted,
        tasks=f"{RECORDED_PREFIX}{path}",
        split=RecordSplit.ALL,
        pool=None,
        conductor=None,
        limit=None,
        seeds=wanted.seeds[:1],
    )


async def open_eval_subject(
    wanted: EvalCommandOptions, stack: AsyncExitStack
) -> tuple[tuple[EvalPart, ...], TrialRunner | None]:
    """Who is asked what, and where that is run (None: here); refuses what is not there."""
    from batuta.evals import EvalPart, open_tasks  # noqa: PLC0415 - loads numpy
    from batuta.evals.setup import SubjectSetup  # noqa: PLC0415 - same

    if wanted.tasks.startswith(RECORDED_PREFIX):
        return _open_record(wanted), None
    if wanted.leaves or wanted.joins:
        raise ConfigError("--leaves and --joins change the pool of a record: --tasks recorded:SET")
    setup = SubjectSetup(
        pool=wanted.pool or (WORLD2_POOL if wanted.tasks.startswith(WORLD2_POOL) else None),
        rehearses=wanted.tasks.startswith(REHEARSAL_POOL),
        conductor=wanted.conductor,
        judge=wanted.judge,
        sandbox=wanted.sandbox,
    )
    subject = await setup.open_subject(stack)
    _check_pool_size(wanted, subject)
    limit = wanted.limit or DEFAULT_LIMIT
    others = SIMULATED_CALIBRATION if subject.simulated else limit
    tasks = open_tasks(wanted.tasks, limit, others, wanted.seeds[0], files=wanted.files)
    if not subject.simulated and not any(t.private for t in (*tasks.tasks, *tasks.calibration)):
        named = wanted.journal or read_variable(os.environ, "BATUTA_JOURNAL")
        journal = named or str((wanted.out / "calls.db").absolute())
        setup = replace(setup, journal=journal, scope=wanted.out.absolute().name)
        subject = await setup.open_journal(subject, stack)
    trial_runner = await _open_trial_runner(wanted, setup, tasks, stack)
    if tasks.uses_task_graders:
        asked = (*tasks.tasks, *tasks.calibration)
        tasks = replace(tasks, grade=await setup.open_marking(asked, subject, stack))
        if trial_runner is None:
            subject = await setup.open_tests(asked, subject, stack)
    return (EvalPart(subject=subject, tasks=tasks, seeds=wanted.seeds),), trial_runner


async def _open_trial_runner(
    wanted: EvalCommandOptions, setup: SubjectSetup, tasks: TaskSet, stack: AsyncExitStack
) -> TrialRunner | None:
    """Where runs are executed; None: in this process.

    Raises:
        ConfigError: there is no such executor, or its machines have no journal in common.
    """
    from batuta.evals.remote import RemoteTrials  # noqa: PLC0415 - loads numpy
    from batuta.evals.setup import is_shared  # noqa: PLC0415 - same
    from batuta.executor import LocalExecutor, open_executor  # noqa: PLC0415 - only when needed

    executor = await stack.enter_async_context(open_executor(wanted.executor, wanted.workers))
    if isinstance(executor, LocalExecutor):
        return None
    if executor.machines > 1 and setup.journal is not None and not is_shared(setup.journal):
        raise ConfigError(
            "on several machines finished calls are kept in a database that all of them reach: "
            "--journal postgresql://user@host/database"
        )
    return RemoteTrials(executor, setup, None if tasks.uses_task_graders else tasks.grade)


def _open_record(options: EvalCommandOptions) -> tuple[EvalPart, ...]:
    from batuta.evals import open_recorded_parts  # noqa: PLC0415 - loads numpy
    from batuta.evals.pool_change import PoolChange  # noqa: PLC0415 - same

    if options.split is RecordSplit.ALL and (options.leaves or options.joins):
        raise ConfigError("with --split all nothing is learned before the pool changes")
    if options.executor != "local":
        raise ConfigError("recorded answers are replayed on this machine; see --jobs")
    if options.files:
        raise ConfigError("recorded answers have their own files: --from-file is for benchmarks")
    models = [name.strip() for name in (options.pool or "").split(",") if name.strip()]
    parts = open_recorded_parts(
        options.tasks.removeprefix(RECORDED_PREFIX),
        options.split.value,
        options.seeds,
        models=models,
        limit=options.limit,
        simulate=options.simulate,
        conductor=_record_conductor(options.conductor),
        change=PoolChange.parse(options.leaves, options.joins),
    )
    _check_pool_size(options, parts[0].subject)
    return parts


def _record_conductor(folder: str | None) -> Conductor | None:
    """The conductor of a record: one that was trained into a folder, or none."""
    if folder is None:
        return None
    if not is_policy(Path(folder)):
        raise ConfigError(f"a record can be conducted by the folder of a policy, not by {folder!r}")
    return load_trained_conductor(Path(folder))


def _check_pool_size(options: EvalCommandOptions, subject: Subject) -> None:
    if options.pools is not None and options.pools > len(subject.pool):
        raise ConfigError(f"--pools {options.pools} asks for more workers than {len(subject.pool)}")
