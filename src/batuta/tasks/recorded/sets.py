"""The table of recorded sets: name, licence, reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from batuta.errors import SourceError
from batuta.tasks.recorded import answered, scored, texts
from batuta.tasks.recorded.record import Recorded, Said
from batuta.tasks.sources.load import data_folder


@dataclass(frozen=True, slots=True)
class RecordedSet:
    """A set of recorded answers."""

    folder: str
    """Below `recorded` in the data folder."""
    parts: tuple[str, ...]
    licence: str
    read: Callable[[Path, str], Recorded]
    """From its folder and a part."""
    texts: Callable[[Path, str], Iterable[Said]] | None = None
    """None: no replies' texts were recorded."""


SETS: Mapping[str, RecordedSet] = {
    "reasoning_gym": RecordedSet(
        "reasoning_gym",
        ("easy", "hard"),
        "Apache-2.0",
        answered.reasoning_gym,
        texts.reasoning_gym,
    ),
    "mmlu_pro": RecordedSet(
        "mmlu_pro", ("seven", "all"), "Apache-2.0", answered.mmlu_pro, texts.mmlu_pro
    ),
    "livecodebench": RecordedSet(
        "livecodebench",
        ("v6", "v5", "2024", "repair", "testgen", "execution"),
        "MIT for statements and programs, none stated for scores",
        scored.livecodebench,
        texts.livecodebench,
    ),
    "medagentsbench": RecordedSet(
        "medagentsbench", ("test", "hard", "methods"), "Apache-2.0", answered.medagentsbench
    ),
    "routerdc": RecordedSet("routerdc", ("test", "train"), "none stated", scored.routerdc),
    "routellm": RecordedSet(
        "routellm", ("mmlu", "gsm8k"), "Apache-2.0", answered.routellm, texts.routellm
    ),
    "llmrouter": RecordedSet("llmrouter_ulab", ("train", "test"), "MIT", scored.llmrouter),
    "matharena": RecordedSet(
        "matharena_aime25", ("aime25",), "none stated; research use", scored.matharena
    ),
}

NAMES = tuple(f"{name}/{part}" for name, kept in SETS.items() for part in kept.parts)


def load(name: str, *, folder: Path | None = None, with_texts: bool = True) -> Recorded:
    """A recorded set.

    Args:
        name: such as `reasoning_gym/hard`.
        folder: the data folder; None: BATUTA_DATA, or the user's data folder.
        with_texts: whether the replies' texts are read, where there are any; they are large.

    Raises:
        SourceError: no such set, or its files are missing or not in their form.
    """
    if name not in NAMES:
        raise SourceError(f"there is no recorded set {name!r}; there are {', '.join(NAMES)}")
    wanted, _, part = name.partition("/")
    kept = SETS[wanted]
    place = (folder or data_folder()) / "recorded" / kept.folder
    if not (place / "outcomes.parquet").is_file():
        raise SourceError(f"{place} has no outcomes.parquet; set BATUTA_DATA to a folder with it")
    try:
        record = kept.read(place, part)
        wanted_texts = kept.texts if with_texts else None
        return record.with_texts(wanted_texts(place, part)) if wanted_texts else record
    except (KeyError, ValueError, TypeError) as error:
        raise SourceError(f"{place} is not in the form of {wanted}: {error!r}") from None
