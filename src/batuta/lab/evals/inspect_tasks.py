"""Runs a task of inspect_ai on several systems, with its tools, conversations and scorers.

inspect_ai runs the task once for each system (`batuta.lab.evals.inspect`). Its logs, in the folder
of the results, become a record that is evaluated like any other. A system with a complete log is
not run again.
"""

# inspect_ai is an extra:
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from batuta.errors import ConfigError, SourceError
from batuta.lab.tasks.recorded.importers import import_outcomes
from batuta.lab.tasks.recorded.outcome_lines import write_outcome_rows

PROVIDER = "batuta/"
"""The prefix of a system's name for inspect_ai."""
DONE = "success"
"""The status of a complete log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRun:
    """A task of inspect_ai, the systems to run it on, and the options."""

    task: str
    """The task as inspect_ai names it: `file.py`, `file.py@task` or `package/task`."""
    systems: tuple[str, ...]
    pool: str | None
    """The pool and the conductor are named as for `batuta eval`; None for the defaults."""
    conductor: str | None
    limit: int | None
    """Maximum number of samples; None for all."""
    epochs: int
    """The number of runs of each sample."""
    concurrency: int
    """Maximum number of concurrent samples."""
    replaced: str = ""
    """The workers replaced since the folder was created, as text for the names of logs' folders."""


def run_inspect_task(wanted: InspectRun, folder: Path) -> Path:
    """Run the task on every system, write the outcomes of its samples, and return the file.

    Samples that ended in an outage are left out. When the folder is used next, a system with such
    samples is run again on the whole task.

    Raises:
        ConfigError: inspect_ai is missing, or the task or a system cannot be run.
        SourceError: no sample was scored.
        StoreError: the outcomes cannot be written.
    """
    import batuta.lab.evals.inspect  # noqa: F401, PLC0415 - registers the systems, or raises an error

    logs = [_run_system(wanted, name, folder) for name in wanted.systems]
    rows = [
        {**row, "workers": {who.removeprefix(PROVIDER): run for who, run in row["workers"].items()}}
        for row in import_outcomes("inspect", logs).rows()
    ]
    if not any("scores" in run for row in rows for run in row["workers"].values()):
        raise SourceError(f"no sample of {wanted.task} was scored; see {logs[0]}")
    path = folder / "inspect.jsonl"
    write_outcome_rows(rows, path)
    return path


def _run_system(wanted: InspectRun, name: str, folder: Path) -> Path:
    """Return the log of a system: a complete log of an earlier run, or a new one.

    Raises:
        ConfigError: inspect_ai cannot run the task on the system.
    """
    import inspect_ai  # noqa: PLC0415 - an extra
    from inspect_ai.log import list_eval_logs  # noqa: PLC0415 - same

    task = _relative_task(wanted.task)
    asked = repr((wanted.task, name, wanted.pool, wanted.conductor, wanted.limit, wanted.epochs))
    asked += wanted.replaced
    log_folder = folder / "inspect" / blake2b(asked.encode(), digest_size=8).hexdigest()
    for info in list_eval_logs(str(log_folder)) if log_folder.is_dir() else ():
        if _is_whole(info):
            return Path(info.name.removeprefix("file://"))
    arguments = {"pool": wanted.pool, "conductor": wanted.conductor}
    try:
        found: Sequence[Any] = inspect_ai.eval(
            task,
            model=PROVIDER + name,
            model_args={key: value for key, value in arguments.items() if value is not None},
            limit=wanted.limit,
            epochs=wanted.epochs,
            max_samples=wanted.concurrency,
            fail_on_error=False,
            log_dir=str(log_folder),
            display="none",
        )
    except (Exception, SystemExit) as error:  # the task's file may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"inspect_ai cannot run {wanted.task}: {reason}") from error
    if len(found) != 1:
        raise ConfigError(
            f"{wanted.task} matches {len(found)} tasks of inspect_ai; name one: file.py@task"
        )
    (log,) = found
    failed = [sample.error.message for sample in log.samples or () if sample.error]
    if failed and len(failed) == len(log.samples):
        raise ConfigError(
            f"inspect_ai failed on every sample of {wanted.task} on {name}: {failed[0]}"
        )
    if log.status != DONE:
        why = log.error.message if log.error else log.status
        raise ConfigError(f"inspect_ai did not complete {wanted.task} on {name}: {why}")
    return Path(str(log.location).removeprefix("file://"))


def _relative_task(task: str) -> str:
    """Return the task with a relative path, because inspect_ai finds no file by an absolute path.

    Raises:
        ConfigError: there is no such file.
    """
    file, mark, name = task.partition("@")
    if not file.endswith(".py"):
        return task
    if not Path(file).is_file():
        raise ConfigError(f"there is no file {file} with a task of inspect_ai")
    return os.path.relpath(file) + mark + name


def _is_whole(info: Any) -> bool:
    """Return whether every sample of the log was completed; a damaged log is not whole."""
    from inspect_ai.log import read_eval_log  # noqa: PLC0415 - an extra

    try:
        log = read_eval_log(info, header_only=True)
    except (OSError, LookupError, ValueError):
        return False
    done = log.results and log.results.completed_samples == log.results.total_samples
    return log.status == DONE and bool(done)
