"""Finds the texts of a record's questions in the data folder.

A record may be passed on where its questions may not: its lines then name each question by its id
in its benchmark, and whoever has the benchmark has the texts.
"""

from __future__ import annotations

from collections.abc import Iterable

from batuta.environment import benchmark_folder
from batuta.lab.tasks.datasets import DATASETS, load_tasks, local_files


def find_texts(ids: Iterable[str]) -> dict[str, str]:
    """Return the texts of the questions whose benchmarks are in the data folder, by id.

    Raises:
        SourceError: a file of a benchmark has changed.
    """
    wanted: dict[str, set[str]] = {}
    for id_ in ids:
        wanted.setdefault(id_.partition("/")[0], set()).add(id_)
    found: dict[str, str] = {}
    for name, its_ids in wanted.items():
        for split in _splits_here(name):
            if not its_ids - found.keys():
                break
            tasks = load_tasks(f"{name}:{split}")
            found |= {
                str(task.id): task.question
                for task in tasks
                if task.id in its_ids and not task.private
            }
    return found


def _splits_here(name: str) -> list[str]:
    source, folder = DATASETS.get(name), benchmark_folder()
    return [s for s in source.splits if local_files(source, s, folder)] if source else []
