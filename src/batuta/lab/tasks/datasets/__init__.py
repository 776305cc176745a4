"""Data sets of tasks: published benchmarks, generators, and users' own files."""

from batuta.lab.tasks.datasets.catalog import DATASETS
from batuta.lab.tasks.datasets.dataset import Dataset, HubDataset, MultipleChoiceQuestion
from batuta.lab.tasks.datasets.loader import (
    fetch_split,
    find_split,
    is_task_file,
    load_tasks,
    local_files,
)

__all__ = [
    "DATASETS",
    "Dataset",
    "HubDataset",
    "MultipleChoiceQuestion",
    "fetch_split",
    "find_split",
    "is_task_file",
    "load_tasks",
    "local_files",
]
