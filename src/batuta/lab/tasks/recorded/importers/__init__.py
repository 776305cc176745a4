"""Converts other programs' result files into outcomes files; each module reads one format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batuta.errors import SourceError
from batuta.lab.tasks.datasets.rows import ROW_FAULTS
from batuta.lab.tasks.recorded.importers.harness_samples import import_harness_samples
from batuta.lab.tasks.recorded.importers.inspect_logs import import_inspect_logs
from batuta.lab.tasks.recorded.importers.llmrouterbench import import_llmrouterbench
from batuta.lab.tasks.recorded.importers.routerbench import import_routerbench
from batuta.lab.tasks.recorded.outcome_lines import Importer, OutcomeCollector, parse_outcome_line

_MAX_NAMED = 10
"""Maximum number of runs that a message lists."""
_ANSWERS = "answers of closed models are under their providers' terms, questions under their own"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeFormat:
    """A format that can be imported."""

    read: Importer
    about: str
    """A description for messages and help texts."""
    licence: str
    """The conditions under which the outcomes may be passed on."""
    endings: tuple[str, ...]
    """The endings of the files that are read from a folder."""


FORMATS: Mapping[str, OutcomeFormat] = {
    "routerbench": OutcomeFormat(
        read=import_routerbench,
        about="RouterBench's table, one row per question",
        licence=f"see the card of withmartian/routerbench; {_ANSWERS}",
        endings=(".csv", ".parquet", ".jsonl", ".pkl"),
    ),
    "llmrouterbench": OutcomeFormat(
        read=import_llmrouterbench,
        about="LLMRouterBench's results, one JSON file per data set and model",
        licence=f"its programs are MIT; {_ANSWERS}",
        endings=(".json",),
    ),
    "inspect": OutcomeFormat(
        read=import_inspect_logs,
        about="logs of inspect_ai, .eval or .json",
        licence=f"your own runs; {_ANSWERS}",
        endings=(".eval", ".json"),
    ),
    "lm-eval": OutcomeFormat(
        read=import_harness_samples,
        about="samples_*.jsonl of lm-evaluation-harness (--log_samples)",
        licence=f"your own runs; {_ANSWERS}",
        endings=(".jsonl",),
    ),
}


def import_outcomes(kind: str, paths: Sequence[Path], worker: str = "") -> OutcomeCollector:
    """Return the runs in another program's files.

    Folders are searched for files. `worker` is the model that answered if the files name none.

    Raises:
        SourceError: the format is unknown, a file cannot be read, a run cannot be used, or the
            files contain no run.
    """
    if kind not in FORMATS:
        raise SourceError(f"there is no format {kind!r}; choose among: {', '.join(FORMATS)}")
    collector = OutcomeCollector()
    files = tuple(_find_files(paths, FORMATS[kind].endings))
    named = ", ".join(map(str, paths))
    try:
        FORMATS[kind].read(files, collector, worker)
    except ROW_FAULTS as error:
        raise SourceError(f"{named} is not in the format of {kind}: {error!r}") from None
    for row in collector.rows():
        try:
            parse_outcome_line(row)
        except ROW_FAULTS as error:
            cause = error if isinstance(error, ValueError) else repr(error)
            raise SourceError(
                f"the runs of {row.get('id', 'a question')} in {named} cannot be used: {cause}"
            ) from None
    if not collector.facts:
        if collector.left_out:
            raise SourceError(f"{named} has no run with a score: {describe_left_out(collector)}")
        raise SourceError(f"{named} has no runs in the format of {kind}: {FORMATS[kind].about}")
    return collector


def describe_left_out(collector: OutcomeCollector) -> str:
    """Return a clause about the runs that were left out; empty if none was."""
    names = collector.left_out
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    listed = ", ".join(names[:_MAX_NAMED])
    return (
        f"{len(names):,} runs are left out because their score is NaN or infinite: {listed}{more}"
    )


def _find_files(paths: Sequence[Path], endings: tuple[str, ...]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(file for file in path.rglob("*") if file.suffix in endings)
        elif path.is_file():
            found.append(path)
        else:
            raise SourceError(f"there is no file {path}")
    return found
