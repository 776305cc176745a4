"""`batuta tune --tasks recorded:NAME`: the tuning of a record, which calls nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from batuta.errors import ConfigError
from batuta.lab.commands.eval_output import RECORDED_PREFIX
from batuta.lab.commands.tune_options import TuneOptions
from batuta.rendering.console import open_console

if TYPE_CHECKING:
    from batuta.lab.tasks.recorded import RecordedOutcomes
    from batuta.lab.tune.record_tuning import RecordParts

CALL_WEIGHT = 0.005
"""Of a record: real workers agree oftener than simulated ones, so that further calls gain less and
are made less often; what they cost is in the dollars."""


def tune_record(options: TuneOptions) -> dict[str, Any]:
    """Tune on a record; return the report, or with `--check` how the record is divided.

    Raises:
        ConfigError: an option says nothing of a record.
        SourceError: there is no such record, it is too small, or it lacks the dollars that count.
    """
    _refuse_with_record(options)
    from batuta.lab.tasks.recorded import load_recorded  # noqa: PLC0415 - loads numpy
    from batuta.lab.tune.record_options import RecordSettings  # noqa: PLC0415 - same
    from batuta.lab.tune.record_tuning import (  # noqa: PLC0415 - same
        describe_record_tuning,
        limit_record,
        nominate_options,
        split_record,
        write_record_results,
    )

    questions, goals, out = options.questions, options.goals, options.output.out
    labels = options.search.labels
    name = str(questions.tasks).removeprefix(RECORDED_PREFIX)
    record = limit_record(load_recorded(name, with_texts=False), questions.limit, questions.seed)
    parts = split_record(record, questions.seed)
    settings = RecordSettings(
        call_weight=CALL_WEIGHT if goals.call_weight is None else goals.call_weight,
        worth=goals.worth,
        only_proven=goals.only_proven,
        seed=questions.seed,
    )
    console = open_console(highlight=False, soft_wrap=True, quiet=options.output.json)
    if options.execution.check:
        return _show_division(record, parts, console)
    whole = len(set(record.families)) > 1 if labels is None else labels
    nominees = nominate_options(record, parts.known, settings, labelled=whole)
    found = describe_record_tuning(record, parts, nominees, settings)
    write_record_results(out, found, nominees)
    for line in found["recommendation"]["why"]:
        console.print(line)
    console.print("spent: 0 calls; every answer was read from the record")
    console.print(f"report: {out / 'report.html'}")
    return found


def _show_division(
    record: RecordedOutcomes, parts: RecordParts, console: Console
) -> dict[str, Any]:
    """Return what would be learned from and judged on."""
    known, judged = parts.known_families(record), parts.judged_families(record)
    kept = "of families that are kept back" if parts.has_new_families else "kept back at random"
    console.print(
        f"{record.name}: {len(record.models)} workers, {len(parts.known)} questions of "
        f"{len(known)} families to learn from, {len(parts.judged)} {kept}; "
        "nobody is called, nothing is paid"
    )
    return {
        "record": record.name,
        "workers": len(record.models),
        "incomplete": record.incomplete,
        "questions": {"search": len(parts.known), "judgement": len(parts.judged)},
        "families": {"search": len(known), "judgement": len(judged)},
        "new_families": parts.has_new_families,
    }


def _refuse_with_record(options: TuneOptions) -> None:
    """Refuse options that say nothing of a record.

    Raises:
        ConfigError: one was given.
    """
    given = {
        "--pool": options.pool,
        "--from-runs": options.questions.from_runs,
        "--stages": options.execution.stages,
        "--judge": options.grading.judge,
        "--rewriter": options.search.rewriter,
        "--workers": options.execution.workers,
        "--mean-calls": options.goals.mean_calls,
        "--most-workers": options.search.most_workers,
        "--patterns": options.search.patterns,
    }
    for option, value in given.items():
        if value:
            raise ConfigError(
                f"{option} does not go with a record: its answers are there already, and nobody is "
                "called"
            )
