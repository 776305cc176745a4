"""`batuta tune --tasks recorded:NAME`: the tuning of a record, which calls nobody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from batuta.errors import ConfigError

if TYPE_CHECKING:
    from batuta.tasks.recorded import RecordedOutcomes
    from batuta.tune.record_tuning import RecordParts

CALL_WEIGHT = 0.005
"""Of a record: real workers agree oftener than simulated ones, so that further calls gain less and
are made less often; what they cost is in the dollars."""


def tune_record(
    name: str,
    *,
    limit: int,
    labels: bool | None,
    call_weight: float | None,
    worth: float | None,
    seed: int,
    out: Path,
    check: bool,
    is_quiet: bool,
) -> dict[str, Any]:
    """Tune on that record; what the report says, or with `check` how it is divided.

    Raises:
        SourceError: there is no such record, it is too small, or it lacks the dollars that count.
        StoreError: the folder cannot be written.
    """
    from batuta.tasks.recorded import load_recorded  # noqa: PLC0415 - loads numpy
    from batuta.tune.record_options import RecordSettings  # noqa: PLC0415 - same
    from batuta.tune.record_tuning import (  # noqa: PLC0415 - same
        describe_record_tuning,
        limit_record,
        nominate_options,
        split_record,
        write_record_results,
    )

    record = limit_record(load_recorded(name, with_texts=False), limit, seed)
    parts = split_record(record, seed)
    settings = RecordSettings(
        call_weight=CALL_WEIGHT if call_weight is None else call_weight, worth=worth, seed=seed
    )
    console = Console(highlight=False, soft_wrap=True, quiet=is_quiet)
    if check:
        return _show_division(record, parts, console)
    whole = len(set(record.families)) > 1 if labels is None else labels
    nominees = nominate_options(record, parts.known, settings, labelled=whole)
    found = describe_record_tuning(record, parts, nominees, settings)
    write_record_results(out, found, nominees)
    for line in found["recommendation"]["why"]:
        console.print(line, markup=False)
    console.print("spent: 0 calls; every answer was read from the record")
    console.print(f"report: {out / 'report.html'}")
    return found


def _show_division(
    record: RecordedOutcomes, parts: RecordParts, console: Console
) -> dict[str, Any]:
    """What would be learned from and judged on."""
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


def refuse_with_record(given: dict[str, object]) -> None:
    """Options that say nothing of a record.

    Raises:
        ConfigError: one was given.
    """
    for option, value in given.items():
        if value:
            raise ConfigError(
                f"{option} does not go with a record: its answers are there already, and nobody is "
                "called"
            )
