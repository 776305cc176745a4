"""Questions that are kept back from a training, to tell which of its policies is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import orjson

from batuta.config.task_sources import TASK_SOURCES
from batuta.core import Task
from batuta.errors import ConfigError, StoreError
from batuta.evals.task_sets import open_tasks
from batuta.tune.parts import text_key

HELD_SHARE = 0.2
MOST_HELD = 100
"""Questions on which a policy is judged: each judgement costs their calls."""
LEAST_QUESTIONS = 32
"""With which a training can begin: the search divides what is not kept back into parts."""
TRAIN_FILE, HELD_FILE = "train.jsonl", "held_back.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQuestions:
    """What is learned from and what is judged on; no question, nor one like it, is in both."""

    source: str
    """Where those to learn from are."""
    questions: int
    """How many they are; of a world that makes them, as many as are wanted."""
    held_back: tuple[Task, ...]


def split_source(name: str, folder: Path, seed: int = 0) -> SplitQuestions:
    """Keeps questions back; of a file, both parts are written into the folder.

    Args:
        name: a JSONL file, or a world that makes questions.
        folder: of the training.
        seed: of the draw of a world's questions.

    Raises:
        ConfigError: the file cannot be read, or has too few questions.
        SourceError: it holds no questions.
        StoreError: the folder cannot be written.
    """
    if name.partition(":")[0] in TASK_SOURCES:
        held = open_tasks(name, MOST_HELD, 0, seed).tasks
        return SplitQuestions(source=name, questions=10_000, held_back=held)
    learned, held_lines = divide_lines(_read_lines(Path(name)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TRAIN_FILE).write_bytes(b"\n".join(learned) + b"\n")
        (folder / HELD_FILE).write_bytes(b"\n".join(held_lines) + b"\n")
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from None
    tasks = open_tasks(str(folder / TRAIN_FILE), len(learned), 0).tasks
    held = open_tasks(str(folder / HELD_FILE), MOST_HELD, 0).tasks
    return SplitQuestions(
        source=str(folder / TRAIN_FILE),
        questions=len(tasks),
        held_back=held,
    )


def divide_lines(lines: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Lines to learn from and lines to keep back, near-duplicates never in both.

    Raises:
        ConfigError: there are too few different questions.
    """
    groups: dict[str, list[bytes]] = {}
    for number, line in enumerate(lines, 1):
        try:
            groups.setdefault(text_key(str(orjson.loads(line)["question"])), []).append(line)
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise ConfigError(f"line {number} of the questions has no `question`") from None
    if len(groups) < LEAST_QUESTIONS:
        raise ConfigError(
            f"{len(groups)} different questions are too few: a training keeps some back and needs "
            f"at least {LEAST_QUESTIONS}, better 300 or more"
        )
    order = sorted(groups, key=lambda key: blake2b(key.encode(), digest_size=8).digest())
    many = min(MOST_HELD, max(1, round(HELD_SHARE * len(order))))
    held = [line for key in order[:many] for line in groups[key][:1]]
    return [line for key in order[many:] for line in groups[key]], held


def _read_lines(path: Path) -> list[bytes]:
    try:
        return [line for line in path.read_bytes().split(b"\n") if line.strip()]
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; name a JSONL file of questions, or a world"
        ) from None
