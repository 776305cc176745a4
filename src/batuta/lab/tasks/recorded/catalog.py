"""The table of recorded sets: name, licence, reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from batuta.core.suggestions import suggest_names
from batuta.environment import benchmark_folder
from batuta.errors import SourceError
from batuta.lab.tasks.recorded import readers
from batuta.lab.tasks.recorded.outcomes import RecordedOutcomes, ReplyRow
from batuta.lab.tasks.recorded.own import (
    PACKAGED_RECORDS,
    complete_record,
    find_outcomes_file,
    read_own_record,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSet:
    """A set of recorded answers."""

    folder: str
    """The set's folder within the folder `recorded` of the data folder."""
    parts: tuple[str, ...]
    licence: str
    read: Callable[[Path, str], RecordedOutcomes]
    """Reads a part of the record from its folder."""
    texts: Callable[[Path, str], Iterable[ReplyRow]] | None = None
    """Reads the replies of a part from its folder; None if they were not recorded."""


RECORDED_SETS: Mapping[str, RecordedSet] = {
    "reasoning_gym": RecordedSet(
        folder="reasoning_gym",
        parts=("easy", "hard"),
        licence="Apache-2.0",
        read=readers.read_reasoning_gym,
        texts=readers.reasoning_gym_replies,
    ),
    "mmlu_pro": RecordedSet(
        folder="mmlu_pro",
        parts=("seven", "all"),
        licence="Apache-2.0",
        read=readers.read_mmlu_pro,
        texts=readers.mmlu_pro_replies,
    ),
    "livecodebench": RecordedSet(
        folder="livecodebench",
        parts=("v6", "v5", "2024", "repair", "testgen", "execution"),
        licence="MIT for statements and programs, none stated for scores",
        read=readers.read_livecodebench,
        texts=readers.livecodebench_replies,
    ),
    "medagentsbench": RecordedSet(
        folder="medagentsbench",
        parts=("test", "hard", "methods"),
        licence="Apache-2.0",
        read=readers.read_medagentsbench,
    ),
    "routerdc": RecordedSet(
        folder="routerdc",
        parts=("test", "train"),
        licence="none stated",
        read=readers.read_routerdc,
    ),
    "routellm": RecordedSet(
        folder="routellm",
        parts=("mmlu", "gsm8k"),
        licence="Apache-2.0",
        read=readers.read_routellm,
        texts=readers.routellm_replies,
    ),
    "llmrouter": RecordedSet(
        folder="llmrouter_ulab",
        parts=("train", "test"),
        licence="MIT",
        read=readers.read_llmrouter,
    ),
    "matharena": RecordedSet(
        folder="matharena_aime25",
        parts=("aime25",),
        licence="none stated; research use",
        read=readers.read_matharena,
    ),
}

RECORDED_NAMES = tuple(
    f"{name}/{part}" for name, found in RECORDED_SETS.items() for part in found.parts
)


def load_recorded(
    name: str,
    *,
    folder: Path | None = None,
    with_texts: bool = True,
    models: Sequence[str] = (),
) -> RecordedOutcomes:
    """Load a recorded set.

    Args:
        name: a set such as `reasoning_gym/hard`, a packaged record, or the path of an outcomes
            file. A packaged record or a file keeps only the questions that every chosen model
            answered.
        folder: the data folder; None: the configured folder.
        with_texts: whether to load the replies too, which are large.
        models: the models to load; empty: all.

    Raises:
        SourceError: there is no such set or model, its files are missing or malformed, or no
            question is kept.
    """
    if path := find_outcomes_file(name):
        own = read_own_record(path, with_texts=with_texts).select(models=models or None)
        return complete_record(replace(own, name=name) if name in PACKAGED_RECORDS else own)
    if name not in RECORDED_NAMES:
        known = suggest_names(name, (*RECORDED_NAMES, *PACKAGED_RECORDS, "FILE.jsonl"))
        raise SourceError(f"there is no recorded set {name!r}; {known}")
    wanted, _, part = name.partition("/")
    found = RECORDED_SETS[wanted]
    path = (folder or benchmark_folder()) / "recorded" / found.folder
    if not (path / "outcomes.parquet").is_file():
        raise SourceError(
            f"{path} has no outcomes.parquet: this set is not distributed with Batuta; set "
            "BATUTA_DATA to a folder that has it, or make your own record with `batuta eval` "
            "or `batuta tasks import` (docs/evaluation.md)"
        )
    try:
        record = found.read(path, part).select(models=models or None)
        read_texts = found.texts if with_texts else None
        return record.with_texts(read_texts(path, part)) if read_texts else record
    except (KeyError, ValueError, TypeError) as error:
        raise SourceError(f"{path} is not in the format of {wanted}: {error!r}") from None
